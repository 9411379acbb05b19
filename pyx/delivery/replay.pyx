"""The per-message part of a subscription that reads the archives of all workers (broker.replay.replaying).

Messages come in pages, one source (worker) at a time, rising by number. While a source has more than was requested,
messages up to the *horizon* (the lowest number up to which every source has sent everything) are merged by number. Once
every source has had nothing more at some time, the replay is *live*: messages are delivered as they arrive. The order
of each publisher and topic is kept: the messages of one publisher are in one source, and those from the time when its
worker was another one were merged before.

The *position* of a delivery has a number for each host: the highest one for which this holds: all messages of that
host's sources up to that number have been delivered by then. The client may resume from it. No number of it falls.

A host that is *away* is not waited for: others' messages are delivered, its number stays, and what it has comes later.

A copy goes through its session's own queue, at min(archived, granted) QoS; so the window, the outbox and the stored
records are handled as for any other copy. Expired messages are not delivered, nor, with No Local, the client's own.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy

from pyx.core cimport counters as count
from pyx.delivery.connection cimport OPEN, Connection
from pyx.delivery.router_state cimport OUTBOX_PART, put_identifier
from pyx.delivery.session cimport REPLAYED_COPY
from pyx.protocol.message cimport Content, content_bytes
from pyx.protocol.topics cimport topic_matches

cdef enum:
    NO_LOCAL = 4
    RETAIN_AS_PUBLISHED = 8
    USER_PROPERTY = 0x26

cdef bytes NAME = b"mqttd-offset"
cdef bytes NAME_OF_LOST = b"mqttd-offset-lost"
cdef const char* DIGITS = b"0123456789abcdef"


cdef bytes user_property(bytes name, bytes value):
    # MQTT 5, 2.2.2.2: 0x26, a pair of strings
    return bytes((USER_PROPERTY,)) + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


def write_position(bytes tag not None, uint64_t number):
    """Return a position as clients see it: the tag of the archive, then the number in hexadecimal digits."""
    return tag + b"%016x" % number


def has_room(Backlog backlog not None, Session s not None):
    """Return whether a replay may put more into the session's queue: it is empty, and so is most of its outbox. If not,
    `drained` of the handler is called when it may."""
    cdef Connection conn = <Connection>s.connection
    if conn is None or conn.state != OPEN or s.queue_count:
        return False
    s.awaits_outbox = conn.out.pending > backlog.state.limits.outbox_bytes_max // <uint32_t>OUTBOX_PART
    return not s.awaits_outbox


def drop_queued(Backlog backlog not None, Session s not None, uint32_t number):
    """Drop the queued messages of the ended replay with this number; return how many."""
    cdef uint64_t dropped = 0
    for _, record in s.take_queued(number, REPLAYED_COPY):
        dropped += 1
        if record:
            backlog.windows.forget_queued(s, record)
    backlog.state.counters.at[count.DROPPED_UNSUBSCRIBED] += dropped
    if dropped and s.behind and s.connection is not None:
        backlog.state.set_ready(s)
    return dropped


@cython.final
cdef class Merge:
    """The merge of the pages of all sources into copies in the session's queue. `hosts`: by host, (what its position
    begins with, the number of its position, by source of this host the number behind which it begins); `floors`: by
    host, {origin: number} likewise."""

    def __cinit__(self, Session session not None, int options, uint32_t identifier, uint32_t number,
                  list hosts not None, list floors not None):
        cdef uint8_t[8] head
        cdef uint32_t i, host
        cdef bytes begin, text = b"", prefix = b""
        cdef list after
        if not hosts or len(hosts) != len(floors):
            raise ValueError("no host, or not the floors of each")
        self.host_count = <uint32_t>len(hosts)
        self.count = sum([len(each) for _, _, each in hosts])
        self.sources = <Source*>calloc(self.count + 1, sizeof(Source))
        self.hosts = <HostSources*>calloc(self.host_count, sizeof(HostSources))
        self.floors = <uint64_t*>calloc(<size_t>self.host_count * ORIGINS, sizeof(uint64_t))
        if self.sources == NULL or self.hosts == NULL or self.floors == NULL:
            raise MemoryError
        self.session = session
        self.options = <uint8_t>options
        self.number = number
        self.pages = [None] * self.count
        self.lost = None
        if identifier:
            prefix = PyBytes_FromStringAndSize(<const char*>head, put_identifier(head, identifier))
        i = 0
        for host in range(self.host_count):
            begin, self.hosts[host].position, after = hosts[host]
            self.hosts[host].first = i
            self.hosts[host].count = <uint32_t>len(after)
            for each in after:
                self.sources[i].up_to = each
                self.sources[i].host = host
                i += 1
            if after:
                self.hosts[host].position = min(after)
            self.hosts[host].digits = <uint32_t>(len(text) + len(begin))
            text += begin + bytes(POSITION_DIGITS)
            for origin, floor in (<dict>floors[host]).items():
                if not 0 <= origin < <int>ORIGINS:
                    raise ValueError("no worker")
                self.floors[host * <uint32_t>ORIGINS + <uint32_t>origin] = floor
        prefix += user_property(NAME, text)[:-len(text)]
        self.value = <uint32_t>len(prefix)
        text = prefix + text
        self.properties_bytes = <uint32_t>len(text)
        self.properties = <char*>malloc(self.properties_bytes)
        if self.properties == NULL:
            raise MemoryError
        memcpy(self.properties, PyBytes_AS_STRING(text), self.properties_bytes)
        for host in range(self.host_count):
            self.hosts[host].digits += self.value

    def __dealloc__(self):
        free(self.sources)
        free(self.hosts)
        free(self.floors)
        free(self.properties)

    def add(self, uint32_t source, list messages not None, uint64_t up_to, bint is_end):
        """Add a page of a source: its messages behind its former pages, rising by number; `up_to`: the page is complete
        up to this number; `is_end`: the source has nothing more."""
        cdef Source* s
        cdef list page
        if source >= self.count:
            raise ValueError("no source")
        s = &self.sources[source]
        if messages:
            page = <list>self.pages[source] if self.pages[source] is not None else None
            if page is None:
                self.pages[source] = messages
                s.at = 0
            else:
                self.pages[source] = page[s.at:] + messages
                s.at = 0
        if up_to > s.up_to:
            s.up_to = up_to
        if is_end:
            s.reached = True
        self.settle()

    def takes(self, uint32_t source, list messages not None, uint64_t up_to, bytes topic_filter not None,
              int64_t ahead_ms):
        """Return whether these may be the source's next messages: behind its former pages, rising by number, none above
        `up_to`, and all of topics that the Topic Filter matches. A page of another host is asked this. Its expiries are
        changed to this host's clock, which that host's is ahead of by `ahead_ms`."""
        cdef uint64_t last
        cdef Message m
        if source >= self.count:
            raise ValueError("no source")
        last = self.sources[source].up_to
        for m in messages:
            if m.content.number <= last or m.content.number > up_to or \
                    not topic_matches(<const uint8_t*><const char*>topic_filter, <size_t>len(topic_filter),
                                      m.content.topic, m.content.topic_len):
                return False
            last = m.content.number
            if m.content.expires:
                m.content.expires = max(<int64_t>m.content.expires - ahead_ms, 1)
        return True

    def set_away(self, uint32_t host, bint away):
        """Note whether a host is there: else it is not waited for. Where it is back, it has to reach its end anew."""
        cdef uint32_t i
        if host >= self.host_count:
            raise ValueError("no host")
        self.hosts[host].away = away
        for i in range(self.hosts[host].first, self.hosts[host].first + self.hosts[host].count):
            self.sources[i].reached = False
        self.settle()

    cdef int settle(self) except -1:
        # update `live` and the positions
        cdef uint32_t i, host
        cdef uint64_t lowest, given
        cdef bint live = True, present = False
        cdef HostSources* h
        for host in range(self.host_count):
            h = &self.hosts[host]
            lowest = <uint64_t>-1
            for i in range(h.first, h.first + h.count):
                given = self.given(i)
                if given < lowest:
                    lowest = given
                if not h.away:
                    present = True
                    if not self.sources[i].reached:
                        live = False
            if h.count and lowest > h.position:
                h.position = lowest
        if live and present:
            self.live = True
        return 0

    cdef uint64_t given(self, uint32_t i) except? 0xFFFFFFFFFFFFFFFF:
        # the number up to which everything of the source has been delivered
        cdef Message m
        if self.pages[i] is None:
            return self.sources[i].up_to
        m = <Message>(<list>self.pages[i])[self.sources[i].at]
        return m.content.number - 1

    def delivered(self, uint32_t source):
        """Return the number up to which everything of the source has been delivered: requests continue behind it if the
        received pages are dropped."""
        if source >= self.count:
            raise ValueError("no source")
        return self.given(source)

    def up_to(self, uint32_t source):
        """Return the number up to which everything of the source has been received."""
        if source >= self.count:
            raise ValueError("no source")
        return self.sources[source].up_to

    def waiting(self, uint32_t source):
        """Return the number of messages received from the source and not delivered."""
        cdef list page
        if source >= self.count:
            raise ValueError("no source")
        if self.pages[source] is None:
            return 0
        page = <list>self.pages[source]
        return len(page) - self.sources[source].at

    def rest(self):
        """Drop the received pages, as its session is offline: they are requested again behind `delivered`."""
        cdef uint32_t i
        for i in range(self.count):
            self.sources[i].up_to = self.given(i)
            self.pages[i] = None
            self.sources[i].at = 0
            self.sources[i].reached = False
        self.live = False

    def state(self):
        """Return by host (the number of its position, {origin: highest delivered number, if above that})."""
        cdef uint32_t i, host
        cdef uint64_t floor
        cdef dict floors
        cdef list state = []
        for host in range(self.host_count):
            floors = {}
            for i in range(<uint32_t>ORIGINS):
                floor = self.floors[host * <uint32_t>ORIGINS + i]
                if floor > self.hosts[host].position:
                    floors[i] = floor
            state.append((self.hosts[host].position, floors))
        return state

    @property
    def position(self):
        """The lowest number of the position, of the hosts that are waited for; if none is, of all."""
        cdef uint32_t host
        cdef uint64_t lowest = <uint64_t>-1, of_all = <uint64_t>-1
        for host in range(self.host_count):
            of_all = min(of_all, self.hosts[host].position)
            if self.hosts[host].count and not self.hosts[host].away:
                lowest = min(lowest, self.hosts[host].position)
        return lowest if lowest != <uint64_t>-1 else of_all

    def text(self):
        """Return the position as clients see it."""
        cdef uint32_t host
        for host in range(self.host_count):
            self.write_number(host)
        return PyBytes_FromStringAndSize(self.properties + self.value, self.properties_bytes - self.value)

    def take_kept(self):
        """Return whether a copy at QoS 1 or 2 was queued since the last call."""
        cdef bint kept = self.kept
        self.kept = False
        return kept

    @property
    def is_due(self):
        """Whether `feed` would find a message."""
        cdef uint32_t i
        cdef uint64_t horizon
        if self.live:
            for i in range(self.count):
                if self.pages[i] is not None:
                    return True
            return False
        horizon = self.horizon
        for i in range(self.count):
            if self.pages[i] is not None and self.given(i) < horizon:
                return True
        return False

    @property
    def horizon(self):
        """The lowest number up to which every source that is waited for has sent everything."""
        cdef uint32_t i
        cdef uint64_t lowest = <uint64_t>-1
        for i in range(self.count):
            if self.sources[i].up_to < lowest and not self.hosts[self.sources[i].host].away:
                lowest = self.sources[i].up_to
        return lowest

    def feed(self, Backlog backlog not None, uint32_t messages_max, uint64_t bytes_max):
        """Queue the next messages, in order: at most `messages_max`, and about `bytes_max` bytes. Return the number of
        messages examined."""
        cdef uint64_t horizon = <uint64_t>-1 if self.live else self.horizon
        cdef uint64_t others, next_number, number, given, size = 0
        cdef uint32_t i, best, host, looked = 0, length
        cdef list page
        cdef Message m
        while looked < messages_max and size < bytes_max:
            # the source with the lowest number; it is read until another one is lower
            best = self.count
            number = next_number = <uint64_t>-1
            for i in range(self.count):
                if self.pages[i] is None:
                    continue
                given = self.given(i)
                if given < number:
                    next_number = number
                    number = given
                    best = i
                elif given < next_number:
                    next_number = given
            if best == self.count or number >= horizon:
                break
            host = self.sources[best].host
            others = <uint64_t>-1
            for i in range(self.hosts[host].first, self.hosts[host].first + self.hosts[host].count):
                if i != best:
                    others = min(others, self.given(i))
            if self.host_count > 1:
                self.settle()
                for i in range(self.host_count):
                    self.write_number(i)
            page = <list>self.pages[best]
            length = <uint32_t>len(page)
            i = self.sources[best].at
            while i < length and looked < messages_max and size < bytes_max:
                m = <Message>page[i]
                if m.content.number > horizon or m.content.number - 1 > next_number:
                    break
                i += 1
                looked += 1
                size += content_bytes(&m.content)
                self.deliver(backlog, m, host, min(m.content.number, others))
            if i == length:
                self.pages[best] = None
                self.sources[best].at = 0
            else:
                self.sources[best].at = i
        self.settle()
        return looked

    cdef int deliver(self, Backlog backlog, Message m, uint32_t host, uint64_t position) except -1:
        cdef Content* c = &m.content
        cdef uint8_t qos = self.options & 3
        cdef uint64_t* floor = &self.floors[host * <uint32_t>ORIGINS + (c.number & (<uint32_t>ORIGINS - 1))]
        if c.number <= floor[0]:
            return 0                            # delivered already, when the number of workers was another one
        floor[0] = c.number
        if position > self.hosts[host].position:
            self.hosts[host].position = position
        if self.options & NO_LOCAL and m.publisher is not None and m.publisher == self.session.client_id:
            return 0
        if c.expires and backlog.state.wall_ms >= c.expires:
            return 0
        if qos > c.qos:
            qos = c.qos
        if qos:
            self.kept = True
        backlog.state.counters.at[count.REPLAYED_MESSAGES] += 1
        backlog.state.counters.at[count.REPLAYED_BYTES] += content_bytes(c)
        return backlog.queue_for(self.session, m, qos, c.retain and self.options & RETAIN_AS_PUBLISHED,
                                 self.properties_for(host), REPLAYED_COPY, self.number)

    cdef void write_number(self, uint32_t host) noexcept:
        cdef char* p = self.properties + self.hosts[host].digits
        cdef uint64_t position = self.hosts[host].position
        cdef int i
        for i in range(POSITION_DIGITS):
            p[i] = DIGITS[position >> (60 - 4 * i) & 15]

    cdef bytes properties_for(self, uint32_t host):
        # the numbers of other hosts are written by `feed`
        cdef bytes made
        self.write_number(host)
        made = PyBytes_FromStringAndSize(self.properties, self.properties_bytes)
        if self.lost is not None:
            made += user_property(NAME_OF_LOST, self.lost)
            self.lost = None
        return made
