/* What a program does to the files below one directory, in the order in which it did it.
 *
 *     LD_PRELOAD=shim.so POWER_ROOT=/data POWER_TRACE=/elsewhere/trace program
 *
 * Every call that changes a file, or a name, below POWER_ROOT appends one record to POWER_TRACE, by one write to a file
 * opened with O_APPEND: records of all threads and all processes (children inherit the environment) lie one after the
 * other. tests.power.trace reads them and says what each one holds; tests.power.disk makes of them the directory as a
 * disk could have it after a power cut.
 *
 * When: a change is recorded after it was made, the begin of a sync before it and its end after it. So whoever acts on
 * the news that something was done finds it in the trace. Where two threads race, something may be recorded later than
 * it was done, never earlier: a disk is thought to know less than it does.
 *
 * POWER_KILL="POINT N FILE" makes the first process that comes to a point for the Nth time die there by SIGKILL, if it can
 * make FILE: so it happens once. Points: write, written, sync, synced (before and after the call, on a file below the
 * root), answer, answered (before and after the first send on a socket that follows the Nth sync). POWER_TRACE may be
 * missing then.
 *
 * A record that cannot be written ends the process: a trace with a hole would prove nothing. What we cannot see (mmap,
 * stdio) is recorded as such, and the reader decides; what has a slower way that we can see is refused (sendfile).
 *
 * Files are known by what the descriptor says (fstat, /proc/self/fd), not by tables of ours: dup and fork cost nothing
 * to get right. For a socket that is one fstat per write.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* The same numbers are in trace.py. */
enum { CREATE = 1, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, RMDIR, LINK, MARK, UNSEEN };

struct head {
    uint32_t size; /* of the record, this included */
    uint32_t what;
    uint64_t inode;
    uint64_t a;
    uint64_t b;
};

static char root[PATH_MAX];
static size_t root_length; /* 0: nothing is followed */
static const char *trace; /* a copy: a process that changes its title writes over its environment */
static atomic_uint_fast64_t syncs;

#define REAL(name)                             \
    static __typeof__(name) *real;             \
    if (!real)                                 \
        real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

/* Points at which to die. */
enum { NOWHERE, BEFORE_WRITE, AFTER_WRITE, BEFORE_SYNC, AFTER_SYNC, BEFORE_ANSWER, AFTER_ANSWER };
static const char *const points[] = {"", "write", "written", "sync", "synced", "answer", "answered"};

static int deadly; /* one of these */
static unsigned long deadly_at;
static char deadly_once[PATH_MAX];
static atomic_ulong times;
static atomic_int answering; /* the Nth sync has ended: the next answer counts */

static void give_up(const char *why);

__attribute__((constructor)) static void begin(void) {
    const char *named = getenv("POWER_ROOT"), *kill_at = getenv("POWER_KILL");
    char point[32];
    trace = getenv("POWER_TRACE") ? strdup(getenv("POWER_TRACE")) : NULL;
    if (named && realpath(named, root))
        root_length = strlen(root);
    if (!kill_at)
        return;
    if (sscanf(kill_at, "%31s %lu %4095s", point, &deadly_at, deadly_once) == 3)
        for (int each = BEFORE_WRITE; each <= AFTER_ANSWER; each++)
            if (strcmp(point, points[each]) == 0)
                deadly = each;
    if (!deadly)
        give_up("POWER_KILL: it is POINT N FILE");
}

static void die(void) {
    long fd = syscall(SYS_openat, AT_FDCWD, deadly_once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
}

/* Nearly always one comparison. */
#define POINT(point, fd)        \
    do {                        \
        if (deadly == (point))  \
            at_point(fd);       \
    } while (0)

static int follows(int fd, struct stat *found);

static void at_point(int fd) {
    struct stat found;
    if (follows(fd, &found) && atomic_fetch_add(&times, 1) + 1 == deadly_at)
        die();
}

/* -- records */

static void give_up(const char *why) {
    static const char told[] = "power shim: ";
    struct iovec parts[] = {{(void *)told, sizeof told - 1}, {(void *)why, strlen(why)}, {"\n", 1}};
    syscall(SYS_writev, 2, parts, 3);
    abort();
}

/* Two parts of text; between them a NUL when there are two. */
static void record(int what, uint64_t inode, uint64_t a, uint64_t b, const void *one, size_t one_bytes,
                   const char *two) {
    if (!trace)
        return;
    int saved = errno;
    size_t two_bytes = two ? strlen(two) : 0;
    struct head head = {(uint32_t)(sizeof head + one_bytes + two_bytes + (two ? 1 : 0)), (uint32_t)what, inode, a, b};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)one, one_bytes}, {"", two ? 1 : 0}, {(void *)two, two_bytes}};
    long fd = syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_writev, fd, parts, 4) != (long)head.size)
        give_up("cannot write to POWER_TRACE");
    syscall(SYS_close, fd);
    errno = saved;
}

/* -- what is ours to follow */

static const char *below_root(const char *path) {
    if (!root_length || strncmp(path, root, root_length) != 0)
        return NULL;
    if (path[root_length] == 0)
        return path + root_length; /* the root itself has the empty name */
    return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

/* Whether this descriptor is a file or directory below the root. errno stays. */
static int follows(int fd, struct stat *found) {
    char path[PATH_MAX];
    int saved = errno;
    int ours = root_length && fstat(fd, found) == 0 && (S_ISREG(found->st_mode) || S_ISDIR(found->st_mode)) &&
               path_of(fd, path) && below_root(path);
    errno = saved;
    return ours;
}

/* The name below the root that `path`, as seen from `dir`, has or had; NULL when it is elsewhere. `into` is the room
 * for it: PATH_MAX bytes. Only its directory has to exist. */
static const char *name_below(int dir, const char *path, char *into) {
    char whole[2 * PATH_MAX], resolved[PATH_MAX];
    int saved = errno;
    const char *name = NULL;
    if (!root_length)
        return NULL;
    if (path[0] == '/' || dir == AT_FDCWD)
        snprintf(whole, sizeof whole, "%s", path);
    else if (path_of(dir, resolved))
        snprintf(whole, sizeof whole, "%s/%s", resolved, path);
    else
        return NULL;
    for (size_t end = strlen(whole); end > 1 && whole[end - 1] == '/';)
        whole[--end] = 0;
    char *slash = strrchr(whole, '/');
    const char *base = slash ? slash + 1 : whole;
    if (slash == whole)
        snprintf(resolved, sizeof resolved, "/");
    else if (slash)
        *slash = 0;
    if (slash == whole || realpath(slash ? whole : ".", resolved)) {
        if ((size_t)snprintf(into, PATH_MAX, "%s/%s", resolved, base) >= PATH_MAX)
            give_up("a path is too long");
        name = below_root(into);
    }
    errno = saved;
    return name;
}

static void unseen(const char *what, const char *name) {
    record(UNSEEN, 0, 0, 0, what, strlen(what), name);
}

/* -- open */

static int exists(int dir, const char *path) {
    struct stat found;
    int saved = errno;
    int there = fstatat(dir, path, &found, 0) == 0;
    errno = saved;
    return there;
}

static int opened(int fd, int flags, int was_there) {
    char path[PATH_MAX];
    struct stat found;
    if (fd < 0 || !follows(fd, &found) || !path_of(fd, path))
        return fd;
    const char *name = below_root(path);
    if ((flags & O_TMPFILE) == O_TMPFILE)
        unseen("O_TMPFILE", name);
    else if (!was_there)
        record(CREATE, found.st_ino, 0, 0, name, strlen(name), NULL);
    else if (flags & O_TRUNC)
        record(TRUNCATE, found.st_ino, 0, 0, NULL, 0, NULL);
    return fd;
}

#define OPEN(function, dir, before, call)                                   \
    int function {                                                          \
        mode_t mode = 0;                                                    \
        if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {          \
            va_list rest;                                                   \
            va_start(rest, flags);                                          \
            mode = va_arg(rest, mode_t);                                    \
            va_end(rest);                                                   \
        }                                                                   \
        before;                                                             \
        int was_there = !root_length || !(flags & O_CREAT) || exists(dir, path); \
        return opened(call, flags, was_there);                              \
    }

OPEN(open(const char *path, int flags, ...), AT_FDCWD, REAL(open), real(path, flags, mode))
OPEN(open64(const char *path, int flags, ...), AT_FDCWD, REAL(open64), real(path, flags, mode))
OPEN(openat(int dir, const char *path, int flags, ...), dir, REAL(openat), real(dir, path, flags, mode))
OPEN(openat64(int dir, const char *path, int flags, ...), dir, REAL(openat64), real(dir, path, flags, mode))

int creat(const char *path, mode_t mode) {
    return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int creat64(const char *path, mode_t mode) {
    return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

static void by_stdio(const char *path, const char *how) {
    char into[PATH_MAX];
    const char *name = strpbrk(how, "wa+") ? name_below(AT_FDCWD, path, into) : NULL;
    if (name)
        unseen("stdio", name);
}

FILE *fopen(const char *path, const char *how) {
    REAL(fopen);
    FILE *file = real(path, how);
    if (file)
        by_stdio(path, how);
    return file;
}

FILE *fopen64(const char *path, const char *how) {
    REAL(fopen64);
    FILE *file = real(path, how);
    if (file)
        by_stdio(path, how);
    return file;
}

/* -- contents */

static void wrote(int fd, const void *data, ssize_t bytes, off_t at) {
    struct stat found;
    if (bytes <= 0 || !follows(fd, &found))
        return;
    if (at < 0)
        at = lseek(fd, 0, SEEK_CUR) - bytes;
    record(WRITE, found.st_ino, (uint64_t)at, 0, data, (size_t)bytes, NULL);
}

static void wrote_parts(int fd, const struct iovec *parts, int count, ssize_t bytes, off_t at) {
    struct stat found;
    if (bytes <= 0 || !follows(fd, &found))
        return;
    char *whole = malloc((size_t)bytes);
    if (!whole)
        give_up("no memory");
    size_t done = 0;
    for (int each = 0; each < count && done < (size_t)bytes; each++) {
        size_t length = parts[each].iov_len < (size_t)bytes - done ? parts[each].iov_len : (size_t)bytes - done;
        memcpy(whole + done, parts[each].iov_base, length);
        done += length;
    }
    wrote(fd, whole, bytes, at);
    free(whole);
}

ssize_t write(int fd, const void *data, size_t bytes) {
    REAL(write);
    POINT(BEFORE_WRITE, fd);
    ssize_t done = real(fd, data, bytes);
    wrote(fd, data, done, -1);
    POINT(AFTER_WRITE, fd);
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at) {
    REAL(pwrite);
    ssize_t done = real(fd, data, bytes, at);
    wrote(fd, data, done, at);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at) {
    REAL(pwrite64);
    ssize_t done = real(fd, data, bytes, at);
    wrote(fd, data, done, at);
    return done;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    ssize_t done = real(fd, parts, count);
    wrote_parts(fd, parts, count, done, -1);
    return done;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    REAL(pwritev);
    ssize_t done = real(fd, parts, count, at);
    wrote_parts(fd, parts, count, done, at);
    return done;
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    REAL(pwritev64);
    ssize_t done = real(fd, parts, count, at);
    wrote_parts(fd, parts, count, done, at);
    return done;
}

static int cut(int fd, int failed, uint64_t length) {
    struct stat found;
    if (!failed && follows(fd, &found))
        record(TRUNCATE, found.st_ino, length, 0, NULL, 0, NULL);
    return failed;
}

int ftruncate(int fd, off_t length) {
    REAL(ftruncate);
    return cut(fd, real(fd, length), (uint64_t)length);
}

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    return cut(fd, real(fd, length), (uint64_t)length);
}

int truncate(const char *path, off_t length) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int failed = fd < 0 ? -1 : ftruncate(fd, length);
    if (fd >= 0)
        close(fd);
    return failed;
}

int truncate64(const char *path, off64_t length) {
    return truncate(path, length);
}

void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t from) {
    struct stat found;
    if (fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE && follows(fd, &found))
        unseen("mmap", "");
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, from);
}

void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t from) {
    return mmap(at, bytes, protection, flags, fd, from);
}

int posix_fallocate(int fd, off_t from, off_t bytes) {
    struct stat found;
    REAL(posix_fallocate);
    if (follows(fd, &found))
        unseen("fallocate", "");
    return real(fd, from, bytes);
}

int fallocate(int fd, int how, off_t from, off_t bytes) {
    struct stat found;
    REAL(fallocate);
    if (follows(fd, &found))
        unseen("fallocate", "");
    return real(fd, how, from, bytes);
}

/* Copies inside the kernel: who is refused them copies by read and write. */
static int refused(int fd, int error) {
    struct stat found;
    if (!follows(fd, &found))
        return 0;
    errno = error;
    return 1;
}

ssize_t sendfile(int to, int from, off_t *at, size_t bytes) {
    REAL(sendfile);
    return refused(to, ENOTSOCK) ? -1 : real(to, from, at, bytes);
}

ssize_t sendfile64(int to, int from, off64_t *at, size_t bytes) {
    REAL(sendfile64);
    return refused(to, ENOTSOCK) ? -1 : real(to, from, at, bytes);
}

ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t bytes, unsigned flags) {
    REAL(copy_file_range);
    return refused(to, EXDEV) ? -1 : real(from, from_at, to, to_at, bytes, flags);
}

/* -- what makes it last */

static int synced(int fd, int (*real)(int)) {
    char path[PATH_MAX];
    struct stat found;
    if (!follows(fd, &found) || !path_of(fd, path))
        return real(fd);
    const char *name = below_root(path);
    uint64_t number = (uint64_t)getpid() << 32 | (uint32_t)atomic_fetch_add(&syncs, 1);
    record(SYNC_BEGIN, found.st_ino, number, 0, name, strlen(name), NULL);
    POINT(BEFORE_SYNC, fd);
    int failed = real(fd);
    if (!failed)
        record(SYNC_END, found.st_ino, number, 0, NULL, 0, NULL);
    POINT(AFTER_SYNC, fd);
    if (deadly >= BEFORE_ANSWER && atomic_fetch_add(&times, 1) + 1 == deadly_at)
        atomic_store(&answering, 1);
    return failed;
}

#define ANSWER(point)                                              \
    do {                                                           \
        if (deadly == (point) && atomic_load(&answering))          \
            die();                                                 \
    } while (0)

ssize_t send(int fd, const void *data, size_t bytes, int flags) {
    REAL(send);
    ANSWER(BEFORE_ANSWER);
    ssize_t done = real(fd, data, bytes, flags);
    ANSWER(AFTER_ANSWER);
    return done;
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    ANSWER(BEFORE_ANSWER);
    ssize_t done = real(fd, message, flags);
    ANSWER(AFTER_ANSWER);
    return done;
}

int fsync(int fd) {
    REAL(fsync);
    return synced(fd, real);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return synced(fd, real);
}

/* -- names */

static int named(int what, int failed, int dir, const char *path) {
    char into[PATH_MAX];
    struct stat found = {0};
    const char *name = failed ? NULL : name_below(dir, path, into);
    if (name) {
        if (what == MKDIR && fstatat(AT_FDCWD, into, &found, 0) != 0)
            found.st_ino = 0; /* gone again */
        record(what, found.st_ino, 0, 0, name, strlen(name), NULL);
    }
    return failed;
}

static int two_names(int what, int failed, int old_dir, const char *old, int new_dir, const char *new) {
    char old_into[PATH_MAX], new_into[PATH_MAX];
    if (failed)
        return failed;
    const char *old_name = name_below(old_dir, old, old_into);
    const char *new_name = name_below(new_dir, new, new_into);
    if (old_name && new_name)
        record(what, 0, 0, 0, old_name, strlen(old_name), new_name);
    else if (new_name)
        unseen("from outside", new_name);
    else if (old_name && what == RENAME) /* it left: gone for us */
        record(UNLINK, 0, 0, 0, old_name, strlen(old_name), NULL);
    return failed;
}

int rename(const char *old, const char *new) {
    REAL(rename);
    return two_names(RENAME, real(old, new), AT_FDCWD, old, AT_FDCWD, new);
}

int renameat(int old_dir, const char *old, int new_dir, const char *new) {
    REAL(renameat);
    return two_names(RENAME, real(old_dir, old, new_dir, new), old_dir, old, new_dir, new);
}

int renameat2(int old_dir, const char *old, int new_dir, const char *new, unsigned flags) {
    REAL(renameat2);
    if (flags & RENAME_EXCHANGE)
        unseen("RENAME_EXCHANGE", new);
    return two_names(RENAME, real(old_dir, old, new_dir, new, flags), old_dir, old, new_dir, new);
}

int link(const char *old, const char *new) {
    REAL(link);
    return two_names(LINK, real(old, new), AT_FDCWD, old, AT_FDCWD, new);
}

int linkat(int old_dir, const char *old, int new_dir, const char *new, int flags) {
    REAL(linkat);
    return two_names(LINK, real(old_dir, old, new_dir, new, flags), old_dir, old, new_dir, new);
}

int symlink(const char *target, const char *path) {
    char into[PATH_MAX];
    REAL(symlink);
    int failed = real(target, path);
    const char *name = failed ? NULL : name_below(AT_FDCWD, path, into);
    if (name)
        unseen("symlink", name);
    return failed;
}

int unlink(const char *path) {
    REAL(unlink);
    return named(UNLINK, real(path), AT_FDCWD, path);
}

int unlinkat(int dir, const char *path, int flags) {
    REAL(unlinkat);
    return named(flags & AT_REMOVEDIR ? RMDIR : UNLINK, real(dir, path, flags), dir, path);
}

int remove(const char *path) {
    struct stat found;
    int is_directory = lstat(path, &found) == 0 && S_ISDIR(found.st_mode);
    return is_directory ? rmdir(path) : unlink(path);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return named(MKDIR, real(path, mode), AT_FDCWD, path);
}

int mkdirat(int dir, const char *path, mode_t mode) {
    REAL(mkdirat);
    return named(MKDIR, real(dir, path, mode), dir, path);
}

int rmdir(const char *path) {
    REAL(rmdir);
    return named(RMDIR, real(path), AT_FDCWD, path);
}
