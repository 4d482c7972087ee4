/* What an executable needs of Android's start files where there is no NDK to take them from (android.py): the entry,
   which calls the C library's own, the note that makes the linker accept it, and the one name by which the headers that
   it is compiled with differ from Android's. Written after AOSP's crtbegin.c and libc_init_dynamic.cpp. */
#include <stddef.h>

typedef struct structors {
  void (**before)(void), (**begin)(void), (**end)(void);
  size_t before_count, begin_count, end_count;
} structors;

int main(int argc, char **argv, char **environment);
__attribute__((noreturn)) void __libc_init(void *stack, void (*at_exit)(void), int (*program)(int, char **, char **),
                                           const structors *functions);
int *__errno(void);

__attribute__((visibility("hidden"))) int *__errno_location(void) { return __errno(); }

__attribute__((used, noreturn)) static void begin(void *stack) {
  static const structors none; /* C has no constructors */
  __libc_init(stack, NULL, main, &none);
}

__asm__(
    ".text\n.globl _start\n.type _start, %function\n"
    "_start:\n mov x29, #0\n mov x30, #0\n mov x0, sp\n b begin\n");

__attribute__((used, section(".note.android.ident"), aligned(4))) static const struct note {
  int name_bytes, bytes, type;
  char name[8];
  int api;
} note = {8, 4, 1, "Android", 24};
