/* Arrays in NumPy's .npy files, format versions 1 to 3, as far as sod2_tensor holds them: C order, little endian, rank up
   to SOD2_MAX_RANK, the dtypes of sod2.h. */
#ifndef SOD2_NPY_H
#define SOD2_NPY_H
#include "sod2.h"

/* Reads a whole file. 0, and tensor->data is to be given to free(); or -1, and `message` is one sentence. The tensor's
   name stays NULL. */
int sod2_npy_read(const char *path, sod2_tensor *tensor, char *message, int64_t capacity);

/* Writes format version 1.0. 0, or -1 and one sentence. */
int sod2_npy_write(const char *path, const sod2_tensor *tensor, char *message, int64_t capacity);

/* Bytes of one element; 0 for a dtype that is none of enum sod2_dtype. */
int64_t sod2_dtype_bytes(int32_t dtype);
/* As NumPy names it, "float32"; NULL for a dtype that is none of enum sod2_dtype. */
const char *sod2_dtype_name(int32_t dtype);
#endif
