# cython: language_level=3
"""Tuning of the C library's allocator: free memory is kept for the next tick, and returned when the worker is idle."""
from pyx.core.kernel cimport M_MMAP_THRESHOLD, M_TOP_PAD, M_TRIM_THRESHOLD, malloc_trim, mallopt


def tune_allocator():
    """Keep freed memory for the next tick instead of returning it to the kernel and asking again (a page fault per
    page and tick)."""
    mallopt(M_MMAP_THRESHOLD, 4 << 20)
    mallopt(M_TRIM_THRESHOLD, 64 << 20)
    mallopt(M_TOP_PAD, 1 << 20)


def trim_memory():
    """Return free memory to the kernel: called when the worker is idle."""
    return malloc_trim(0)
