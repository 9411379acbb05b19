# cython: language_level=3
"""One link to one peer: see the .pyx."""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from pyx.mesh.envelope cimport Head
from pyx.mesh.incoming cimport Incoming
from pyx.mesh.outgoing cimport Outgoing
from pyx.mesh.stream cimport LinkTraffic, Stream


cdef class Link:
    cdef readonly object own
    cdef readonly object peer
    cdef readonly object number             # of the peer, in messages
    cdef readonly uint64_t incarnation
    cdef readonly uint64_t peer_incarnation  # 0 = no living one is known
    cdef readonly tuple versions
    cdef readonly int version               # agreed version; 0 = not agreed yet
    cdef readonly LinkTraffic traffic
    cdef object publisher
    cdef object events
    cdef object reconnect
    cdef readonly Stream stream
    cdef readonly Incoming incoming
    cdef readonly Outgoing out

    # the peer's state
    cdef readonly bint ready
    cdef readonly bint confirming           # greeted after a pause of ours, not ready again yet
    cdef bint stalled                       # away, but not silent: sending continues
    cdef uint64_t stall_frame
    cdef bint welcomed
    cdef bint has_answered                  # it may serve by the interest of our last WELCOME, though not ready here
    cdef uint32_t greeting
    cdef bint owe_hello
    cdef uint64_t interest_wanted           # ready once this number of the peer's interest was taken
    cdef uint64_t taken                     # number of our interest that the peer has taken
    cdef uint64_t dead                      # incarnations up to this one are refused
    cdef uint64_t foreign                   # incarnation of the peer that speaks no version of ours
    cdef bytes expected                     # the prefix of every valid message from the peer
    cdef uint64_t seen_by_peer              # highest of our frames that it has seen
    cdef uint64_t received_by_peer          # number of our stream up to which it has everything
    cdef public double heard_at
    cdef double hello_at
    cdef bint rests                         # sends no heartbeats while it is idle
    cdef bint is_idle                       # when last looked at
    cdef public bint is_asked               # a sign of life is wanted of the peer, though nothing waits for it
    cdef uint64_t drained                   # bytes that it has sent in the round `drained_in`
    cdef uint64_t drained_in
    cdef double silence
    cdef double stall

    cpdef bint flush(self, double now) except -1
    cpdef bint submit(self, object volatile, object sequenced, list payloads_volatile, list payloads_sequenced,
                      int64_t ticket, int64_t entries_volatile=*, int64_t entries_sequenced=*, bint hold=*) except -1
    cpdef commit(self, uint64_t sequence, object refused=*)
    cdef int take(self, list frames, double now) except -1
    cdef int take_known(self, bytes first, list frames, Head* head, double now) except -1
    cdef int take_unexpected(self, bytes first, double now) except -1
    cdef int greeted(self, uint64_t sender_incarnation, bytes first, double now) except -1
    cdef int begin_anew(self, Head* head) except -1
    cdef bytes prefix_of(self, int version, bint is_known)
    cdef int adopt(self, uint64_t incarnation, int version) except -1
    cdef int set_expected(self) except -1
    cdef int say_hello(self) except -1
    cdef int say_welcome(self) except -1
    cdef bint say_greeting(self, uint8_t kind, uint32_t greeting) except -1
    cdef int check_ready(self) except -1
    cdef bint look_idle(self, double now) except -1
    cdef int check_stall_over(self) except -1
    cdef int leave(self, bint stalled) except -1
    cdef int end(self) except -1
