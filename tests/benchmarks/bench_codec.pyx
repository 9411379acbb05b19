"""The cost of decoding: ns per packet, measured inside C so that only the codec counts.

Run it with `python -c "from tests.benchmarks.bench_codec import report; report()"`.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memset
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from pyx.protocol.decoders cimport Ack, Publish, Scratch, decode_ack, decode_publish, fixed_header
from pyx.protocol.packets cimport PUBACK
from pyx.protocol.topics cimport topic_name_valid
from pyx.protocol.wire cimport utf8_valid

from pyx.protocol.codec import encode_ack, encode_publish


cdef uint64_t _now() noexcept:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <uint64_t>t.tv_sec * 1_000_000_000 + <uint64_t>t.tv_nsec


def decode_publish_ns(packet: bytes, v5: bool, n: int) -> float:
    """Return the ns per call of fixed_header and decode_publish on `packet`, over n calls."""
    cdef const uint8_t* data = <const uint8_t*><const char*>packet
    cdef size_t size = <size_t>len(packet)
    cdef uint64_t _, times = n, start, total = 0
    cdef uint32_t remaining = 0
    cdef int head
    cdef bint five = v5
    cdef Publish p
    cdef Scratch scratch = Scratch(NULL, 0)
    memset(&p, 0, sizeof(p))
    try:
        start = _now()
        for _ in range(times):
            head = fixed_header(data, size, five, &remaining)
            decode_publish(&p, data[0] & 0x0F, data + head, remaining, five, &scratch)
            total += p.payload_len
        start = _now() - start
    finally:
        free(scratch.buf)
    assert total == times * p.payload_len
    return <double>start / <double>times


def decode_ack_ns(packet: bytes, v5: bool, n: int) -> float:
    """Return the ns per call of decode_ack on a PUBACK, over n calls."""
    cdef const uint8_t* data = <const uint8_t*><const char*>packet
    cdef uint64_t _, times = n, start, total = 0
    cdef bint five = v5
    cdef Ack ack = Ack(0, 0)
    start = _now()
    for _ in range(times):
        decode_ack(&ack, PUBACK, 0, data + 2, data[1], five)
        total += ack.packet_id
    start = _now() - start
    assert total == times * ack.packet_id
    return <double>start / <double>times


def text_ns(text: bytes, topic: bool, n: int) -> float:
    """Return the ns per call of utf8_valid or topic_name_valid on `text`, over n calls."""
    cdef const uint8_t* data = <const uint8_t*><const char*>text
    cdef size_t size = <size_t>len(text)
    cdef uint64_t _, times = n, start, total = 0
    cdef bint name = topic
    start = _now()
    for _ in range(times):
        total += topic_name_valid(data, size) if name else utf8_valid(data, size)
    start = _now() - start
    assert total == times
    return <double>start / <double>times


def report(n: int = 5_000_000) -> None:
    """Print one line per case: best of five."""
    topic = b"sensors/building-7/floor-3/temp"
    payload = b"x" * 64
    expiry = {"message_expiry_interval": 60}
    alias = {"topic_alias": 3}
    kind = {"content_type": "application/json"}
    user = {"user_property": [("source", "gateway-17")]}
    cases = [
        (
            title,
            decode_publish_ns,
            encode_publish(version, topic, payload, qos, packet_id=7 * qos, properties=has),
            version == 5,
        )
        for title, version, qos, has in (
            ("PUBLISH v3.1.1 QoS 0", 4, 0, None),
            ("PUBLISH v3.1.1 QoS 1", 4, 1, None),
            ("PUBLISH v5 QoS 0, no properties", 5, 0, None),
            ("PUBLISH v5 QoS 1, no properties", 5, 1, None),
            ("PUBLISH v5, expiry", 5, 0, expiry),
            ("PUBLISH v5, alias", 5, 0, alias),
            ("PUBLISH v5, alias, content type", 5, 0, alias | kind),
            ("PUBLISH v5, content type, alias, expiry (cut out)", 5, 0, kind | alias | expiry),
            ("PUBLISH v5, content type, expiry, user property", 5, 0, kind | expiry | user),
        )
    ]
    cases += [
        ("PUBACK v3.1.1", decode_ack_ns, encode_ack(4, 4, 7), False),
        ("PUBACK v5 with Reason Code", decode_ack_ns, encode_ack(5, 4, 7, 0x80), True),
        ("utf8_valid, 31 bytes of ASCII", text_ns, topic, False),
        ("utf8_valid, 29 bytes, some not ASCII", text_ns, "sensören/gebäude-7/größe/x".encode(), False),
        ("topic_name_valid, 31 bytes of ASCII", text_ns, topic, True),
    ]
    for title, run, data, flag in cases:
        print(f"{title:52} {min(run(data, flag, n) for _ in range(5)):7.1f} ns")
