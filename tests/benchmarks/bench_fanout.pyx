# cython: language_level=3
"""ns per delivery of a fan-out inside a worker without sockets: decode, match, deliver into every outbox, end of tick.

The outboxes are emptied as the kernel would, without its cost. Run it with
`python -c "from tests.benchmarks.bench_fanout import report; report()"`.
"""
from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport CLOCK_PROCESS_CPUTIME_ID, clock_gettime, timespec
from cpython.ref cimport Py_DECREF

from pyx.core.outbox cimport outbox_clear
from pyx.delivery.connection cimport Connection
from pyx.delivery.router cimport Router
from pyx.io.dispatch cimport Dispatch

from broker.config.settings import Settings
from broker.logs import Log
from broker.worker.core import Node
from leveldb_store.memory import MemoryStore
from pyx.protocol.codec import encode_ack, encode_connect, encode_publish, encode_subscribe
from pyx.protocol.packets import Subscription

BATCH = 50


cdef uint64_t now_ns() noexcept:
    cdef timespec t
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t)
    return <uint64_t>t.tv_sec * 1000000000 + <uint64_t>t.tv_nsec


cdef int empty(Router router) except -1:
    cdef uint32_t i
    cdef Connection conn
    for i in range(router.state.dirty.count):
        conn = <Connection>router.state.dirty.items[i]
        conn.dirty = False
        outbox_clear(&conn.out)
        Py_DECREF(conn)
    router.state.dirty.count = 0
    return 0


def fanout_ns(subscribers: int, payload_bytes: int, qos: int, messages: int) -> float:
    """Measure one publisher and these subscribers; messages arrive in batches of 50 (one receive buffer)."""
    node = Node(0, 1, Settings(), MemoryStore(), Log(level="error"), 1000, 1_700_000_000_000)
    cdef Router router = node.router
    cdef Dispatch dispatch = node.dispatch
    cdef Connection conn
    cdef uint64_t began, spent = 0
    connections = []
    for i in range(subscribers):
        conn = Connection()
        dispatch.feed(conn, encode_connect(4, f"s{i}"))
        dispatch.feed(conn, encode_subscribe(4, 1, [Subscription(b"fan/out", qos)]))
        connections.append(conn)
    conn = Connection()
    dispatch.feed(conn, encode_connect(4, "p"))
    router.finish_tick()
    empty(router)
    packets = b"".join(
        encode_publish(4, b"fan/out", bytes(payload_bytes), qos, packet_id=1 + i if qos else 0) for i in range(BATCH)
    )
    acks = []
    if qos:
        acks = [b"".join(encode_ack(4, 4, 1 + at + i) for i in range(BATCH)) for at in range(0, messages, BATCH)]
    for at in range(messages // BATCH):
        began = now_ns()
        dispatch.feed(conn, packets)
        router.finish_tick()
        empty(router)
        spent += now_ns() - began
        if qos:
            for each in connections:
                dispatch.feed(each, acks[at])
            router.finish_tick()
            empty(router)
    return <double>spent / <double>(messages // BATCH * BATCH * subscribers)


def report() -> None:
    """Print one line per case: best of five."""
    cases = (
        (1, 64, 0), (100, 64, 0), (1000, 64, 0), (100, 64, 1), (100, 1024, 0), (100, 4096, 0), (100, 65536, 0),
    )
    for subscribers, payload, qos in cases:
        messages = max(500, 200_000 // subscribers) if payload < 65536 else 500
        ns = min(fanout_ns(subscribers, payload, qos, min(messages, 50_000)) for _ in range(5))
        print(f"1 -> {subscribers:<5} {payload:6} B  QoS {qos} {ns:8.1f} ns")
