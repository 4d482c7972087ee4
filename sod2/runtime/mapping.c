/* The arena's memory.

   It is one anonymous mapping of exactly what the largest bound shape needs. Nothing in it lives from one run to the
   next, so growing is unmap, then map: two arenas never exist at once and nothing is copied.

   Where the arena may have to grow in the middle of a run, under live pointers (program.h: stages, depths), it lies at
   the start of a reservation of address space. */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "model.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* From this size the arena asks for huge pages: the first touch of 20 MB then costs 0.5 ms where 4 KB pages cost 16. */
#define HUGE_PAGE ((int64_t)2 << 20)

/* Address space reserved for an arena that grows while the model runs; less where the system refuses that much. */
#define RESERVATION ((int64_t)64 << 30)

_Alignas(SOD2_ALIGN) char sod2_nothing[SOD2_ALIGN];

int sod2_no_arena(const sod2_model *model, int64_t bytes) {
  return sod2_refuse(SOD2_ERROR_MEMORY, "no memory for the %lld bytes that model %s needs at these input dims",
                     (long long)bytes, model->program->name);
}

static void advise(void *begin, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes >= HUGE_PAGE) madvise(begin, (size_t)bytes, MADV_HUGEPAGE); /* advice: a refusal costs only time */
#else
  (void)begin, (void)bytes;
#endif
}

/* Maps more of the reservation, which is made first: nothing that is mapped moves or is lost. */
static int grow(sod2_model *model, int64_t wanted) {
  for (int64_t space = RESERVATION; model->arena == NULL; space /= 2) {
    if (space < wanted) return sod2_no_arena(model, wanted);
    void *reserved = mmap(NULL, (size_t)space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) continue;
    model->arena = reserved;
    model->space = space;
  }
  int64_t more = wanted - model->reserved;
  if (wanted > model->space || mmap(model->arena + model->reserved, (size_t)more, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
    return sod2_no_arena(model, wanted);
  advise(model->arena + model->reserved, more);
  model->reserved = wanted;
  return SOD2_OK;
}

/* Whether the arena may have to grow while the model runs, whichever table it runs by. */
static int grows(void) {
  int found = 0;
  for (const sod2_program *table = &sod2_main; table != NULL; table = table->leaner)
    found |= table->minted > 0 || table->deepest > 0;
  return found;
}

int64_t sod2_mapped(int64_t bytes) {
  int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + SOD2_ALIGN + page - 1) / page * page; /* an empty tensor at the end has readable bytes too */
}

int sod2_reserve(sod2_model *model, int64_t bytes) {
  int64_t wanted = sod2_mapped(bytes);
  if (grows()) return wanted <= model->reserved ? SOD2_OK : grow(model, wanted);
  if (bytes <= model->reserved) return SOD2_OK;
  sod2_unreserve(model);
  void *mapped = mmap(NULL, (size_t)wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return sod2_no_arena(model, bytes);
  advise(mapped, wanted);
  model->arena = mapped;
  model->reserved = wanted;
  return SOD2_OK;
}

void sod2_unreserve(sod2_model *model) {
  if (model->arena == NULL) return;
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(model->arena, (size_t)model->reserved);
#endif
  munmap(model->arena, (size_t)(model->space > 0 ? model->space : model->reserved));
  model->arena = NULL;
  model->reserved = model->space = 0;
}

void sod2_set_addresses(sod2_model *model, const uint8_t *given) {
  const sod2_plan *bound = model->bound;
  char *base = model->arena != NULL ? model->arena : sod2_nothing;
#ifdef __SANITIZE_ADDRESS__
  if (model->arena != NULL && given == NULL) ASAN_POISON_MEMORY_REGION(model->arena, (size_t)model->reserved);
#endif
  for (int32_t i = 0; i < model->program->buffers; i++) {
    if (given != NULL && given[i]) continue;
    model->address[i] = base + bound->offset[i];
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(model->address[i], (size_t)bound->bytes[i]);
#endif
  }
}
