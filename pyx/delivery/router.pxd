# cython: language_level=3
"""The router of one worker: a publish goes in, deliveries, log records, peer entries and acks come out.

A Router is composed of parts, each in its own file, constructed with the parts it calls:

    pyx.delivery.router_state     RouterState    time, limits, counters; sessions with output, to serve or to close
    pyx.delivery.publish_in_hand  PublishInHand  the publish that is being routed, and the frames made of it
    pyx.delivery.journal          Journal        a tick's records for the store, and the acks that wait for them
    pyx.delivery.peers            Peers          the siblings: the next batch for each, and its acknowledgements
    pyx.delivery.answering        Answering      acks and other answers, with the conditions they wait for
    pyx.delivery.windows          Windows        the stored window of a session, and the packets that wait for it
    pyx.delivery.restoring        Restoring      sessions from their records, after a start
    pyx.delivery.moving           Moving         sessions to and from other hosts
    pyx.delivery.late_answers     LateAnswers    answers that are decided after their packet
    pyx.delivery.back_pressure    BackPressure   publishers that wait: too fast, a full session, no memory
    pyx.delivery.bounding         Bounding       amounts queued for sessions that are behind, and bounds, in slices
    pyx.delivery.sweeping         Sweeping       the search for sessions beyond their bounds, and forgetting
    pyx.delivery.backlog          Backlog        sessions that are behind: reading the log, resending
    pyx.delivery.retaining        Retaining      retained messages
    pyx.delivery.fanout           FanOut         from a match to its subscribers
    pyx.delivery.enrolling        Enrolling      share groups: members, and the siblings' knowledge of them
    pyx.delivery.sharing          Sharing        share groups: choice of a worker and a member
    pyx.delivery.handing_on       HandingOn      share groups: another choice for a message not taken
    pyx.delivery.siblings         Siblings       entries from siblings, and siblings' interest
    pyx.delivery.ending           Ending         the end of sessions
    pyx.delivery.subscribing      Subscribing    begin and end of subscriptions; sessions going online and offline
    pyx.delivery.router           Router         a publish, its acks, and the tick

Each knows the parts above it in this list. To call a part further down it declares an interface: `Sender` in windows
(implemented by Backlog), `Bounds` in back_pressure (Bounding), `Teller` in bounding (Enrolling).

Call order, one publish: begin -> publish -> (answer). One tick: any number of publishes, acks and slow packets ->
append_block -> serve_ready -> commit -> (links take the batches) -> release_acks -> the reactor sends the outboxes in
`dirty`.
"""
from libc.stdint cimport uint8_t, uint16_t, uint64_t

from pyx.core.counters cimport Row
from pyx.core.limits cimport Limits
from pyx.delivery.answering cimport Answering
from pyx.delivery.back_pressure cimport BackPressure
from pyx.delivery.backlog cimport Backlog
from pyx.delivery.bounding cimport Bounding
from pyx.delivery.connection cimport Connection
from pyx.delivery.ending cimport Ending
from pyx.delivery.enrolling cimport Enrolling
from pyx.delivery.fanout cimport FanOut
from pyx.delivery.handing_on cimport HandingOn
from pyx.delivery.journal cimport Journal
from pyx.delivery.late_answers cimport LateAnswers
from pyx.delivery.peers cimport Peers
from pyx.delivery.publish_in_hand cimport PublishInHand
from pyx.delivery.moving cimport Moving
from pyx.delivery.restoring cimport Restoring
from pyx.delivery.retaining cimport Retaining
from pyx.delivery.router_state cimport RouterState
from pyx.delivery.session cimport Inflight, Session
from pyx.delivery.sharing cimport Sharing
from pyx.delivery.siblings cimport Siblings
from pyx.delivery.subscribing cimport Subscribing
from pyx.delivery.sweeping cimport Sweeping
from pyx.delivery.windows cimport Windows
from pyx.matching.subscriptions cimport Matches, Subscriptions


cdef class Router:
    cdef readonly RouterState state
    cdef Row counters
    cdef Limits limits
    cdef Subscriptions subscriptions
    cdef readonly PublishInHand in_hand
    cdef readonly Journal journal
    cdef readonly Peers peers
    cdef readonly Answering answering
    cdef readonly Windows windows
    cdef readonly Restoring restoring
    cdef readonly Moving moving
    cdef readonly LateAnswers late_answers
    cdef readonly BackPressure back_pressure
    cdef readonly Bounding bounding
    cdef readonly Sweeping sweeping
    cdef readonly Backlog backlog
    cdef readonly Retaining retaining
    cdef readonly FanOut fanout
    cdef readonly Enrolling enrolling
    cdef readonly Sharing sharing
    cdef readonly HandingOn handing_on
    cdef readonly Siblings siblings
    cdef readonly Ending ending
    cdef readonly Subscribing subscribing

    cdef int publish(self, Matches* m) except -1            # 1: a subscription matches
    cdef int route(self, Matches* m) except -1
    cdef int forward(self, uint64_t peers, uint8_t flags) except -1
    cdef int append_block(self) except -1
    cdef int append_piece(self) except -1
    cdef int finish_log(self) except -1
    cdef int hand_off(self) except -1
    cdef int forward_all(self) except -1
    cdef int puback(self, Session s, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubrec(self, Session s, Connection conn, uint16_t packet_id, uint8_t reason) except -1
    cdef int pubcomp(self, Session s, Connection conn, uint16_t packet_id) except -1
    cdef int misfit(self, Session s, Inflight* slot, str what) except -1
    cdef int tell_drained(self) except -1
    cpdef finish_tick(self)
    cdef bint has_messages(self) noexcept
