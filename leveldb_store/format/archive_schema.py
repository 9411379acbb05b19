"""Formats of the archive in a store: rules, blocks of messages, removals by retention; a plain decoder of each.

Part of `leveldb_store.format.schema`: nothing here needs the compiled code, a database or the broker.
`pyx.storage.archive` packs and unpacks the same records; one test compares both with the same golden bytes.

    C filter                                        a rule: its number, its place in the configuration, age, bytes
    A u16 rule | u8 origin | u64 last number        a block: messages of one rule that one worker has archived
    K u16 rule | u8 origin                          u64: the highest number that retention has removed there
    M u16 rule | u8 origin | u64 last number        a summary of the topics in a stretch of blocks

A message number is microseconds since 1970 (UTC) << 8 | worker. For one origin numbers rise from block to block and
from message to message. The last number is in the key, so that the block behind a number is one seek away.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from leveldb_store.format.schema import (
    ARCHIVE_REMOVED,
    ARCHIVE_RULE,
    ARCHIVE_SUMMARY,
    ARCHIVED,
    SchemaError,
    StoredMessage,
    decode_message,
    encode_message,
    prefix_end,
)

FORMAT: Final = 1
HEAD: Final = struct.Struct("<BIQQQB")
RECORD_HEAD: Final = struct.Struct("<IB")
RULE: Final = struct.Struct("<HHQQQQ")
RULE_1: Final = struct.Struct("<HHQQ")
"""Format of a rule in stores of schema version 1: without `since` and `changed`."""
_FNV_BASIS: Final = 0xCBF29CE484222325  # FNV-1a, 64 bits
_FNV_PRIME: Final = 0x100000001B3
_KEY: Final = struct.Struct(">HBQ")
_KEY_RULE: Final = struct.Struct(">H")
_KEY_ORIGIN: Final = struct.Struct(">HB")

HIGHEST: Final = 2**64 - 1
LEVELS_MAX: Final = 8  # different first levels named in a block; with more it is marked as having many
LEVEL_BYTES_MAX: Final = 255
MANY: Final = 0xFF
NOT_CONFIGURED: Final = 0xFFFF  # place of a rule that is no longer configured and still has messages
TENANT: Final = "default"
NUMBER_WORKER_BITS: Final = 8
RULE_NUMBERS: Final = 0xFFFF
SUMMARY_FORMAT: Final = 1
SUMMARY_HEAD: Final = struct.Struct("<BQI")
SUMMARY_BITS_BYTES: Final = 1024
SUMMARY_BLOCKS: Final = 256  # largest size of a stretch: blocks,
SUMMARY_STRETCH_BYTES: Final = 256 << 10  # ... or bytes of blocks
BLOCK_KEY_BYTES: Final = 1 + _KEY.size


class Rule(NamedTuple):
    """An `[[archive]]` table, as stored."""

    topic_filter: bytes
    number: int
    """Its number in this store, from 1; other stores may have other numbers."""
    place: int
    """Place in the configuration, from 0: the first rule that matches a topic archives it."""
    age_ms: int
    """Messages are kept for this time, ..."""
    bytes_max: int
    """... and at most so many bytes of keys and values of blocks in this store."""
    since: int = 0
    """Configured without a break for messages behind this number."""
    changed: int = HIGHEST
    """Configured: no rule was moved in front of it behind this number. Not configured: it was until this number.
    HIGHEST: not known.
    """


class ArchivedMessage(NamedTuple):
    """A message in a block."""

    message: StoredMessage
    """`publisher`: the client id; None: the broker itself."""
    matches: int
    """Number of matching subscriptions of the publisher's worker."""
    tenant: str = TENANT


class BlockHead(NamedTuple):
    """The head of a block, before its messages."""

    messages: int
    first: int
    """Number of the first message."""
    messages_before: int
    """Running count: all messages of this rule and origin ever archived before this block."""
    bytes_before: int
    """Running count of the bytes of keys and values."""
    levels: frozenset[bytes] | None
    """The first levels of its topics; None: too many, or too long."""
    size: int
    """Offset of the messages."""


# ---------------------------------------------------------------- keys


def rule_key(topic_filter: bytes) -> bytes:
    """Return the key of a rule."""
    return ARCHIVE_RULE + topic_filter


def block_key(rule: int, origin: int, number: int) -> bytes:
    """Return the key of the block that ends with message `number`; to seek the next message: that of number + 1."""
    return ARCHIVED + _KEY.pack(rule, origin, number)


def blocks_of(rule: int) -> bytes:
    """Return the prefix of the keys of a rule's blocks."""
    return ARCHIVED + _KEY_RULE.pack(rule)


def sequence(rule: int, origin: int) -> bytes:
    """Return the prefix of the keys of one worker's blocks under a rule."""
    return ARCHIVED + _KEY_ORIGIN.pack(rule, origin)


def sequence_end(rule: int, origin: int) -> bytes | None:
    """Return the key behind all keys of a sequence."""
    return prefix_end(sequence(rule, origin))


def rule_of(key: bytes) -> int:
    """Return the rule in a key of a block, also in one truncated after it."""
    (rule,) = _KEY_RULE.unpack_from(key, 1)
    return int(rule)


def removed_key(rule: int, origin: int) -> bytes:
    """Return the key of the highest number that retention has removed from a sequence."""
    return ARCHIVE_REMOVED + _KEY_ORIGIN.pack(rule, origin)


def summary_key(rule: int, origin: int, number: int) -> bytes:
    """Return the key of the summary of a stretch that ends with message `number`."""
    return ARCHIVE_SUMMARY + _KEY.pack(rule, origin, number)


def split_block(key: bytes) -> tuple[int, int, int]:
    """Split the key of a block into (rule, origin, last number); SchemaError if it is invalid."""
    try:
        rule, origin, number = _KEY.unpack(key[1:])
    except struct.error as error:
        raise SchemaError(f"the key of an archived block is damaged: {error}") from None
    return rule, origin, number


def split_removed(key: bytes) -> tuple[int, int]:
    """Split the key of a removal into (rule, origin); SchemaError if it is invalid."""
    try:
        rule, origin = _KEY_ORIGIN.unpack(key[1:])
    except struct.error as error:
        raise SchemaError(f"the key of what was removed from the archive is damaged: {error}") from None
    return rule, origin


def unix_ms(number: int) -> int:
    """Return the Unix time in ms at which a message with this number was received."""
    return (number >> NUMBER_WORKER_BITS) // 1000


def first_level(topic: bytes) -> bytes:
    """Return the first level of a topic or filter."""
    return topic.partition(b"/")[0]


# ---------------------------------------------------------------- values


def encode_rule(rule: Rule) -> bytes:
    """Encode a rule's value; its filter is in the key."""
    return RULE.pack(*rule[1:])


def decode_rule(key: bytes, data: bytes) -> Rule:
    """Decode a rule; SchemaError if it is damaged."""
    if len(data) == RULE_1.size:
        return Rule(key[1:], *RULE_1.unpack(data))
    if len(data) != RULE.size:
        raise SchemaError(f"a rule of the archive has {len(data)} bytes instead of {RULE.size}")
    return Rule(key[1:], *RULE.unpack(data))


def encode_head(count: int, first: int, messages_before: int, bytes_before: int, levels: list[bytes] | None) -> bytes:
    """Encode the head of a block. `levels`: the first levels of its topics, None: many."""
    named = levels is not None and len(levels) <= LEVELS_MAX and all(len(each) <= LEVEL_BYTES_MAX for each in levels)
    listed = levels if named and levels is not None else []
    head = HEAD.pack(FORMAT, count, first, messages_before, bytes_before, len(listed) if named else MANY)
    return head + b"".join(bytes((len(each),)) + each for each in listed)


def decode_head(data: bytes) -> BlockHead:
    """Decode the head of a block; SchemaError if it is damaged."""
    if len(data) < HEAD.size:
        raise SchemaError("an archived block is cut off")
    block_format, count, first, messages_before, bytes_before, many = HEAD.unpack_from(data)
    if block_format != FORMAT:
        raise SchemaError(f"an archived block has format {block_format}, known is {FORMAT}")
    at, levels = HEAD.size, []
    for _ in range(0 if many == MANY else many):
        end = at + 1 + (data[at] if at < len(data) else 0)
        levels.append(data[at + 1 : end])
        at = end
    if at > len(data) or not count:
        raise SchemaError("an archived block is damaged")
    return BlockHead(count, first, messages_before, bytes_before, None if many == MANY else frozenset(levels), at)


def encode_summary(first: int, blocks: int, bits: bytes | bytearray) -> bytes:
    """Encode a summary. `first`: number of the first message of the stretch."""
    return SUMMARY_HEAD.pack(SUMMARY_FORMAT, first, blocks) + bits


def decode_summary(data: bytes) -> tuple[int, int, bytes]:
    """Decode a summary into (first number, blocks, bits); SchemaError if it is damaged."""
    if len(data) != SUMMARY_HEAD.size + SUMMARY_BITS_BYTES:
        raise SchemaError(f"a summary of the archive has {len(data)} bytes")
    summary_format, first, blocks = SUMMARY_HEAD.unpack_from(data)
    if summary_format != SUMMARY_FORMAT:
        raise SchemaError(f"a summary of the archive has format {summary_format}, known is {SUMMARY_FORMAT}")
    return first, blocks, data[SUMMARY_HEAD.size :]


def summarised(topic: bytes) -> set[int]:
    """Return a topic's bits in a summary: of itself, and of each of its levels with its place, from 1."""
    bits = set()
    for start, text in [(0, topic), *enumerate(topic.split(b"/"), 1)]:
        found = (_FNV_BASIS ^ start) * _FNV_PRIME & HIGHEST
        for byte in text:
            found = (found ^ byte) * _FNV_PRIME & HIGHEST
        found = (found ^ found >> 33) * 0xFF51AFD7ED558CCD & HIGHEST
        found ^= found >> 29
        bits |= {found % (8 * SUMMARY_BITS_BYTES), (found >> 32) % (8 * SUMMARY_BITS_BYTES)}
    return bits


def encode_record(archived: ArchivedMessage) -> bytes:
    """Encode a message in a block."""
    if archived.tenant != TENANT:
        raise SchemaError(f"tenant {archived.tenant!r} has no number")
    return RECORD_HEAD.pack(archived.matches, 0) + encode_message(archived.message)


def encode_block(messages: list[ArchivedMessage], messages_before: int, bytes_before: int) -> bytes:
    """Encode a block; the number of its last message is in the key."""
    levels = list(dict.fromkeys(first_level(each.message.topic) for each in messages))
    head = encode_head(len(messages), messages[0].message.number, messages_before, bytes_before, levels)
    return head + b"".join(map(encode_record, messages))


def decode_block(data: bytes) -> Iterator[ArchivedMessage]:
    """Decode the messages of a block, their numbers rising; SchemaError if it is damaged."""
    head = decode_head(data)
    at = head.size
    for _ in range(head.messages):
        if len(data) - at < RECORD_HEAD.size:
            raise SchemaError("an archived message is cut off")
        matches, tenant = RECORD_HEAD.unpack_from(data, at)
        if tenant:
            raise SchemaError(f"an archived message is of tenant {tenant}, which is not known")
        message, at = decode_message(data, at + RECORD_HEAD.size)
        yield ArchivedMessage(message, matches)
    if at != len(data):
        raise SchemaError(f"{len(data) - at} bytes follow an archived block")
