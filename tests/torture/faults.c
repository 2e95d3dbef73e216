/* A preloaded library that counts, records and spoils what a process does to the files beneath one directory.

   TORTURE_ROOT names the directory, TORTURE_PLAN a file both sides map (struct plan; its Python side is injection.py),
   TORTURE_RECORD, if set, a file that every change is appended to, for replay.py. Without TORTURE_ROOT it does nothing.
   SQLite's shared memory (-shm) is left out: it is made anew after a crash. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, TEAR, FAIL, FAIL_ON, SHORT, DELAY };                  /* what to do at the call */
enum { CREATE = 1, WRITE, SYNC, TRUNCATE, RENAME, UNLINK, MKDIR, FAILED_SYNC, READ }; /* what the call is */

struct plan {
    uint32_t action, error; /* of enum 1; the errno of FAIL and FAIL_ON */
    uint64_t at;            /* 1 is the next call */
    uint64_t count;         /* calls since it was armed */
    uint64_t fired;
    uint32_t calls;         /* bit mask of enum 2: which calls are counted */
    uint32_t delay_us;
};

struct header { /* of a record; the two paths, relative to the root, and the data follow */
    uint32_t kind, path, other;
    uint32_t padding;
    uint64_t offset, data;
};

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* the record is in the order of the calls */
static struct plan *plan;
static char root[4096];
static size_t root_length;
static int record = -1;

static int ready(void) {
    if (plan) return 1;
    const char *directory = getenv("TORTURE_ROOT"), *control = getenv("TORTURE_PLAN");
    if (!directory || !control) return 0;
    pthread_mutex_lock(&order);
    if (!plan) {
        int fd = syscall(SYS_openat, AT_FDCWD, control, O_RDWR | O_CLOEXEC);
        void *mapped = mmap(NULL, sizeof(struct plan), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        syscall(SYS_close, fd);
        if (mapped == MAP_FAILED) abort();
        const char *path = getenv("TORTURE_RECORD");
        if (path) {
            int made = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
            record = fcntl(made, F_DUPFD_CLOEXEC, 700); /* out of the way of the low numbers a program counts on */
            syscall(SYS_close, made);
        }
        snprintf(root, sizeof root, "%s", directory);
        root_length = strlen(root);
        plan = mapped;
    }
    pthread_mutex_unlock(&order);
    return 1;
}

/* The path beneath the root, or NULL for one that is none of our business. */
static const char *beneath(const char *path) {
    size_t length = strlen(path);
    if (strncmp(path, root, root_length) || (path[root_length] != '/' && path[root_length])) return NULL;
    if (length > 4 && !strcmp(path + length - 4, "-shm")) return NULL;
    return path[root_length] ? path + root_length + 1 : path + root_length;
}

static const char *of_fd(int fd, char *buffer) {
    char link[32];
    if (fd < 0 || !ready()) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, 4095);
    if (length <= 0) return NULL;
    buffer[length] = 0;
    return beneath(buffer);
}

static const char *of_name(int folder, const char *name, char *buffer) {
    if (!ready()) return NULL;
    if (name[0] == '/') return beneath(strcpy(buffer, name));
    char parent[4096];
    if (folder == AT_FDCWD) {
        if (syscall(SYS_getcwd, parent, sizeof parent) < 0) return NULL;
    } else {
        char link[32];
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, parent, 4095);
        if (length <= 0) return NULL;
        parent[length] = 0;
    }
    if (snprintf(buffer, 4096, "%s/%s", parent, name) >= 4096) return NULL;
    return beneath(buffer);
}

static void note(int kind, const char *path, const char *other, uint64_t offset, const void *data, uint64_t length) {
    if (record < 0) return;
    struct header header = {kind, strlen(path), other ? strlen(other) : 0, 0, offset, length};
    struct iovec parts[] = {
        {&header, sizeof header}, {(void *)path, header.path}, {(void *)other, header.other}, {(void *)data, length}};
    syscall(SYS_writev, record, parts, 4); /* one call: several processes may append */
}

/* What to do with this call: COUNT means carry it out. KILL does not return. */
static int decided(int kind) {
    if (plan->action == OFF || !(plan->calls >> kind & 1)) return COUNT;
    uint64_t nth = __atomic_add_fetch(&plan->count, 1, __ATOMIC_SEQ_CST);
    int due = nth == plan->at || (plan->action == FAIL_ON && nth > plan->at);
    if (!due || plan->action == COUNT) return COUNT;
    __atomic_add_fetch(&plan->fired, 1, __ATOMIC_SEQ_CST);
    if (plan->action == KILL || (plan->action == TEAR && kind != WRITE)) {
        syscall(SYS_kill, getpid(), SIGKILL);
        pause();
    }
    if (plan->action == DELAY) {
        usleep(plan->delay_us);
        return COUNT;
    }
    if (plan->action == SHORT && kind != WRITE && kind != READ) return COUNT;
    return plan->action;
}

#define FAILS(action) ((action) == FAIL || (action) == FAIL_ON)

static ssize_t written(int fd, const void *data, size_t size, off_t offset, int at_offset) {
    char buffer[4096];
    const char *path = of_fd(fd, buffer);
    if (!path) return at_offset ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    pthread_mutex_lock(&order);
    int action = decided(WRITE);
    if (FAILS(action)) {
        pthread_mutex_unlock(&order);
        errno = plan->error;
        return -1;
    }
    if ((action == SHORT || action == TEAR) && size > 1) size /= 2;
    if (!at_offset) {
        int flags = syscall(SYS_fcntl, fd, F_GETFL);
        offset = syscall(SYS_lseek, fd, 0, flags & O_APPEND ? SEEK_END : SEEK_CUR);
    }
    ssize_t done = at_offset ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    if (action == TEAR) {
        syscall(SYS_kill, getpid(), SIGKILL);
        pause();
    }
    int failure = errno;
    if (done > 0) note(WRITE, path, NULL, offset, data, done);
    pthread_mutex_unlock(&order);
    errno = failure;
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return written(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return written(fd, data, size, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return written(fd, data, size, offset, 1); }

static ssize_t got(int fd, void *data, size_t size, off_t offset, int at_offset) {
    char buffer[4096];
    if (of_fd(fd, buffer)) {
        int action = decided(READ);
        if (FAILS(action)) {
            errno = plan->error;
            return -1;
        }
        if (action == SHORT && size > 1) size /= 2;
    }
    return at_offset ? syscall(SYS_pread64, fd, data, size, offset) : syscall(SYS_read, fd, data, size);
}

ssize_t read(int fd, void *data, size_t size) { return got(fd, data, size, 0, 0); }
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return got(fd, data, size, offset, 1); }
ssize_t pread64(int fd, void *data, size_t size, off64_t offset) { return got(fd, data, size, offset, 1); }

/* One change that either happens wholly or not at all: `call` carries it out. */
#define CHANGE(kind, path, other, offset, call) \
    do { \
        pthread_mutex_lock(&order); \
        if (FAILS(decided(kind))) { \
            if ((kind) == SYNC) note(FAILED_SYNC, path, NULL, 0, NULL, 0); \
            pthread_mutex_unlock(&order); \
            errno = plan->error; \
            return -1; \
        } \
        int done = (call), failure = errno; \
        if (done >= 0) note(kind, path, other, offset, NULL, 0); \
        pthread_mutex_unlock(&order); \
        errno = failure; \
        return done; \
    } while (0)

int fsync(int fd) {
    char buffer[4096];
    const char *path = of_fd(fd, buffer);
    if (!path) return syscall(SYS_fsync, fd);
    CHANGE(SYNC, path, NULL, 0, syscall(SYS_fsync, fd));
}

int fdatasync(int fd) {
    char buffer[4096];
    const char *path = of_fd(fd, buffer);
    if (!path) return syscall(SYS_fdatasync, fd);
    CHANGE(SYNC, path, NULL, 0, syscall(SYS_fdatasync, fd));
}

int ftruncate(int fd, off_t length) {
    char buffer[4096];
    const char *path = of_fd(fd, buffer);
    if (!path) return syscall(SYS_ftruncate, fd, length);
    CHANGE(TRUNCATE, path, NULL, length, syscall(SYS_ftruncate, fd, length));
}

int ftruncate64(int fd, off64_t length) { return ftruncate(fd, length); }

int renameat(int from, const char *old, int to, const char *new) {
    char first[4096], second[4096];
    const char *path = of_name(from, old, first), *other = of_name(to, new, second);
    if (!path || !other) return syscall(SYS_renameat2, from, old, to, new, 0);
    CHANGE(RENAME, path, other, 0, syscall(SYS_renameat2, from, old, to, new, 0));
}

int rename(const char *old, const char *new) { return renameat(AT_FDCWD, old, AT_FDCWD, new); }

/* Counted as the rename it stands for. A record that held one could not be replayed: the store makes no links. */
int linkat(int from, const char *old, int to, const char *new, int flags) {
    char first[4096], second[4096];
    const char *path = of_name(from, old, first), *other = of_name(to, new, second);
    if (!path || !other) return syscall(SYS_linkat, from, old, to, new, flags);
    CHANGE(RENAME, path, other, 0, syscall(SYS_linkat, from, old, to, new, flags));
}

int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int folder, const char *name, int flags) {
    char buffer[4096];
    const char *path = of_name(folder, name, buffer);
    if (!path) return syscall(SYS_unlinkat, folder, name, flags);
    CHANGE(UNLINK, path, NULL, 0, syscall(SYS_unlinkat, folder, name, flags));
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    char buffer[4096];
    const char *path = of_name(folder, name, buffer);
    if (!path) return syscall(SYS_mkdirat, folder, name, mode);
    CHANGE(MKDIR, path, NULL, 0, syscall(SYS_mkdirat, folder, name, mode));
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

static int opened(int folder, const char *name, int flags, mode_t mode) {
    char buffer[4096];
    const char *path = flags & (O_CREAT | O_TRUNC) ? of_name(folder, name, buffer) : NULL;
    struct stat64 found;
    int exists = path && !fstatat64(folder, name, &found, AT_SYMLINK_NOFOLLOW);
    if (path && !exists && flags & O_CREAT) CHANGE(CREATE, path, NULL, 0, syscall(SYS_openat, folder, name, flags, mode));
    if (path && exists && flags & O_TRUNC) CHANGE(TRUNCATE, path, NULL, 0, syscall(SYS_openat, folder, name, flags, mode));
    return syscall(SYS_openat, folder, name, flags, mode);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, mode_t); \
        va_end(rest); \
    }

int open(const char *name, int flags, ...) { MODE(flags); return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags); return opened(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags); return opened(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags); return opened(folder, name, flags, mode); }

/* Copies within the kernel would pass the record by: their callers fall back to reading and writing. */
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
    char buffer[4096];
    if (!of_fd(out, buffer)) return syscall(SYS_sendfile, out, in, offset, size);
    errno = EINVAL;
    return -1;
}

ssize_t sendfile(int out, int in, off_t *offset, size_t size) { return sendfile64(out, in, offset, size); }

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags) {
    char buffer[4096];
    if (!of_fd(out, buffer)) return syscall(SYS_copy_file_range, in, from, out, to, size, flags);
    errno = EXDEV;
    return -1;
}
