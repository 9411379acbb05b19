# cython: language_level=3
"""Blocks, batches and mesh entries filled from Python, for the tests alone."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from pyx.protocol.message cimport Content, Message
from pyx.storage.entries cimport Choice, Entry, Packed, read_entry
from pyx.storage.records cimport Batch, Block, LogKey, merge_batches


def add(Block block not None, Message message not None):
    """The record's index."""
    return block.add(message)


def index(Block block not None, LogKey key not None, uint32_t record):
    block.index(key, record)


def merge(list batches not None):
    return merge_batches(batches)


def pack(
    Packed packed not None, bytes topic, bytes payload, uint64_t number, int qos=0, bint retain=False,
    bytes properties=b"", expires=None, shared=None, bint insist=False, uint64_t key=0, bint own_frame=False,
    bint retained_only=False,
):
    """Append one entry, as the router does. shared: the group for which the receiver is chosen."""
    cdef Content c
    cdef Choice choice
    cdef bytes group = b"" if shared is None else shared
    choice.group = <const uint8_t*> <const char*> group
    choice.group_len = <uint32_t> len(group)
    choice.insist = insist
    choice.key = key
    memset(&c, 0, sizeof(Content))
    c.topic = <const uint8_t*> <const char*> topic
    c.topic_len = len(topic)
    c.payload = <const uint8_t*> <const char*> payload
    c.payload_len = len(payload)
    c.props = <const uint8_t*> <const char*> properties
    c.props_len = len(properties)
    c.qos = qos
    c.retain = retain
    c.number = number
    c.expires = expires or 0
    packed.entry(
        &c, (0x20 if own_frame else 0) | (0x40 if retained_only else 0), NULL if shared is None else &choice
    )


def unpack(const uint8_t[::1] data):
    """[(topic, payload or None, number, qos, retain, properties, expires, share group or None, insist, key, own_frame,
    retained_only)]."""
    cdef Entry e
    cdef Content* c = &e.content
    cdef size_t at = 0, n = data.shape[0]
    out = []
    while at < n:
        at += read_entry(&data[at], n - at, &e)
        out.append((
            (<char*> c.topic)[:c.topic_len], None if c.payload is NULL else (<char*> c.payload)[:c.payload_len], c.number,
            c.qos, bool(c.retain), (<char*> c.props)[:c.props_len], c.expires,
            None if e.group is NULL else (<char*> e.group)[:e.group_len], bool(e.insist), e.key,
            bool(e.flags & 0x20), bool(e.flags & 0x40),
        ))
    return out
