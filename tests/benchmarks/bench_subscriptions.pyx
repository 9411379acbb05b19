# cython: language_level=3
"""The loops of run_subscriptions.py: no Python code inside the timed part."""
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free
from posix.time cimport CLOCK_PROCESS_CPUTIME_ID, clock_gettime, timespec

from pyx.matching.subscriptions cimport Filter, Matches, Memberships, Subscriptions


cdef uint64_t now_ns() noexcept:
    """Return the CPU time: other processes on the machine count only by their effect on the caches."""
    cdef timespec t
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)
    return <uint64_t> t.tv_sec * 1000000000 + t.tv_nsec


cdef class Client:
    cdef Memberships own

    def __dealloc__(self):
        free(self.own.items)


cdef class Population:
    """Clients and their filters in one Subscriptions."""
    cdef readonly Subscriptions subscriptions
    cdef list clients

    def __init__(self):
        self.subscriptions = Subscriptions()
        self.clients = []

    def subscribe(self, list filters):
        """Connect one more client with these filters. Return the slowest single hold + add in ns."""
        cdef Client client = Client()
        cdef bytes text
        cdef Filter* f
        cdef uint64_t before, after, slowest = 0
        self.clients.append(client)
        for text in filters:
            before = now_ns()
            f = self.subscriptions.hold(<const uint8_t*> text, len(text))
            self.subscriptions.add(f, NULL, <void*> client, &client.own, 1, 0, True)
            after = now_ns()
            if after - before > slowest:
                slowest = after - before
        return slowest

    def unsubscribe_all(self):
        cdef Client client
        for client in self.clients:
            self.subscriptions.remove_all(&client.own)
        self.clients.clear()

    def match(self, bytes topics, size_t stride, bint cached=False):
        """Match consecutive topics of `stride` bytes; return (ns for each, Filters found in all)."""
        cdef size_t n = len(topics) // stride
        cdef const uint8_t* topic = <const uint8_t*> topics
        cdef size_t _
        cdef uint64_t found = 0, began
        cdef Matches* matches
        began = now_ns()
        for _ in range(n):
            if cached:
                matches = self.subscriptions.cached(topic, stride)
                if matches is not NULL:
                    found += matches.count
            else:
                found += self.subscriptions.match(topic, stride).count
            topic += stride
        return (now_ns() - began) / n, found
