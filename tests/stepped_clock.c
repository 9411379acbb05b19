/* The wall clock of a program, put forward and back by a test.
 *
 *     LD_PRELOAD=stepped_clock.so STEPPED_CLOCK=FILE program
 *
 * FILE holds one 64-bit number in the machine's byte order: nanoseconds that are added to CLOCK_REALTIME, in this
 * process and all that it starts, from the moment on in which they are written there. The other clocks go on as they
 * are, as they do when somebody sets the clock of a machine. FILE has to be there when the program begins.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *ahead;
static int (*real_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *name = getenv("STEPPED_CLOCK");
    int file = name == NULL ? -1 : open(name, O_RDONLY | O_CLOEXEC);
    void *page;

    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file < 0)
        return;
    page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page == MAP_FAILED)
        abort();
    ahead = page;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result;

    if (real_gettime == NULL)
        begin();
    result = real_gettime(clock, now);
    if (result == 0 && ahead != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_nsec + *ahead % 1000000000;

        now->tv_sec += *ahead / 1000000000 + (ns < 0 ? -1 : ns / 1000000000);
        now->tv_nsec = ns < 0 ? ns + 1000000000 : ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec exact;

    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds)
{
    struct timespec exact;

    if (clock_gettime(CLOCK_REALTIME, &exact) != 0)
        return -1;
    if (seconds != NULL)
        *seconds = exact.tv_sec;
    return exact.tv_sec;
}
