"""What peers say to each other: JSON with a version, in one ZeroMQ message.

Bytes (keys, values) are written as text whose characters are those bytes. A reader ignores fields that it does not
know, and refuses another version, a message that lacks something, and one beyond MESSAGE_BYTES_MAX.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from broker.cluster.contract import OPERATIONS_MAX, Delete, Entry, KeyCondition, Put
from broker.cluster.peers.records import Ballot, EndLease, GrantLease, Position, Record, RecordOperation

__all__ = [
    "ASK_BYTES_MAX",
    "MESSAGE_BYTES_MAX",
    "Acked",
    "Append",
    "Ask",
    "Hello",
    "MalformedPeerMessage",
    "MessageHead",
    "Page",
    "Paged",
    "PeerAnswer",
    "PeerMessage",
    "PeerQuestion",
    "Poll",
    "Polled",
    "decode",
    "encode",
    "size_of",
]

_VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 8 << 20
"""Of one message: the operations of ASK_BYTES_MAX, and other records that travel with them."""
ASK_BYTES_MAX: Final = 1 << 20
"""Of the operations of one transaction, as they are encoded."""
_NUMBER_MAX: Final = (1 << 63) - 1
_ITEMS_MAX: Final = 100_000


class MalformedPeerMessage(ValueError):
    """A message is none of a peer of this release."""


@dataclass(frozen=True, slots=True)
class MessageHead:
    """Who says it.

    run: of the sender's process. node: of its host. address: where the sender is reached, "": it does not know that
    yet. to: the address to which it was sent. votes: whether the sender votes. is_fresh: its host has had no lease
    since its start. term: the highest that it has heard of.
    """

    run: str
    node: str
    address: str
    to: str
    votes: bool
    is_fresh: bool
    term: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Of a peer that follows no leader, and of a leader to those that it does not hear."""


@dataclass(frozen=True, slots=True)
class Poll:
    """Asks whether the receiver would vote for a ballot, or (is_vote) for its vote. `founds`: to begin anew with what
    is kept, because too few have the keys.
    """

    ballot: Ballot
    last: Position
    kept: Position
    founds: bool
    is_vote: bool


@dataclass(frozen=True, slots=True)
class Polled:
    """The answer to Poll. `refuses`: the candidate must not lead, however many others want it."""

    ballot: Ballot
    is_vote: bool
    granted: bool
    refuses: bool


@dataclass(frozen=True, slots=True)
class Append:
    """Of the leader: records behind a position. `commit`: the revision up to which everybody may apply. `round`: of
    questions whether it still leads. `number`: of this message among those for the receiver. `may_vote`: the leader has
    proven to lead since the receiver began.
    """

    ballot: Ballot
    behind: Position
    records: Sequence[Record]
    commit: int
    round: int
    number: int
    may_vote: bool


@dataclass(frozen=True, slots=True)
class Acked:
    """The answer to Append. `matched`: the revision up to which both have the same records; 0: it is not known. `at`:
    what the receiver has applied. `written`: the revision up to which it has written what is kept. `promised`: the
    highest ballot that it knows; another one than `ballot`: it follows that.
    """

    ballot: Ballot
    promised: Ballot
    matched: int
    at: Position
    written: int
    round: int
    number: int


@dataclass(frozen=True, slots=True)
class Page:
    """Of the leader: a part of all keys, as of a position."""

    ballot: Ballot
    at: Position
    kept_at: Position
    number: int
    entries: Sequence[Entry]
    leases: Sequence[tuple[int, int]]
    is_last: bool


@dataclass(frozen=True, slots=True)
class Paged:
    """The answer to Page."""

    ballot: Ballot
    revision: int
    number: int


@dataclass(frozen=True, slots=True)
class PeerQuestion:
    """What the leader is asked to do. kind: "read", "transact", "grant", "renew", "revoke". value: seconds or lease."""

    kind: str
    value: int = 0
    conditions: Sequence[KeyCondition] = ()
    operations: Sequence[Put | Delete] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """A question to the leader."""

    number: int
    question: PeerQuestion


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """The answer to it. outcome: "done", "refused" (a condition does not hold), "lease_ended", "denied", "unknown" (it
    may be done), "elsewhere" (it was not done: the receiver does not lead). value: a revision, a lease, or seconds.
    """

    number: int
    outcome: str
    value: int = 0
    found: Sequence[Entry | None] = ()


PeerMessage = Hello | Poll | Polled | Append | Acked | Page | Paged | Ask | PeerAnswer

_QUESTIONS: Final = ("read", "transact", "grant", "renew", "revoke")
_OUTCOMES: Final = ("done", "refused", "lease_ended", "denied", "unknown", "elsewhere")

# ------------------------------------------------------------ encoding


def _entry_of(entry: Entry | None) -> Any:
    if entry is None:
        return None
    key, value = entry.key.decode("latin-1"), entry.value.decode("latin-1")
    return [key, value, entry.created, entry.changed, entry.lease]


def _operation_of(operation: RecordOperation) -> list[Any]:
    match operation:
        case Put(key, value, lease):
            return ["put", key.decode("latin-1"), value.decode("latin-1"), lease]
        case Delete(key):
            return ["delete", key.decode("latin-1")]
        case GrantLease(seconds):
            return ["grant", seconds]
        case EndLease(lease):
            return ["end", lease]


def _question_of(question: PeerQuestion) -> list[Any]:
    if question.kind != "transact":
        return [question.kind, question.value]
    conditions = [[each.key.decode("latin-1"), each.changed] for each in question.conditions]
    return ["transact", conditions, [_operation_of(each) for each in question.operations]]


def size_of(question: PeerQuestion) -> int:
    """Return the bytes of a question, as it is encoded."""
    return len(orjson.dumps(_question_of(question), default=tuple))


def _body_of(message: PeerMessage) -> dict[str, Any]:
    match message:
        case Hello():
            return {}
        case Append():
            records = [[*each.position, [_operation_of(op) for op in each.operations]] for each in message.records]
        case Page():
            return {
                "ballot": message.ballot,
                "at": message.at,
                "kept_at": message.kept_at,
                "number": message.number,
                "entries": [_entry_of(each) for each in message.entries],
                "leases": message.leases,
                "is_last": message.is_last,
            }
        case Ask():
            return {"number": message.number, "question": _question_of(message.question)}
        case PeerAnswer():
            found = [_entry_of(each) for each in message.found]
            return {"number": message.number, "outcome": message.outcome, "value": message.value, "found": found}
        case _:
            return {name: getattr(message, name) for name in message.__slots__}
    return {**{name: getattr(message, name) for name in message.__slots__}, "records": records}


def encode(head: MessageHead, message: PeerMessage) -> bytes:
    """Return a message for the wire."""
    body = _body_of(message)
    whole = {
        "version": _VERSION,
        "type": type(message).__name__,
        "run": head.run,
        "node": head.node,
        "address": head.address,
        "to": head.to,
        "votes": head.votes,
        "is_fresh": head.is_fresh,
        "term": head.term,
        **body,
    }
    return orjson.dumps(whole, default=tuple)  # ballots and positions are named tuples, which it refuses


# ------------------------------------------------------------ decoding


def decode(packet: bytes) -> tuple[MessageHead, PeerMessage]:
    """Return who says what. Raises MalformedPeerMessage."""
    if len(packet) > MESSAGE_BYTES_MAX:
        raise MalformedPeerMessage(f"{len(packet)} bytes; {MESSAGE_BYTES_MAX} are allowed")
    try:
        read = orjson.loads(packet)
        if not isinstance(read, dict):
            raise TypeError("it is no object")
        if read["version"] != _VERSION:
            raise ValueError(f"its version is {read['version']!r}, this release reads {_VERSION}")
        run, node, address, to = (_text(read[name]) for name in ("run", "node", "address", "to"))
        flags = _flag(read["votes"]), _flag(read["is_fresh"])
        head = MessageHead(run, node, address, to, *flags, _number(read["term"]))
        return head, _DECODERS[read["type"]](read)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise MalformedPeerMessage(f"{type(error).__name__}: {error}"[:300]) from None


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{value!r} is no number")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is no flag")
    return value


def _text(value: Any) -> str:
    if type(value) is not str or len(value) > 300:
        raise TypeError("a name is text of at most 300 characters")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value.encode("latin-1")


def _list(value: Any, items_max: int = _ITEMS_MAX) -> list[Any]:
    if type(value) is not list or len(value) > items_max:
        raise TypeError(f"a list of at most {items_max} items is needed")
    return value


def _ballot(value: Any) -> Ballot:
    term, run = _list(value, 2)
    return Ballot(_number(term), _text(run))


def _position(value: Any) -> Position:
    ballot, revision = _list(value, 2)
    return Position(_ballot(ballot), _number(revision))


def _entry(value: Any) -> Entry:
    key, content, created, changed, lease = _list(value, 5)
    return Entry(_bytes(key), _bytes(content), _number(created), _number(changed), _number(lease))


def _operation(value: Any) -> RecordOperation:
    match _list(value, 4):
        case ["put", key, content, lease]:
            return Put(_bytes(key), _bytes(content), _number(lease))
        case ["delete", key]:
            return Delete(_bytes(key))
        case ["grant", seconds]:
            return GrantLease(_number(seconds))
        case ["end", lease]:
            return EndLease(_number(lease))
    raise ValueError(f"{value[:1]!r} is no operation")


def _record(value: Any) -> Record:
    ballot, revision, operations = _list(value, 3)
    done = tuple(_operation(each) for each in _list(operations))
    return Record(Position(_ballot(ballot), _number(revision)), done, len(done))


def _question(value: Any) -> PeerQuestion:
    kind, *rest = _list(value, 3)
    if kind not in _QUESTIONS:
        raise ValueError(f"{kind!r} is no question")
    if kind != "transact":
        return PeerQuestion(kind, _number(*rest))
    conditions, operations = (_list(each, OPERATIONS_MAX) for each in rest)
    checked = [_operation(each) for each in operations]
    changes = [each for each in checked if isinstance(each, Put | Delete)]
    if len(changes) < len(checked):
        raise ValueError("a transaction puts and deletes")
    return PeerQuestion(kind, 0, [_condition(each) for each in conditions], changes)


def _condition(value: Any) -> KeyCondition:
    key, changed = _list(value, 2)
    return KeyCondition(_bytes(key), _number(changed))


def _answer(read: dict[str, Any]) -> PeerAnswer:
    if read["outcome"] not in _OUTCOMES:
        raise ValueError(f"{read['outcome']!r} is no outcome")
    found = [None if each is None else _entry(each) for each in _list(read["found"], OPERATIONS_MAX)]
    return PeerAnswer(_number(read["number"]), read["outcome"], _number(read["value"]), found)


def _append(read: dict[str, Any]) -> Append:
    return Append(
        _ballot(read["ballot"]),
        _position(read["behind"]),
        [_record(each) for each in _list(read["records"])],
        _number(read["commit"]),
        _number(read["round"]),
        _number(read["number"]),
        _flag(read["may_vote"]),
    )


def _acked(read: dict[str, Any]) -> Acked:
    matched, written, at = _number(read["matched"]), _number(read["written"]), _position(read["at"])
    ballots = _ballot(read["ballot"]), _ballot(read["promised"])
    return Acked(*ballots, matched, at, written, _number(read["round"]), _number(read["number"]))


def _page(read: dict[str, Any]) -> Page:
    leases = [(_number(lease), _number(seconds)) for lease, seconds in map(_list, _list(read["leases"]))]
    entries = [_entry(each) for each in _list(read["entries"])]
    positions = _ballot(read["ballot"]), _position(read["at"]), _position(read["kept_at"])
    return Page(*positions, _number(read["number"]), entries, leases, _flag(read["is_last"]))


def _poll(read: dict[str, Any]) -> Poll:
    founds, is_vote = _flag(read["founds"]), _flag(read["is_vote"])
    return Poll(_ballot(read["ballot"]), _position(read["last"]), _position(read["kept"]), founds, is_vote)


def _polled(read: dict[str, Any]) -> Polled:
    flags = (_flag(read[name]) for name in ("is_vote", "granted", "refuses"))
    return Polled(_ballot(read["ballot"]), *flags)


_DECODERS: Final[dict[str, Callable[[dict[str, Any]], PeerMessage]]] = {
    "Hello": lambda _: Hello(),
    "Poll": _poll,
    "Polled": _polled,
    "Append": _append,
    "Acked": _acked,
    "Page": _page,
    "Paged": lambda read: Paged(_ballot(read["ballot"]), _number(read["revision"]), _number(read["number"])),
    "Ask": lambda read: Ask(_number(read["number"]), _question(read["question"])),
    "PeerAnswer": _answer,
}
