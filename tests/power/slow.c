/* A slow disk: every fsync and fdatasync takes SLOW_SYNC_MS longer.
 *
 *     LD_PRELOAD=slow.so SLOW_SYNC_MS=300 program
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_a_while(void) {
    const char *said = getenv("SLOW_SYNC_MS");
    long ms = said ? atol(said) : 0;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000L};

    while (nanosleep(&left, &left))
        ;
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");

    wait_a_while();
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");

    wait_a_while();
    return real(fd);
}
