# cython: language_level=3
"""The siblings, one by one: see the .pyx."""
from libc.stdint cimport uint8_t, uint64_t

from pyx.core.counters cimport Row
from pyx.delivery.connection cimport Connection
from pyx.delivery.journal cimport Journal
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.router_state cimport RouterState
from pyx.matching.subscriptions cimport Matches
from pyx.protocol.message cimport Content
from pyx.storage.entries cimport Choice, Packed


cdef enum ControlKind:          # of control entries that routers read themselves; others are for the broker
    SAMPLED = 0x7E              # "~": the publish behind it is one whose durations are measured
    PUBLISHER = 0x5E            # "^": client id of the publisher of the next entry, which is to be retained


cdef class Peer:
    """What one sibling or host gets with the next batch."""
    cdef Packed volatile_entries    # QoS 0
    cdef Packed sequenced           # QoS > 0 and retained
    cdef list volatile_payloads
    cdef list sequenced_payloads
    cdef list cut                   # batches of this tick that are full, as `take` gives them
    cdef readonly uint64_t acknowledged     # tick up to which it has everything
    cdef readonly uint64_t sent             # tick of the last sequenced entry
    cdef readonly uint64_t interest         # number of our interest it has taken


cdef class Peers:
    cdef RouterState state
    cdef Row counters
    cdef PublishInHand in_hand
    cdef Journal journal

    cdef public object interest         # zmq_mesh.interest.Publisher, None = no siblings
    cdef list peers                     # Peer or None, by worker
    cdef public uint64_t dirty_peers    # have entries to take
    # get something of this tick that must not be lost with this worker: of QoS 2, from a publisher whose session lasts
    # (it will not send it again), or a will
    cdef uint64_t held_peers
    cdef uint64_t full_peers            # publishers that match them are not read
    cdef uint64_t live_peers            # acks wait for them
    cdef uint64_t unsure_peers          # may want more than is known: they get every publish of QoS 1 or 2
    cdef uint64_t live_for_interest     # SUBACKs wait for them: live and not away
    cdef list paused                    # connections not read because of full_peers
    # called at the end of a tick with entries for peers (dirty_peers), or in which links have something else to send:
    # interest, acks, what has been stored
    cdef public object forward_now
    cdef public bint links_due
    cdef int pause(self, Connection conn) except -1
    cdef int sample(self, const Matches* m, bint answered) except -1
    cdef int tell_in_passing(self, int peer, const Content* c) except -1

    cdef int entry(self, int peer, uint8_t flags, const Choice* choice) except -1
    cdef tuple whole(self, Peer p)
    cdef int name_publisher(self, Packed packed) except -1
