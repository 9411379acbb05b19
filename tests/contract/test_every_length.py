"""Every field of every record at every length (tests/record_forms.py) is read as it was written, or refused at the
write; never cut, and never taken for another. The compiled code reads and writes the same bytes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any, cast

import pytest

from broker.clients.retaining import Retaining
from broker.replay import questions as replay_questions
from broker.replay.sources import Sources
from leveldb_store.format.archive_schema import ArchivedMessage, decode_block
from leveldb_store.format.queued_messages import StoredQueued, encode_queued
from leveldb_store.format.schema import StoredMessage, encode_message
from leveldb_store.snapshots import snapshot
from leveldb_store.snapshots.snapshot import ArchiveFacts, FileFacts, LinkFacts, Manifest, StoreFacts, read_manifest
from pyx.core.peer import sibling
from pyx.delivery.restoring import unpack_queued
from pyx.protocol.message import Message
from pyx.storage.archive import Archiver
from pyx.storage.entries import Packed
from pyx.storage.stored import pack_stored, unpack_stored
from tests import record_forms
from tests.record_forms import FORMS, MESSAGE, MODULES, REFUSALS, Case, Form, at_every_length, fields_of
from tests.unit.adapters import records_adapter as adapter
from zmq_mesh.envelope import Entry, encode_entry

#: Classes of these modules that are no sample of a form, with the reason
OTHERS = {
    "Part": "its form, Reach, has what lies between its numbers",
    "StoredSubscription": "its form, Subscription, has what is owed as well",
    "EventKind": "each has a form of its own",
    "Event": "likewise",
    "InterestUpdate": "what a peer is told: changes",
}


def classes_of(module: Any) -> set[str]:
    """Return the names of the records that a module defines."""
    return {
        name
        for name, found in inspect.getmembers(module, inspect.isclass)
        if found.__module__ == module.__name__
        and (dataclasses.is_dataclass(found) or (issubclass(found, tuple) and hasattr(found, "_fields")))
    }


def test_every_record_has_a_form() -> None:
    """Fails if a new encoder, class or field is not in the table."""
    encoders = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in MODULES
        for name, found in inspect.getmembers(module, inspect.isfunction)
        if name.startswith("encode_") and found.__module__ == module.__name__
    }
    # many entries in one part are consecutive entries
    assert {form.writes for form in FORMS} - {""} == encoders - {"envelope.encode_entries"}
    known = {type(form.sample).__name__ for form in FORMS} | OTHERS.keys()
    assert set().union(*map(classes_of, MODULES)) <= known
    for form in FORMS:
        assert set(fields_of(form.sample)) == form.most.keys(), form.name


def cases(form: Form) -> list[Case]:
    return list(at_every_length(form))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_what_is_written_is_read(form: Form) -> None:
    for case in cases(form):
        try:
            data = form.encode(case.record)
        except REFUSALS:
            assert case.beyond, f"{case.what} is refused"
            continue
        if case.beyond and case.cut:
            continue
        try:
            found = form.decode(data)
        except REFUSALS:
            assert case.beyond, f"{case.what} is written and not read"
            continue
        assert found == case.record, f"{case.what} is read as another"


@pytest.mark.parametrize("form", [form for form in FORMS if form.name.startswith("event ")], ids=lambda form: form.name)
def test_an_event_keeps_the_beginning_of_a_longer_text(form: Form) -> None:
    for case in cases(form):
        if case.beyond and case.cut:
            name = case.what.partition(" ")[0]
            whole, found = getattr(case.record, name), getattr(form.decode(form.encode(case.record)), name)
            assert found == whole[: len(found)]
            assert len(found) == form.most[name].value  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------------ the compiled code


def made(message: StoredMessage) -> Message:
    return Message.create(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.number,
        message.expires or 0, publisher=message.publisher,
    )  # fmt: skip


def found_in(message: Message) -> StoredMessage:
    return StoredMessage(
        message.topic, bytes(message.payload), message.number, message.qos, message.retain, message.properties,
        message.expires or None, message.publisher,
    )  # fmt: skip


def fitting(form: Form) -> list[Case]:
    """Return the cases within the greatest lengths."""
    return [case for case in cases(form) if not case.beyond]


@pytest.mark.parametrize("form", record_forms.STORE[:2], ids=lambda form: form.name)
def test_compiled_messages(form: Form) -> None:
    for case in fitting(form):
        message: StoredMessage = case.record
        data = encode_message(message)
        assert pack_stored([made(message)]) == data, case.what
        assert [found_in(each) for each in unpack_stored(data, lambda _: -1)] == [message], case.what


def test_compiled_queued_messages() -> None:
    (form,) = (form for form in FORMS if form.name == "queued message")
    for case in fitting(form):
        queued: StoredQueued = case.record
        if case.what.startswith("message.properties"):  # its interval would be searched for in them
            queued = queued._replace(message=dataclasses.replace(queued.message, expires=None))
        flags, group, identifiers, message = unpack_queued(encode_queued(queued))
        assert StoredQueued(flags, group, identifiers or b"", found_in(message)) == queued, case.what


def test_compiled_archived_messages() -> None:
    for case in fitting(record_forms.ARCHIVED):
        archived: ArchivedMessage = case.record
        archiver = Archiver([b"#"])
        assert archiver.add(made(archived.message), archived.matches)
        ((*_, block),) = archiver.take()
        assert list(decode_block(block)) == [archived], case.what


def test_compiled_entries() -> None:
    (form,) = (form for form in FORMS if form.name == "entry")
    for case in fitting(form):
        entry: Entry = dataclasses.replace(case.record, control=False)
        data, packed = encode_entry(entry), Packed()
        adapter.pack(
            packed, entry.topic, entry.payload, entry.number, entry.qos, entry.retain, entry.properties, entry.expires,
            entry.shared, entry.insist, entry.key, entry.own_frame, entry.retained_only,
        )  # fmt: skip
        assert bytes(memoryview(packed)) == data, case.what
        ((topic, payload, number, _, _, properties, _, shared, *_),) = adapter.unpack(data)
        assert (topic, payload, number, properties, shared) == (
            entry.topic, entry.payload, entry.number, entry.properties, entry.shared,
        ), case.what  # fmt: skip


# ----------------------------------------------------------------------------------------------- the manifest


def facts_with(value: int) -> StoreFacts:
    numbers = {each.name: value for each in dataclasses.fields(LinkFacts)}
    archived = {each.name: value for each in dataclasses.fields(ArchiveFacts)}
    name = "x" * value if value < 256 else "x" * 255
    return StoreFacts(
        0, name or "worker-0", value, value, value, {"S": value}, {"position": value},
        {sibling(1): LinkFacts(**numbers)},
        {"x" * min(value, 0xFFFF): ArchiveFacts(**archived)}, {name or "file": FileFacts(value, "xxh3_128:" + name)},
    )  # fmt: skip


@pytest.mark.parametrize("value", [0, 1, 0xFFFE, 0xFFFF, 0x10000, 2**32, 2**64 - 1])
def test_the_manifest_of_a_snapshot(tmp_path: Path, value: int) -> None:
    facts = facts_with(value)
    rules = [{"filter": "x" * min(value, 0xFFFF), "age_ms": value, "bytes_max": value}]
    manifest = Manifest(
        snapshot.FORMAT, 2, "1", value, 1, "epoch", value, "archive", rules, [facts], (value, value)
    )  # fmt: skip
    (tmp_path / snapshot.NAME).write_text(json.dumps(dataclasses.asdict(manifest)))
    assert read_manifest(tmp_path) == manifest


# -------------------------------------------------------------------------------------- words between workers

NUMBERS = (0, 1, 2**64 - 2, 2**64 - 1)
LENGTHS = (1, 65_534, 65_535)


class Heard:
    """Replaces the surroundings of a part of the broker: calls are recorded and do nothing."""

    def __init__(self, **known: Any) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.calls.append((name, arguments))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("number", NUMBERS)
def test_questions_of_replays(number: int, length: int) -> None:
    for bytes_max in (0, 1, 2**32 - 2, 2**32 - 1):
        question = replay_questions.Question(sibling(1), number, b"f" * length, number, number, bytes_max)
        for at_once in (False, True):
            heard = Heard()
            Sources.asked(cast(Any, heard), sibling(1), replay_questions.read_of(question, at_once))
            ((_, (found, once)),) = heard.calls
            assert once is at_once
            for name in ("peer", "number", "filter", "after", "start", "bytes_max"):
                assert getattr(found, name) == getattr(question, name)
    with pytest.raises(REFUSALS):
        replay_questions.read_of(replay_questions.Question(sibling(1), 2**64, b"f", 0, 0, 0), False)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("number", NUMBERS)
def test_where_replays_may_begin(number: int, length: int) -> None:
    filters = [b"f" * length, b"g", b"h" * length]
    asked: list[bytes] = []

    def start(text: bytes) -> int:
        asked.append(text)
        return number

    router, archive = Heard(next_number=lambda: number), Heard(start=start)
    Sources.probed(
        cast(Any, Heard(_archive=archive, _router=Heard(state=router, peers=router))),
        sibling(1),
        replay_questions.probe_of(number, filters),
    )
    assert asked == filters
    ((_, (peer, word, answer)),) = router.calls
    assert (peer, word) == (1, b"O")
    assert replay_questions.starts_of(answer) == (number, number, [number] * 3)
    with pytest.raises(REFUSALS):
        replay_questions.probe_of(number, [b"f" * 65_536])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("number", NUMBERS)
def test_questions_for_retained_messages(number: int, length: int) -> None:
    text, at, message = b"f" * length, b"t" * length, made(MESSAGE.sample)
    router, queued = Heard(), Heard(when_taken=lambda call: call())
    for after in (b"", at):
        walk = Heard(parts={1: after}, filter=text)
        questions = {number: (walk, 1)}
        asking = Heard(_questions=questions, _context=Heard(is_ready=bool), _router=Heard(peers=router))
        Retaining._put(cast(Any, asking), number)
        _, (_, word, question) = router.calls.pop()
        assert word == b"?"
        Retaining.asked(cast(Any, queued), sibling(1), question)
        _, (asked,) = queued.calls.pop()
        assert asked == (1, (number, text, after))
        for further in (None, at):
            page = Heard(_page=lambda *_, further=further: ([message], further), _router=Heard(peers=router))
            Retaining._answer(cast(Any, page), asked)
            _, (_, word, answer) = router.calls.pop()
            assert word == b"!"
            context = Heard()
            answered = Heard(_questions=questions, _held={}, _context=context, _take_page=None)
            Retaining.answered(cast(Any, answered), sibling(1), answer)
            ((_, (_, _, found, goes_on, messages)),) = context.calls
            assert (found, goes_on) == (number, further)
            assert [found_in(each) for each in unpack_stored(messages, lambda _: -1)] == [MESSAGE.sample]
