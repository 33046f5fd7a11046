/* A disk that is full, for LD_PRELOAD: below one folder the n-th call that writes (open to write, write, fsync, rename,
   mkdir, ftruncate) fails with ENOSPC, and all that follow it or none. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char folder[PATH_MAX];
static long number, count;
static int once;

void full_disk_fail(const char *below, long which, int only)
{
    snprintf(folder, sizeof folder, "%s", below);
    number = which, once = only, count = 0;
}

long full_disk_seen(void) { return count; }

static int fails(void)
{
    const long now = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (!number || (once ? now != number : now < number)) return 0;
    errno = ENOSPC;
    return 1;
}

static int below(const char *path)
{
    if (!*folder || !path) return 0;
    char here[PATH_MAX];
    if (*path != '/') return getcwd(here, sizeof here) && !strncmp(here, folder, strlen(folder));
    return !strncmp(path, folder, strlen(folder));
}

static int open_below(int file)
{
    if (!*folder) return 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int writes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                                                             \
    int name(const char *path, int flags, ...)                                                                                 \
    {                                                                                                                          \
        va_list more;                                                                                                          \
        va_start(more, flags);                                                                                                 \
        const mode_t mode = va_arg(more, mode_t);                                                                              \
        va_end(more);                                                                                                          \
        if (writes(flags) && below(path) && fails()) return -1;                                                                \
        return REAL(name)(path, flags, mode);                                                                                  \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                                           \
    int name(int at, const char *path, int flags, ...)                                                                         \
    {                                                                                                                          \
        va_list more;                                                                                                          \
        va_start(more, flags);                                                                                                 \
        const mode_t mode = va_arg(more, mode_t);                                                                              \
        va_end(more);                                                                                                          \
        if (writes(flags) && (*path == '/' || at == AT_FDCWD ? below(path) : open_below(at)) && fails()) return -1;            \
        return REAL(name)(at, path, flags, mode);                                                                              \
    }
OPENAT(openat)
OPENAT(openat64)

FILE *fopen(const char *path, const char *mode)
{
    if (*mode != 'r' && below(path) && fails()) return NULL;
    return REAL(fopen)(path, mode);
}

FILE *fopen64(const char *path, const char *mode)
{
    if (*mode != 'r' && below(path) && fails()) return NULL;
    return REAL(fopen64)(path, mode);
}

ssize_t write(int file, const void *data, size_t size)
{
    if (open_below(file) && fails()) return -1;
    return REAL(write)(file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t place)
{
    if (open_below(file) && fails()) return -1;
    return REAL(pwrite64)(file, data, size, place);
}

ssize_t writev(int file, const struct iovec *parts, int size)
{
    if (open_below(file) && fails()) return -1;
    return REAL(writev)(file, parts, size);
}

int fsync(int file)
{
    if (open_below(file) && fails()) return -1;
    return REAL(fsync)(file);
}

int ftruncate64(int file, off64_t size)
{
    if (open_below(file) && fails()) return -1;
    return REAL(ftruncate64)(file, size);
}

int rename(const char *from, const char *to)
{
    if (below(to) && fails()) return -1;
    return REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    if (below(path) && fails()) return -1;
    return REAL(mkdir)(path, mode);
}
