/* Reader and writer of .npy files for the bench executable. The header of a .npy file is the text of a Python dict,
     {'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 224, 224), }
   read here by looking for its three keys, which NumPy always writes so; anything else is refused. */
#include "npy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_CAPACITY 4096
#define CACHE_LINE 64 /* bytes: rows of an image that begin elsewhere cost kernels twice the loads */

static const struct {
  int32_t dtype;
  int32_t bytes;
  const char *descr, *name;
} DTYPES[] = {
    {SOD2_FLOAT32, 4, "<f4", "float32"}, {SOD2_FLOAT64, 8, "<f8", "float64"}, {SOD2_INT8, 1, "|i1", "int8"},
    {SOD2_INT16, 2, "<i2", "int16"},     {SOD2_INT32, 4, "<i4", "int32"},     {SOD2_INT64, 8, "<i8", "int64"},
    {SOD2_UINT8, 1, "|u1", "uint8"},     {SOD2_UINT32, 4, "<u4", "uint32"},   {SOD2_UINT64, 8, "<u8", "uint64"},
    {SOD2_BOOL, 1, "|b1", "bool"},
};
enum { DTYPE_COUNT = sizeof DTYPES / sizeof *DTYPES };

/* Row of DTYPES, or -1. */
static int find_dtype(int32_t dtype) {
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (DTYPES[i].dtype == dtype) return i;
  return -1;
}

int64_t sod2_dtype_bytes(int32_t dtype) { return find_dtype(dtype) < 0 ? 0 : DTYPES[find_dtype(dtype)].bytes; }
const char *sod2_dtype_name(int32_t dtype) { return find_dtype(dtype) < 0 ? NULL : DTYPES[find_dtype(dtype)].name; }

/* Elements of a tensor, or -1 when the bytes they need overflow. */
static int64_t element_count(const sod2_tensor *tensor) {
  int64_t count = 1, bytes;
  for (int32_t i = 0; i < tensor->rank; i++)
    if (__builtin_mul_overflow(count, tensor->dims[i], &count)) return -1;
  return __builtin_mul_overflow(count, sod2_dtype_bytes(tensor->dtype), &bytes) ? -1 : count;
}

/* The text behind `'key': ` in the header, or NULL. */
static const char *value_of(const char *header, const char *key) {
  const char *found = strstr(header, key);
  return found == NULL ? NULL : found + strlen(key);
}

/* "(1, 3, 224)" to rank and dims. */
static int parse_shape(const char *text, sod2_tensor *tensor) {
  if (text == NULL || *text++ != '(') return -1;
  tensor->rank = 0;
  while (*text != ')') {
    char *end;
    errno = 0;
    long long dim = strtoll(text, &end, 10);
    if (end == text || errno != 0 || dim < 0 || tensor->rank == SOD2_MAX_RANK) return -1;
    tensor->dims[tensor->rank++] = dim;
    text = end + strspn(end, ", ");
  }
  return 0;
}

/* 0, or -1 for a header that is not what this module reads. */
static int parse_header(const char *header, sod2_tensor *tensor) {
  const char *descr = value_of(header, "'descr': '");
  const char *order = value_of(header, "'fortran_order': ");
  if (descr == NULL || order == NULL || strncmp(order, "False", 5) != 0) return -1;
  for (int i = 0; i < DTYPE_COUNT; i++)
    if (strncmp(descr, DTYPES[i].descr, 3) == 0 && descr[3] == '\'') tensor->dtype = DTYPES[i].dtype;
  return tensor->dtype == 0 ? -1 : parse_shape(value_of(header, "'shape': "), tensor);
}

/* Reads magic, version and header text. 0, or -1. */
static int read_header(FILE *file, char header[HEADER_CAPACITY]) {
  unsigned char start[12];
  if (fread(start, 1, 10, file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0 || start[6] < 1 || start[6] > 3) return -1;
  size_t length = start[8] | (size_t)start[9] << 8;
  if (start[6] > 1) { /* the length has 4 bytes since version 2 */
    if (fread(start + 10, 1, 2, file) != 2) return -1;
    length |= (size_t)start[10] << 16 | (size_t)start[11] << 24;
  }
  if (length >= HEADER_CAPACITY || fread(header, 1, length, file) != length) return -1;
  header[length] = 0;
  return 0;
}

static int read_open(FILE *file, const char *path, sod2_tensor *tensor, char *message, size_t capacity) {
  char header[HEADER_CAPACITY];
  if (read_header(file, header) != 0 || parse_header(header, tensor) != 0) {
    snprintf(message, capacity, "%s is not a .npy file in C order with a little-endian dtype and rank up to %d", path,
             SOD2_MAX_RANK);
    return -1;
  }
  int64_t count = element_count(tensor);
  size_t bytes = (size_t)(count * sod2_dtype_bytes(tensor->dtype));
  tensor->data = count < 0 ? NULL : aligned_alloc(CACHE_LINE, bytes / CACHE_LINE * CACHE_LINE + CACHE_LINE);
  if (tensor->data == NULL) {
    snprintf(message, capacity, "%s: no memory for its array", path);
    return -1;
  }
  if (fread(tensor->data, 1, bytes, file) == bytes && fgetc(file) == EOF) return 0;
  free(tensor->data);
  tensor->data = NULL;
  snprintf(message, capacity, "%s has not the %zu bytes of data that its header says", path, bytes);
  return -1;
}

int sod2_npy_read(const char *path, sod2_tensor *tensor, char *message, int64_t capacity) {
  *tensor = (sod2_tensor){0};
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    snprintf(message, (size_t)capacity, "cannot open %s: %s", path, strerror(errno));
    return -1;
  }
  int code = read_open(file, path, tensor, message, (size_t)capacity);
  fclose(file);
  return code;
}

/* The whole header of version 1.0, padded so that data begin at a multiple of 64. Returns its length. */
static size_t format_header(const sod2_tensor *tensor, char header[HEADER_CAPACITY]) {
  int length = 10 + sprintf(header + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (",
                            DTYPES[find_dtype(tensor->dtype)].descr);
  for (int32_t i = 0; i < tensor->rank; i++)
    length += sprintf(header + length, tensor->rank == 1 ? "%lld," : i ? ", %lld" : "%lld", (long long)tensor->dims[i]);
  length += sprintf(header + length, "), }");
  size_t total = ((size_t)length + 1 + 63) / 64 * 64;
  memset(header + length, ' ', total - (size_t)length - 1);
  header[total - 1] = '\n';
  memcpy(header, "\x93NUMPY\x01\x00", 8);
  header[8] = (char)((total - 10) & 255);
  header[9] = (char)((total - 10) >> 8);
  return total;
}

int sod2_npy_write(const char *path, const sod2_tensor *tensor, char *message, int64_t capacity) {
  char header[HEADER_CAPACITY];
  int64_t count = element_count(tensor);
  if (find_dtype(tensor->dtype) < 0 || count < 0) {
    snprintf(message, (size_t)capacity, "%s: a .npy file cannot hold dtype %d with these dims", path, tensor->dtype);
    return -1;
  }
  size_t length = format_header(tensor, header), bytes = (size_t)(count * sod2_dtype_bytes(tensor->dtype));
  FILE *file = fopen(path, "wb");
  int written = file != NULL && fwrite(header, 1, length, file) == length &&
                (bytes == 0 || fwrite(tensor->data, 1, bytes, file) == bytes);
  if (file != NULL && fclose(file) != 0) written = 0;
  if (!written) snprintf(message, (size_t)capacity, "cannot write %s: %s", path, strerror(errno));
  return written ? 0 : -1;
}
