/* The weights of a model: weights.bin (program.h), mapped read-only and shared between processes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model.h"

/* Checks that an open weights file of `size` bytes is the one that the program was generated with. */
static int check_weights(const sod2_program *program, const char *path, int file, int64_t size) {
  char header[SOD2_WEIGHTS_HEADER];
  int64_t payload;
  if (pread(file, header, sizeof header, 0) != (ssize_t)sizeof header || memcmp(header, SOD2_WEIGHTS_MAGIC, 8) != 0)
    return sod2_refuse(SOD2_ERROR_FILE, "%s is not a weights file: it does not start with %s", path,
                       SOD2_WEIGHTS_MAGIC);
  memcpy(&payload, header + 8, sizeof payload);
  if (memcmp(header + 16, program->weight_digest, SOD2_DIGEST_LENGTH) != 0 || payload != program->weight_bytes)
    return sod2_refuse(SOD2_ERROR_FILE, "%s belongs to another model: its digest is %.*s, model %s needs %s", path,
                       SOD2_DIGEST_LENGTH, header + 16, program->name, program->weight_digest);
  if (size != SOD2_WEIGHTS_HEADER + payload)
    return sod2_refuse(SOD2_ERROR_FILE, "%s has %lld bytes, its header says %lld", path, (long long)size,
                       (long long)(SOD2_WEIGHTS_HEADER + payload));
  return SOD2_OK;
}

int sod2_map_weights(sod2_model *model, const char *path) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return sod2_refuse(SOD2_ERROR_FILE, "cannot open the weights %s: %s", path, strerror(errno));
  struct stat status;
  int code = SOD2_OK;
  if (fstat(file, &status) != 0) code = sod2_refuse(SOD2_ERROR_FILE, "cannot read %s: %s", path, strerror(errno));
  if (code == SOD2_OK) code = check_weights(model->program, path, file, status.st_size);
  if (code == SOD2_OK) {
    void *mapped = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    if (mapped == MAP_FAILED) {
      code = sod2_refuse(SOD2_ERROR_MEMORY, "cannot map %s: %s", path, strerror(errno));
    } else {
      model->file = mapped;
      model->file_bytes = status.st_size;
    }
  }
  close(file);
  return code;
}

void sod2_unmap_weights(sod2_model *model) {
  if (model->file != NULL) munmap(model->file, (size_t)model->file_bytes);
}

const char *sod2_payload(const sod2_model *model) {
  return model->program->weight_bytes > 0 ? model->file + SOD2_WEIGHTS_HEADER : NULL;
}
