/* Names of Android's C library and liblog that musl lacks, as far as onnxruntime's Android library asks for them: with
   them preloaded, musl's loader stands in for Android's linker64 on the fake phone. musl's types of pthreads have the
   sizes of Android's, other C libraries' have not. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int __libc_start_main(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void));
int *__errno_location(void);
long long strtoll(const char *, char **, int);
unsigned long long strtoull(const char *, char **, int);

/* In musl these two call the program's malloc and aligned_alloc; in Android's library no function calls another's name. */
void *calloc(size_t number, size_t size) {
  void *(*real)(size_t) = (void *(*)(size_t))dlsym(RTLD_NEXT, "malloc");
  size_t total;
  void *block = __builtin_mul_overflow(number, size, &total) ? NULL : real(total);
  return block == NULL ? NULL : memset(block, 0, total);
}

void *memalign(size_t alignment, size_t size) {
  return ((void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc"))(alignment, size);
}

char __sF[3 * 152]; /* stdin, stdout and stderr of old programs, which nothing here writes to */

static void nothing(void) {}

void __libc_init(void *stack, void (*at_exit)(void), int (*program)(int, char **, char **), const void *functions) {
  long *words = stack;
  (void)at_exit, (void)functions;
  __libc_start_main(program, (int)words[0], (char **)(words + 1), nothing, nothing, nothing);
}

int *__errno(void) { return __errno_location(); }

/* Android numbers what sysconf(3) is asked for in its own way. */
long sysconf(int name) {
  static const struct {
    int android, musl;
  } names[] = {{6, _SC_CLK_TCK},           {0x27, _SC_PAGESIZE},         {0x28, _SC_PAGESIZE},    {0x60, _SC_NPROCESSORS_CONF},
               {0x61, _SC_NPROCESSORS_ONLN}, {0x62, _SC_PHYS_PAGES},       {0x63, _SC_AVPHYS_PAGES}};
  long (*real)(int) = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (names[i].android == name) return real(names[i].musl);
  return -1;
}

int __android_log_vprint(int level, const char *tag, const char *format, va_list arguments) {
  dprintf(2, "[log %d %s] ", level, tag);
  return vdprintf(2, format, arguments);
}

int __android_log_print(int level, const char *tag, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int written = __android_log_vprint(level, tag, format, arguments);
  va_end(arguments);
  return written;
}

int __android_log_write(int level, const char *tag, const char *text) {
  return __android_log_print(level, tag, "%s\n", text);
}

void android_set_abort_message(const char *text) { dprintf(2, "[abort] %s\n", text); }

int __cxa_thread_atexit_impl(void (*function)(void *), void *object, void *library) {
  (void)function, (void)object, (void)library;
  return 0;
}

int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library) {
  (void)before, (void)parent, (void)child, (void)library;
  return 0;
}

int __system_property_get(const char *name, char *value) {
  (void)name;
  value[0] = 0;
  return 0;
}

char *__gnu_strerror_r(int code, char *text, size_t size) {
  strerror_r(code, text, size);
  return text;
}

/* The checks of _FORTIFY_SOURCE, which know how large an object is. */
void *__memcpy_chk(void *to, const void *from, size_t size, size_t room) { return (void)room, memcpy(to, from, size); }
void *__memset_chk(void *to, int value, size_t size, size_t room) { return (void)room, memset(to, value, size); }
char *__strchr_chk(const char *text, int letter, size_t room) { return (void)room, strchr(text, letter); }
size_t __strlen_chk(const char *text, size_t room) { return (void)room, strlen(text); }
int __open_2(const char *path, int flags) { return open(path, flags); }

int __vsnprintf_chk(char *to, size_t size, int flags, size_t room, const char *format, va_list arguments) {
  return (void)flags, (void)room, vsnprintf(to, size, format, arguments);
}

int __vsprintf_chk(char *to, int flags, size_t room, const char *format, va_list arguments) {
  return (void)flags, vsnprintf(to, room, format, arguments);
}

int __FD_ISSET_chk(int file, void *set, size_t size) {
  return (void)size, (int)(((unsigned long *)set)[file / 64] >> file % 64 & 1);
}

void __FD_SET_chk(int file, void *set, size_t size) {
  (void)size;
  ((unsigned long *)set)[file / 64] |= 1ul << file % 64;
}

long long strtoll_l(const char *text, char **end, int base, void *locale) {
  return (void)locale, strtoll(text, end, base);
}

unsigned long long strtoull_l(const char *text, char **end, int base, void *locale) {
  return (void)locale, strtoull(text, end, base);
}
