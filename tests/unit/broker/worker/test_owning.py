"""A worker owns a client id before it serves the client, whatever order it hears things in."""

from __future__ import annotations

import pytest

from broker.cluster.owner_messages import RequestKind
from broker.worker.owner_wait import Fate
from broker.worker.owning import GIVEN, TAKEN
from broker.worker.session_parts import GIVE, GIVE_TERMS, GO_ON, LATE, NOTHING, GiveKind
from tests.owning_host import HERE, THERE, OwningHost, owning
from tests.wire import connect, subscribe

__all__ = ["owning"]


def test_a_client_is_served_when_its_id_is_owned(owning: OwningHost) -> None:
    client = owning.connects("c")
    client.silent()
    question = owning.question()
    assert (question.kind, question.client_id) == (RequestKind.CLAIM, "c")
    owning.answer(question, HERE, 7)
    assert client.next("CONNACK").reason == 0


def test_an_answer_that_is_older_than_a_take_over(owning: OwningHost) -> None:
    """Another host has taken the client id before the answer to the claim has come here: that one owns it."""
    client = owning.connects("c")
    question = owning.question()
    owning.taken("c", 8, Fate.CLEAN_START)
    assert owning.told == [(GIVEN, 8)]
    owning.answer(question, HERE, 7)
    client.silent()
    again = owning.question()
    assert (again.kind, again.client_id) == (RequestKind.CLAIM, "c")
    owning.answer(again, THERE, 8)
    owning.hears(NOTHING, owning.told[-1][1], "c")
    take = owning.question()
    assert (take.kind, take.epoch) == (RequestKind.TAKE, 8)
    owning.answer(take, HERE, 9)
    owning.hears(GIVEN, 9, "c")
    assert client.next("CONNACK").reason == 0


def test_an_answer_that_is_newer_than_a_take_over(owning: OwningHost) -> None:
    """It is owned here again."""
    client = owning.connects("c")
    question = owning.question()
    owning.taken("c", 6, Fate.CLEAN_START)
    owning.answer(question, HERE, 7)
    assert client.next("CONNACK").reason == 0


def test_epochs_that_begin_anew(owning: OwningHost) -> None:
    """Of an etcd that has lost its data: the client is served, after some questions."""
    client = owning.connects("c")
    owning.taken("c", 1000, Fate.CLEAN_START)
    for _ in range(10):
        owning.answer(owning.question(), HERE, 1)
        if client.packets or client.take():
            break
    assert client.next("CONNACK").reason == 0


def test_take_overs_are_forgotten(owning: OwningHost) -> None:
    owning.taken("c", 1000, Fate.CLEAN_START)
    owning.host.pass_time(61)
    owning.owning.tick(owning.host.now)
    client = owning.connects("c")
    owning.answer(owning.question(), HERE, 7)
    assert client.next("CONNACK").reason == 0


@pytest.mark.parametrize("fate", [Fate.STAYS, Fate.CLEAN_START])
def test_what_was_taken_back_is_taken_again_at_once(owning: OwningHost, fate: Fate) -> None:
    """The former owner's answer comes after it has taken the client id again, with a newer epoch: that counts."""
    client = owning.connects("c", clean=False, expiry=600)
    owning.answer(owning.question(), HERE, 7)
    assert client.next("CONNACK").reason == 0
    owning.taken("c", 8, Fate.STAYS)
    owning.pass_time(1)
    owning.answer(owning.question(), THERE, 8)
    handed_over = next(number for kind, number in owning.told if kind == LATE)
    owning.hears(NOTHING, handed_over, "c")
    take = owning.question()
    assert take.kind == RequestKind.TAKE
    owning.answer(take, HERE, 9)
    owning.taken("c", 10, fate)
    owning.hears(GIVEN, 9, "c")
    claim = owning.question()
    assert (claim.kind, claim.client_id) == (RequestKind.CLAIM, "c")
    session = owning.host.node.sessions.get("c")
    assert session is None or session.details.epoch == 0


def waits_for_the_end(owning: OwningHost, is_proven: bool) -> None:
    """Let a client begin anew whose former session takes long to clear, and stop while it waits for that."""
    client = owning.serves("c", clean=False, expiry=600)
    for turn in range(60):
        filters = [(f"f/{turn}/{at}", 1) for at in range(100)]
        client.send(subscribe(5, client.packet_id(), *filters))
        owning.host.pass_time(0.1)
    owning.host.settle()
    again = owning.host.open(5)
    again.conn.fd = client.conn.fd
    again.client_id = "c"
    if not is_proven:  # its host has another lease
        owning.stands(2)
    again.send(connect(5, "c", clean=True, properties={"session_expiry_interval": 600}))
    if not is_proven:
        owning.host.settle()
        owning.answer(owning.question(), "", 0, is_known=False, settles=False)
    while "c" not in owning.host.node.endings.clients:
        owning.host.turn()


def test_a_client_that_is_not_proven_waits_until_its_former_session_has_ended(owning: OwningHost) -> None:
    """Its owner is asked for as soon as it has a session, not only before."""
    waits_for_the_end(owning, is_proven=False)
    owning.owning.tick(owning.host.now)  # there is no session yet
    owning.host.settle()
    session = owning.host.node.sessions.get("c")
    assert session is not None
    assert session.details.epoch == 0
    owning.pass_time(6)
    claim = owning.question()
    assert (claim.kind, claim.client_id) == (RequestKind.CLAIM, "c")


def test_a_client_that_waits_until_its_former_session_has_ended(owning: OwningHost) -> None:
    """Another host takes the client id meanwhile: its session here is not an owner's."""
    waits_for_the_end(owning, is_proven=True)
    owning.taken("c", 8, Fate.CLEAN_START)
    session = owning.host.node.sessions.get("c")
    assert session is not None
    assert session.details.epoch == 0
    owning.pass_time(1)
    claim = owning.question()
    assert (claim.kind, claim.client_id) == (RequestKind.CLAIM, "c")


def test_what_is_found_to_be_owned_without_a_session_is_released(owning: OwningHost) -> None:
    """Its session has ended while it was asked who owns it."""
    client = owning.connects("c", clean=False, expiry=600)
    owning.answer(owning.question(), HERE, 7)
    assert client.next("CONNACK").reason == 0
    owning.taken("c", 8, Fate.STAYS)
    owning.pass_time(1)
    claim = owning.question()
    session = owning.host.node.sessions.get("c")
    assert session is not None
    owning.host.node.endings.end_moved(session)
    owning.answer(claim, HERE, 9)
    owning.pass_time(30)
    assert owning.question().kind == RequestKind.RELEASE


def test_a_session_that_has_come_and_is_taken_again_before_it_is_served(owning: OwningHost) -> None:
    """Its former host has ended it: it counts, and is handed over to the one that owns the client id."""
    owning.connects("c", clean=False, expiry=600)
    owning.answer(owning.question(), THERE, 8)
    kind, number = owning.told[-1]
    assert kind == GIVE
    owning.comes("c", number)
    assert (GO_ON, number) in owning.told
    take = owning.question()
    assert (take.kind, take.epoch) == (RequestKind.TAKE, 8)
    session = owning.host.node.sessions.get("c")
    owning.taken("c", 10, Fate.STAYS)
    owning.answer(take, HERE, 9)
    assert owning.told[-1] == (TAKEN, 9)
    owning.hears(GIVEN, 9, "c")
    owning.answer(owning.question(), THERE, 10)
    assert owning.told[-1][0] == LATE
    assert owning.host.node.sessions.get("c") is session


def test_a_client_that_starts_anew_elsewhere_is_not_served_until_it_is_known_who_owns_it(owning: OwningHost) -> None:
    """The other host asks before it takes the client id: it may be killed before it tells."""
    client = owning.serves("c", expiry=600, clean=False)
    owning.hears(GIVE, 5, "c", GIVE_TERMS.pack(7, GiveKind.NOTHING))
    assert client.closed
    assert owning.told == [(NOTHING, 5)]
    owning.pass_time(11)
    owning.answer(owning.question(), THERE, 9)
    assert owning.told[-1][0] == LATE, "what it has is handed over"
    owning.hears(NOTHING, owning.told[-1][1], "c")
    question = owning.question()
    assert (question.kind, question.epoch) == (RequestKind.TAKE, 9), "the other one has no session: it is taken back"
    owning.answer(question, HERE, 12)
    owning.hears(GIVEN, 12, "c")
    session = owning.host.node.sessions.get("c")
    assert session is not None
    assert session.details.epoch == 12


def test_the_session_of_a_client_that_starts_anew_elsewhere_ends(owning: OwningHost) -> None:
    owning.serves("c", expiry=600, clean=False)
    owning.hears(GIVE, 5, "c", GIVE_TERMS.pack(7, GiveKind.NOTHING))
    owning.taken("c", 9, Fate.CLEAN_START)
    assert owning.host.node.sessions.get("c") is None
    owning.pass_time(11)
    assert not owning.has_asked()


def test_a_client_starts_anew_here_after_the_former_owner_was_asked(owning: OwningHost) -> None:
    client = owning.connects("c", clean=True)
    owning.answer(owning.question(), THERE, 7)
    kind, number = owning.told[-1]
    assert kind == GIVE
    assert not owning.has_asked(), "it is taken when the other host has answered"
    owning.hears(NOTHING, number, "c")
    question = owning.question()
    assert (question.kind, question.epoch) == (RequestKind.TAKE, 7)
    owning.answer(question, HERE, 8)
    owning.hears(GIVEN, 8, "c")
    assert client.next("CONNACK").reason == 0


def test_a_session_that_begins_after_another_host_was_told_that_there_is_none(owning: OwningHost) -> None:
    """The other one has taken the client id, and was killed before it told: this host would never hear of it."""
    owning.hears(GIVE, 5, "c", GIVE_TERMS.pack(7, GiveKind.SESSION))
    assert owning.told == [(NOTHING, 5)]
    client = owning.serves("c", epoch=7)
    owning.pass_time(11)
    owning.answer(owning.question(), THERE, 9)
    assert client.closed
