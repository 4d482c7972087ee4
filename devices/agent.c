/* Runs one program on the device for the harness, the same way everywhere, whatever shells and tools are there.

     agent [-a MASK] [-m BYTES] [-t SECONDS] PROGRAM ARGUMENTS...

   The program gets a process group of its own, runs on the CPUs of MASK (hexadecimal), and inherits standard output and
   error. Standard input is handed on line by line, but for two lines that the agent obeys itself:

     \001stop    the group is stopped, so that waiting thread pools do not spin; answered by the line \001stopped
     \001cont    it runs again

   When the input ends or is silent for SECONDS, or a hang-up arrives (the harness died, the cable is out), the whole
   group is killed: nothing is left behind. More than BYTES of resident memory, and a program that cannot be started, are
   told on standard output as {"error": ...}. The last line on standard error is \001status N, N being the program's
   status or 128 + its signal; where that line is missing, it was the connection that ended. Linux and Android. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define WATCH_MS 100
#define LINE_CAPACITY 8192
#define USAGE_STATUS 125

typedef struct options {
  unsigned long long mask;
  long long memory_bytes;
  long seconds;
} options;

static pid_t child;
static int child_input; /* -1 once the program has closed it */
static int child_status = -1;
static int stopped;

static void say(int file, const char *text, size_t size) {
  while (size > 0) {
    ssize_t written = write(file, text, size);
    if (written < 0 && errno != EINTR) return; /* nobody listens any more: the end of input follows */
    if (written > 0) {
      text += written;
      size -= (size_t)written;
    }
  }
}

static void say_text(int file, const char *text) { say(file, text, strlen(text)); }

/* In the child: becomes the program; writes why it could not to `report`. */
static void become(const options *o, char **program, int input, int report, const sigset_t *signals) {
  char text[512];
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  setpgid(0, 0);
  dup2(input, STDIN_FILENO);
  sigprocmask(SIG_UNBLOCK, signals, NULL);
  signal(SIGPIPE, SIG_DFL);
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu = 0; cpu < 64; cpu++)
    if (o->mask >> cpu & 1) CPU_SET(cpu, &set);
  cpu_set_t got = set;
  int bound = sched_setaffinity(0, sizeof set, &set) == 0 && sched_getaffinity(0, sizeof got, &got) == 0;
  if (o->mask != 0 && !(bound && CPU_EQUAL(&set, &got))) {
    snprintf(text, sizeof text, "the CPUs of mask %llx cannot be used: they are offline, or there are none", o->mask);
  } else {
    execvp(program[0], program);
    snprintf(text, sizeof text, "could not be started: %s: %s", strerror(errno), program[0]);
  }
  say_text(report, text);
  _exit(errno == ENOENT ? 127 : 126);
}

/* Starts the program; returns 0 when it could not, and has said so. */
static int start(const options *o, char **program, const sigset_t *signals) {
  int input[2], report[2];
  char text[512];
  if (pipe2(input, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0 || (child = fork()) < 0) {
    perror("agent");
    exit(USAGE_STATUS);
  }
  if (child == 0) become(o, program, input[0], report[1], signals);
  setpgid(child, child);
  close(input[0]);
  close(report[1]);
  child_input = input[1];
  ssize_t size = read(report[0], text, sizeof text - 1); /* ends without a byte when the program runs */
  close(report[0]);
  if (size <= 0) return 1;
  text[size] = 0;
  printf("{\"error\": \"%s\"}\n", text);
  fflush(stdout);
  return 0;
}

/* Collects the program's end, or that it stopped; returns 1 when it has ended. */
static int ended(int flags) {
  int status;
  if (child_status >= 0) return 1;
  if (waitpid(child, &status, flags) != child || WIFSTOPPED(status)) return 0;
  child_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return 1;
}

static void obey(const char *line, size_t size) {
  static const char stop[] = "\001stop\n", resume[] = "\001cont\n";
  if (size == strlen(stop) && memcmp(line, stop, size) == 0) {
    kill(-child, SIGSTOP);
    if (!stopped) stopped = !ended(WUNTRACED); /* waits until it has */
    if (stopped) say_text(STDOUT_FILENO, "\001stopped\n");
  } else if (size == strlen(resume) && memcmp(line, resume, size) == 0) {
    stopped = 0;
    kill(-child, SIGCONT);
  } else {
    say(child_input, line, size);
  }
}

/* Reads what there is and obeys the whole lines; returns 0 at the end of input. */
static int read_lines(void) {
  static char text[LINE_CAPACITY];
  static size_t filled;
  ssize_t got = read(STDIN_FILENO, text + filled, sizeof text - filled);
  if (got < 0 && errno == EINTR) return 1;
  if (got <= 0) return 0;
  filled += (size_t)got;
  char *begin = text, *end;
  while ((end = memchr(begin, '\n', filled)) != NULL) {
    size_t size = (size_t)(end - begin) + 1;
    obey(begin, size);
    begin += size;
    filled -= size;
  }
  memmove(text, begin, filled);
  return filled < sizeof text; /* a line without an end is no line of ours */
}

static long long resident_bytes(void) {
  char path[64];
  long long size, pages = 0;
  snprintf(path, sizeof path, "/proc/%d/statm", (int)child);
  FILE *file = fopen(path, "r");
  if (file == NULL) return 0; /* just ended */
  if (fscanf(file, "%lld %lld", &size, &pages) != 2) pages = 0;
  fclose(file);
  return pages * sysconf(_SC_PAGESIZE);
}

/* Passes lines on and watches until the program ends or has to. */
static void serve(const options *o, int signals) {
  struct pollfd files[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
  long silent_ms = 0;
  while (!ended(WNOHANG)) {
    int ready = poll(files, 2, WATCH_MS);
    silent_ms = ready == 0 ? silent_ms + WATCH_MS : 0;
    struct signalfd_siginfo signal_info;
    int got_signal = files[1].revents && read(signals, &signal_info, sizeof signal_info) > 0;
    if (got_signal && signal_info.ssi_signo != SIGCHLD) return;
    if (files[0].revents && !read_lines()) return;
    if (o->seconds > 0 && silent_ms > o->seconds * 1000) return;
    if (o->memory_bytes > 0 && resident_bytes() > o->memory_bytes) {
      printf("{\"error\": \"took more than %.3g GiB of memory\"}\n", (double)o->memory_bytes / (1 << 30));
      fflush(stdout);
      return;
    }
  }
}

int main(int argc, char **argv) {
  options o = {0};
  for (int option; (option = getopt(argc, argv, "+a:m:t:")) != -1;) {
    if (option == 'a') o.mask = strtoull(optarg, NULL, 16);
    if (option == 'm') o.memory_bytes = strtoll(optarg, NULL, 10);
    if (option == 't') o.seconds = strtol(optarg, NULL, 10);
    if (option == '?') return USAGE_STATUS;
  }
  if (optind == argc) {
    fprintf(stderr, "usage: %s [-a MASK] [-m BYTES] [-t SECONDS] PROGRAM ARGUMENTS...\n", argv[0]);
    return USAGE_STATUS;
  }
  static const int watched[] = {SIGCHLD, SIGHUP, SIGINT, SIGTERM};
  sigset_t signals;
  sigemptyset(&signals);
  for (size_t i = 0; i < sizeof watched / sizeof *watched; i++) sigaddset(&signals, watched[i]);
  sigprocmask(SIG_BLOCK, &signals, NULL);
  signal(SIGPIPE, SIG_IGN);
  if (start(&o, argv + optind, &signals)) serve(&o, signalfd(-1, &signals, SFD_CLOEXEC));
  kill(-child, SIGKILL);
  while (!ended(0)) {
  }
  char text[32];
  snprintf(text, sizeof text, "\001status %d\n", child_status);
  say_text(STDERR_FILENO, text);
  return child_status;
}
