# cython: language_level=3
"""Messages to the siblings: see the .pyx."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.matching.filters cimport Filter, Group
from pyx.matching.subscriptions cimport Matches
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport Choice, Packed


cdef enum ControlKind:          # control entries read by the router itself; others are for the broker
    SAMPLED = 0x7E              # "~": the durations of the next publish are measured
    PUBLISHER = 0x5E            # "^": client id of the publisher of the next entry, which has RETAIN


cdef class Peer:
    """The next batch for one sibling, and its acknowledgements."""
    cdef Packed volatile_entries    # QoS 0
    cdef Packed sequenced           # QoS > 0 and retained
    cdef list volatile_payloads
    cdef list sequenced_payloads
    cdef list cut                   # full batches of this tick, as returned by `take`
    cdef readonly uint64_t acknowledged     # tick up to which it has everything
    cdef readonly uint64_t sent             # tick of the last sequenced entry
    cdef readonly uint64_t interest         # number of our interest that it has processed


cdef class Peers:
    cdef RouterState state
    cdef Row counters
    cdef PublishInHand in_hand
    cdef Journal journal

    cdef public object interest         # zmq_mesh.interest.Publisher, None = no siblings
    cdef public object host_interest    # the same of this host, for others; None = there are no others
    cdef list peers                     # Peer or None, by its place: siblings by worker, then rails
    cdef readonly uint64_t rails        # peers that are workers of other hosts
    cdef readonly uint64_t hosts        # of these, the one of each host to which its messages are sent
    cdef public uint64_t dirty_peers    # peers with entries to take
    cdef bint entries_added             # since `forward_now` was called; they may wait for company after it
    # peers with entries of this tick that must not be lost with this worker: QoS 2 from a publisher with a lasting
    # session (it will not resend them), or a will
    cdef uint64_t held_peers
    cdef bint is_offering               # what is added is kept here in any case
    cdef uint64_t full_peers            # publishers whose messages match them are not read
    cdef uint64_t live_peers            # acks wait for them
    cdef uint64_t unsure_peers          # may have unknown interest: they get every publish at QoS 1 or 2
    cdef uint64_t live_for_interest     # SUBACKs wait for them: live and not away
    cdef list paused                    # connections not read because of full_peers
    # called at the end of a tick with new entries for peers (dirty_peers), or with other messages of links: interest,
    # acks, news of stored entries
    cdef public object forward_now
    cdef public bint links_due
    cdef Peer known(self, int peer)
    cdef int pause(self, Connection conn) except -1
    cdef int sample(self, const Matches* m, bint answered) except -1
    cdef int tell_in_passing(self, int peer, const Content* c) except -1

    cdef int entry(self, int peer, uint8_t flags, const Choice* choice) except -1
    cpdef tuple take(self, int peer)
    cpdef peer_full(self, int peer, bint full)
    cdef tuple whole(self, Peer p)
    cdef int name_publisher(self, Packed packed) except -1
    cdef uint64_t taken_until(self) except? 0
    cdef int tell_hosts(self, const Filter* f, bytes text) except -1
    cdef int tell_hosts_group(self, const Group* g, bytes text, bytes group) except -1
