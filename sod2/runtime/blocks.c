/* Memory that grows while a loop runs: states whose size differs from trip to trip, and outputs stacked of a number of
   trips that only execution tells. A block is a mapping of its own outside the arena, so that growing it moves nothing
   else; it doubles, so that what is copied in all stays below twice what is kept in the end.

   A state has two blocks: what the next trip begins with is written to the second one while the first is still read, and
   then they change places. Two states that swap need no more. Under the address sanitizer every block has exactly the
   bytes that are asked for, in front of a red zone. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "program.h"

#ifdef __SANITIZE_ADDRESS__
static char *acquire(int64_t bytes) {
  void *data = NULL;
  return posix_memalign(&data, SOD2_ALIGN, (size_t)bytes) == 0 ? data : NULL;
}
static void release(sod2_block *block) { free(block->data); }
static int64_t capacity_for(int64_t bytes, int64_t old) {
  (void)old;
  return bytes;
}
#else
static char *acquire(int64_t bytes) {
  void *data = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? NULL : data;
}
static void release(sod2_block *block) {
  if (block->data != NULL) munmap(block->data, (size_t)block->capacity);
}
static int64_t capacity_for(int64_t bytes, int64_t old) {
  const int64_t page = sysconf(_SC_PAGESIZE), wanted = sod2_imax(bytes, 2 * old);
  return (wanted + page - 1) / page * page;
}
#endif

int sod2_block_hold(sod2_block *block, int64_t bytes, int64_t keep) {
  block->needed = sod2_imax(block->needed, bytes);
  const int64_t least = sod2_imax(bytes, SOD2_ALIGN); /* element 0 of an empty tensor may be read and discarded */
#ifdef __SANITIZE_ADDRESS__
  if (least == block->capacity) return 1;
#else
  if (least <= block->capacity) return 1;
#endif
  const int64_t capacity = capacity_for(least, block->capacity);
  char *data = acquire(capacity);
  if (data == NULL) return 0;
  if (keep > 0) memcpy(data, block->data, (size_t)keep);
  release(block);
  block->data = data;
  block->capacity = capacity;
  return 1;
}

void sod2_blocks_free(sod2_block *block, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    release(&block[i]);
    block[i] = (sod2_block){0};
  }
}
