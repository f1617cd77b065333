/* Let the k-th file-system call below a folder fail, or end or stop the process there. Loaded with LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[4096];
static long calls, at = -1;
static int what, lasts;

/* what > 0: an error number; what < 0: a signal. lasts: the error stays, as on a full disk. at < 0: only count. */
void fault_arm(const char *below, long call, int kind, int stays) {
  strncpy(folder, below, sizeof folder - 1);
  calls = 0, at = call, what = kind, lasts = stays;
}
long fault_calls(void) { return calls; }

static int is_hit(const char *path) {
  if (!folder[0] || !path || strncmp(path, folder, strlen(folder))) return 0;
  long call = __atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST);
  if (at < 0 || call < at || (call > at && !lasts)) return 0;
  if (what < 0) { kill(getpid(), -what); return 0; }
  errno = what;
  return 1;
}
static int is_hit_fd(int fd) {
  char link[64], path[4096];
  if (!folder[0]) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return 0;
  path[size] = 0;
  return is_hit(path);
}
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRITES(flags) ((flags) & (O_CREAT | O_WRONLY | O_RDWR))
#define OPEN(name)                                                        \
  int name(const char *path, int flags, ...) {                            \
    va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
    if (WRITES(flags) && is_hit(path)) return -1;                         \
    return REAL(name)(path, flags, mode);                                 \
  }
OPEN(open)
OPEN(open64)
ssize_t write(int fd, const void *data, size_t size) { return is_hit_fd(fd) ? -1 : REAL(write)(fd, data, size); }
ssize_t read(int fd, void *data, size_t size) { return is_hit_fd(fd) ? -1 : REAL(read)(fd, data, size); }
int fsync(int fd) { return is_hit_fd(fd) ? -1 : REAL(fsync)(fd); }
int unlinkat(int fd, const char *path, int flags) {
  return (*path == '/' ? is_hit(path) : is_hit_fd(fd)) ? -1 : REAL(unlinkat)(fd, path, flags);
}
int rename(const char *one, const char *two) { return is_hit(one) ? -1 : REAL(rename)(one, two); }
int renameat2(int a, const char *one, int b, const char *two, unsigned flags) {
  return is_hit(one) ? -1 : REAL(renameat2)(a, one, b, two, flags);
}
int link(const char *one, const char *two) { return is_hit(one) ? -1 : REAL(link)(one, two); }
int unlink(const char *path) { return is_hit(path) ? -1 : REAL(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return is_hit(path) ? -1 : REAL(mkdir)(path, mode); }
int rmdir(const char *path) { return is_hit(path) ? -1 : REAL(rmdir)(path); }
