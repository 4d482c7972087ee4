/* Counts the live and peak bytes of heap and anonymous mappings of a process, by one rule for every engine.

     gcc -O2 -fPIC -shared -o libmemhook.so memhook.c; LD_PRELOAD=libmemhook.so python ...
   or linked into an executable. The program then asks for the counters:

     int64_t sod2_hook_live(void);   bytes live now
     int64_t sod2_hook_peak(void);   largest live bytes since the last reset
     void sod2_hook_reset(void);     peak = live

   - Heap: the malloc family, by malloc_usable_size, so that free() needs no header and blocks of any origin are safe.
     glibc's own mappings for large blocks and heaps are not seen a second time. Growing by realloc counts the old block
     as freed first, although glibc may hold both while it copies.
   - Mappings: explicit anonymous mmap, whole pages, by an exact set of address ranges, so that unmapping a part, mapping
     over something, and mremap are right. Not counted: thread stacks, files, and PROT_NONE reservations, even when
     mprotect opens them later.
   - Address space that was asked for is counted, not resident pages: madvise and first touch change nothing.

   Preloaded or linked dynamically this replaces the functions by name, which takes glibc. A static executable is linked
   with -Wl,--wrap for each of them instead (SOD2_STATIC), which takes any C library. On Android's (SOD2_BIONIC) it is
   linked into the executable, whose names come before those of every library, and looks up what it replaces. 64-bit
   Linux and Android only. */
#define _GNU_SOURCE
#ifdef SOD2_BIONIC
#include <dlfcn.h>
#endif
#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Static_assert(sizeof(void *) == 8, "memhook needs a 64-bit system");

#ifdef SOD2_STATIC
#define HOOK(name) __wrap_##name
#define REAL(name) __real_##name
#else
#define HOOK(name) name
#define REAL(name) __libc_##name
#endif

#ifdef SOD2_BIONIC
/* Threads that look the same function up at once find the same. */
#define NEXT(result, name, parameters, arguments)                                                                       \
  static result REAL(name) parameters {                                                                                 \
    static result(*_Atomic found) parameters;                                                                           \
    result(*real) parameters = atomic_load_explicit(&found, memory_order_relaxed);                                      \
    if (real == NULL) atomic_store(&found, real = (result(*) parameters)dlsym(RTLD_NEXT, #name));                       \
    return real arguments;                                                                                              \
  }
NEXT(void *, malloc, (size_t size), (size))
NEXT(void *, calloc, (size_t count, size_t size), (count, size))
NEXT(void *, realloc, (void *block, size_t size), (block, size))
NEXT(void *, memalign, (size_t alignment, size_t size), (alignment, size))
NEXT(void, free, (void *block), (block))
#else
extern void *REAL(malloc)(size_t size);
extern void *REAL(calloc)(size_t count, size_t size);
extern void *REAL(realloc)(void *block, size_t size);
extern void *REAL(memalign)(size_t alignment, size_t size);
extern void REAL(free)(void *block);
#endif

static _Atomic int64_t live, peak;

int64_t sod2_hook_live(void) { return atomic_load(&live); }
int64_t sod2_hook_peak(void) { return atomic_load(&peak); }
void sod2_hook_reset(void) { atomic_store(&peak, atomic_load(&live)); }

static void count(int64_t bytes) {
  int64_t now = atomic_fetch_add_explicit(&live, bytes, memory_order_relaxed) + bytes;
  int64_t highest = atomic_load_explicit(&peak, memory_order_relaxed);
  while (now > highest &&
         !atomic_compare_exchange_weak_explicit(&peak, &highest, now, memory_order_relaxed, memory_order_relaxed)) {
  }
}

/* ---- heap ------------------------------------------------------------------------------------------------------- */

static int64_t size_of(void *block) { return block == NULL ? 0 : (int64_t)malloc_usable_size(block); }

static void *counted(void *block) {
  count(size_of(block));
  return block;
}

void *HOOK(malloc)(size_t size) { return counted(REAL(malloc)(size)); }
void *HOOK(calloc)(size_t number, size_t size) { return counted(REAL(calloc)(number, size)); }
void *HOOK(memalign)(size_t alignment, size_t size) { return counted(REAL(memalign)(alignment, size)); }
void *HOOK(aligned_alloc)(size_t alignment, size_t size) { return memalign(alignment, size); }

void HOOK(free)(void *block) {
  int error = errno; /* callers rely on free() leaving it alone */
  count(-size_of(block));
  REAL(free)(block);
  errno = error;
}

void *HOOK(realloc)(void *block, size_t size) {
  int64_t old = size_of(block);
  void *moved = REAL(realloc)(block, size);
  if (moved == NULL && size != 0) return NULL; /* the old block is still there */
  count(-old);
  return counted(moved);
}

void *HOOK(reallocarray)(void *block, size_t number, size_t size) {
  size_t total;
  if (__builtin_mul_overflow(number, size, &total)) {
    errno = ENOMEM;
    return NULL;
  }
  return realloc(block, total);
}

int HOOK(posix_memalign)(void **result, size_t alignment, size_t size) {
  if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  int error = errno;
  void *block = memalign(alignment, size);
  errno = error;
  if (block == NULL) return ENOMEM;
  *result = block;
  return 0;
}

static size_t whole_pages(size_t size) {
  size_t page = (size_t)getpagesize();
  return (size + page - 1) / page * page;
}

void *HOOK(valloc)(size_t size) { return memalign((size_t)getpagesize(), size); }
void *HOOK(pvalloc)(size_t size) { return valloc(whole_pages(size)); }

/* ---- anonymous mappings ----------------------------------------------------------------------------------------- */

typedef struct range {
  uintptr_t begin, end;
} range;

/* The counted address ranges: sorted, disjoint, neighbours merged. A fixed table, as the hook itself cannot allocate. */
#define RANGES 16384
static range ranges[RANGES];
static size_t range_count;
static atomic_flag busy = ATOMIC_FLAG_INIT;

static void lock(void) {
  while (atomic_flag_test_and_set_explicit(&busy, memory_order_acquire)) {
  }
}
static void unlock(void) { atomic_flag_clear_explicit(&busy, memory_order_release); }

/* First range that ends at or after `address`. */
static size_t first_reaching(uintptr_t address) {
  size_t low = 0, high = range_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (ranges[middle].end < address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

/* Puts `number` ranges in place of ranges[from, to). */
static void replace(size_t from, size_t to, const range *with, size_t number) {
  if (range_count - (to - from) + number > RANGES) {
    static const char text[] = "memhook: more than 16384 separate anonymous mappings\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) abort();
    abort(); /* a wrong count would be worse */
  }
  memmove(ranges + from + number, ranges + to, sizeof *ranges * (range_count - to));
  memcpy(ranges + from, with, sizeof *with * number);
  range_count = range_count - (to - from) + number;
}

/* Takes [begin, end) out of the set; returns how many bytes of it were in. The lock is held. */
static int64_t take_out(uintptr_t begin, uintptr_t end) {
  size_t from = first_reaching(begin + 1), to = from, kept = 0;
  range rest[2];
  int64_t bytes = 0;
  for (; to < range_count && ranges[to].begin < end; to++) {
    range old = ranges[to];
    if (old.begin < begin) rest[kept++] = (range){old.begin, begin};
    if (old.end > end) rest[kept++] = (range){end, old.end};
    bytes += (int64_t)((old.end < end ? old.end : end) - (old.begin > begin ? old.begin : begin));
  }
  replace(from, to, rest, kept);
  return bytes;
}

/* Puts [begin, end) into the set. The lock is held, and nothing of it is in. */
static void put_in(uintptr_t begin, uintptr_t end) {
  size_t from = first_reaching(begin), to = from;
  range merged = {begin, end};
  for (; to < range_count && ranges[to].begin <= end; to++) {
    if (ranges[to].begin < merged.begin) merged.begin = ranges[to].begin;
    if (ranges[to].end > merged.end) merged.end = ranges[to].end;
  }
  replace(from, to, &merged, 1);
}

/* [address, address + size) was mapped (counted or not) or unmapped; whatever was there before is gone. */
static void mapped(void *address, size_t size, int is_counted) {
  uintptr_t begin = (uintptr_t)address, end = begin + whole_pages(size);
  if (begin == end) return;
  lock();
  int64_t before = take_out(begin, end);
  if (is_counted) put_in(begin, end);
  unlock();
  count((is_counted ? (int64_t)(end - begin) : 0) - before);
}

void *HOOK(mmap)(void *hint, size_t size, int protection, int flags, int file, off_t offset) {
  void *address = (void *)syscall(SYS_mmap, hint, size, protection, flags, file, offset);
  if (address != MAP_FAILED)
    mapped(address, size, (flags & MAP_ANONYMOUS) && !(flags & MAP_STACK) && protection != PROT_NONE);
  return address;
}

void *HOOK(mmap64)(void *hint, size_t size, int protection, int flags, int file, off_t offset) {
  return mmap(hint, size, protection, flags, file, offset);
}

/* Counted down before the pages go: afterwards another thread may already have mapped there. */
int HOOK(munmap)(void *address, size_t size) {
  if ((uintptr_t)address % (uintptr_t)getpagesize() == 0) mapped(address, size, 0);
  return (int)syscall(SYS_munmap, address, size);
}

void *HOOK(mremap)(void *old, size_t old_size, size_t size, int flags, ...) {
  void *fixed = NULL;
  if (flags & MREMAP_FIXED) {
    va_list arguments;
    va_start(arguments, flags);
    fixed = va_arg(arguments, void *);
    va_end(arguments);
  }
  uintptr_t begin = (uintptr_t)old;
  lock();
  int64_t before = take_out(begin, begin + whole_pages(old_size));
  void *address = (void *)syscall(SYS_mremap, old, old_size, size, flags, fixed);
  if (before > 0 && address == MAP_FAILED) put_in(begin, begin + (uintptr_t)before);
  unlock();
  if (address == MAP_FAILED) return address;
  count(-before);
  mapped(address, size, before > 0);
  return address;
}
