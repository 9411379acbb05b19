# cython: language_level=3
"""Times in stamped payloads (`pyx.loadgen.ledger`).

A time of 10 ** 18 ns and more is CLOCK_REALTIME, a lower one is CLOCK_MONOTONIC: the latter is exact, and comparable on
one host only.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from pyx.core.kernel cimport CLOCK_REALTIME, clock_gettime, monotonic_ns, timespec
from pyx.core.little_endian cimport get32, get64
from pyx.loadgen.ledger cimport CHECK_BYTES, PAYLOAD_HEAD_BYTES, check_of


cdef inline uint64_t wall_ns() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <uint64_t>t.tv_sec * 1_000_000_000 + <uint64_t>t.tv_nsec


cdef inline bint is_stamped(const uint8_t* p, uint32_t n) noexcept:
    return n >= PAYLOAD_HEAD_BYTES + CHECK_BYTES and (
        get32(p + n - CHECK_BYTES) == check_of(get32(p), get32(p + 4), get64(p + 8), n)
    )


cdef inline double latency_ms(const uint8_t* p, uint32_t n) noexcept:
    # -1: it has no stamp, or one of a clock that is ahead of ours
    cdef uint64_t sent, now
    if not is_stamped(p, n):
        return -1
    sent = get64(p + 8)
    now = wall_ns() if sent >= 1_000_000_000_000_000_000u else monotonic_ns()
    return <double>(now - sent) / 1e6 if now >= sent else -1
