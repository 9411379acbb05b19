"""A host that drains sends its clients away and offers their sessions, and a host takes what it is offered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from broker.cluster.owner_messages import RequestKind
from broker.worker.draining import OFFER, Taker
from broker.worker.owner_wait import Fate
from broker.worker.owning import GIVEN, TAKEN
from broker.worker.session_parts import ALL_THERE, CANCEL, DONE, GIVE, GIVE_TERMS, GO_ON, LATE, NOTHING, GiveKind
from pyx.core import counters as count
from tests.owning_host import HERE, OTHER, THERE, OwningHost, owning

__all__ = ["owning"]

ANOTHER_SERVER = 0x9C
TAKERS = [Taker(OTHER, "there.example:1883"), Taker(OTHER + 1, ""), Taker(OTHER + 2, "[::1]:1883")]
REFERENCE = "there.example:1883 [::1]:1883"


@pytest.fixture
def slow() -> Iterator[OwningHost]:
    """A host that sends one away in a second."""
    with contextlib.ExitStack() as ends:
        yield OwningHost(ends, drain_per_second=1)


def offers(owning: OwningHost) -> int:
    return sum(kind == OFFER for kind, _ in owning.told)


def away(owning: OwningHost, *client_ids: str) -> None:
    """Make sessions whose clients have gone."""
    for client_id in client_ids:
        owning.host.lose(owning.serves(client_id, clean=False, expiry=600))


def test_clients_are_told_to_use_another_server(owning: OwningHost) -> None:
    """[MQTT-4.13.1-1] With the addresses of those hosts that say one; MQTT 3 knows no DISCONNECT of a server."""
    newest, older = owning.serves("c5"), owning.serves("c3", version=4)
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(2)
    told = newest.next("DISCONNECT")
    assert told.reason == ANOTHER_SERVER
    assert told.properties["server_reference"] == REFERENCE
    assert newest.closed
    older.silent()
    assert older.closed
    assert owning.host.node.counters.get(count.CLIENTS_SENT_AWAY) == 2


def test_whoever_connects_is_refused(owning: OwningHost) -> None:
    """Also a client whose session is here: another host brings it."""
    away(owning, "c")
    owning.owning.draining.set(True, TAKERS)
    refused = owning.connects("c", clean=False, expiry=600).next("CONNACK")
    assert (refused.reason, refused.properties["server_reference"]) == (ANOTHER_SERVER, REFERENCE)
    assert owning.connects("d", version=4).next("CONNACK").reason == 3
    owning.owning.draining.set(False, TAKERS)
    assert owning.connects("c", clean=False, expiry=600).next("CONNACK").session_present


def test_nobody_is_sent_away_while_no_host_takes_clients(owning: OwningHost) -> None:
    away(owning, "offline")
    client = owning.serves("c")
    owning.owning.draining.set(True, [])
    owning.pass_time(5)
    client.silent()
    assert not owning.owning.draining.is_on
    assert offers(owning) == 0
    owning.serves("d")
    owning.owning.draining.set(True, TAKERS)  # one has joined
    owning.pass_time(1)
    assert client.next("DISCONNECT").reason == ANOTHER_SERVER


def test_the_pace(slow: OwningHost) -> None:
    """After a long silence, too, not more than a second's are sent away at once."""
    clients = [slow.serves(f"c{at}") for at in range(5)]
    slow.owning.draining.set(True, TAKERS)
    slow.pass_time(1)
    assert sum(each.closed for each in clients) == 1
    slow.host.pass_time(100)
    slow.owning.tick(slow.host.now)
    slow.host.settle()
    assert sum(each.closed for each in clients) == 2
    slow.pass_time(5)
    assert all(each.closed for each in clients)


def test_sessions_are_offered_to_each_host_in_turn(owning: OwningHost) -> None:
    away(owning, "c", "d", "e")
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(1)
    assert [each for each in owning.told_hosts if each[1] == OFFER] == [(taker.number, OFFER) for taker in TAKERS]
    owning.pass_time(8)
    assert offers(owning) == 3
    owning.pass_time(3)
    assert offers(owning) == 6  # none has come for them


def test_a_client_that_was_told_to_go_takes_its_session_itself(owning: OwningHost) -> None:
    """It has time for that, and only then the session is offered."""
    owning.serves("c", clean=False, expiry=600)
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(9)
    assert offers(owning) == 0
    owning.pass_time(3)
    assert offers(owning) == 1


def test_what_is_not_offered(owning: OwningHost) -> None:
    """A session that another host may own, and one that is on its way."""
    away(owning, "doubtful", "leaves")
    doubtful = owning.host.node.sessions.get("doubtful")
    assert doubtful is not None
    doubtful.details.epoch = 0
    owning.hears(GIVE, 5, "leaves", GIVE_TERMS.pack(7, GiveKind.SESSION))
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(3)
    assert offers(owning) == 0


@pytest.mark.parametrize("sessions", [0, 1, 64, 65, 200])
def test_so_many_are_offered_at_a_time(owning: OwningHost, sessions: int) -> None:
    """Those that have gone make room for others."""
    away(owning, *(f"c{at}" for at in range(sessions)))
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(3)
    assert offers(owning) == min(sessions, 64)
    for client_id in owning.host.node.sessions.clients()[:64]:
        session = owning.host.node.sessions.get(client_id)
        assert session is not None
        owning.host.node.endings.end_moved(session)
    owning.pass_time(3)
    assert offers(owning) <= sessions
    assert offers(owning) >= min(sessions, 64)


def test_what_is_left(owning: OwningHost) -> None:
    away(owning, "c")
    owning.serves("d")
    draining = owning.owning.draining
    assert draining.report() == {"on": False, "connected": 1, "sessions": 2, "left_behind": 0, "coming": 0}
    draining.set(True, TAKERS)
    owning.pass_time(2)
    assert draining.report() == {"on": True, "connected": 0, "sessions": 1, "left_behind": 0, "coming": 0}


def test_it_ends(owning: OwningHost) -> None:
    away(owning, "c")
    owning.owning.draining.set(True, TAKERS)
    owning.owning.draining.set(False, TAKERS)
    owning.pass_time(3)
    assert offers(owning) == 0
    assert owning.connects("c", clean=False, expiry=600).next("CONNACK").session_present


# ---------------------------------------------------------------- the host that takes


def test_an_offered_session_comes_and_is_owned_here(owning: OwningHost) -> None:
    owning.hears(OFFER, 8, "c")
    kind, number = owning.told[-1]
    assert kind == GIVE
    owning.comes("c", number)
    assert (GO_ON, number) in owning.told
    take = owning.question()
    assert (take.kind, take.epoch, take.client_id) == (RequestKind.TAKE, 8, "c")
    owning.answer(take, HERE, 9)
    assert owning.told[-1] == (TAKEN, 9)
    owning.hears(GIVEN, 9, "c")
    session = owning.host.node.sessions.get("c")
    assert session is not None
    assert session.details.epoch == 9
    assert owning.connects("c", clean=False, expiry=600).next("CONNACK").session_present


@pytest.mark.parametrize("step", ["asked", "state", "taken"])
def test_its_client_connects_while_it_comes(owning: OwningHost, step: str) -> None:
    """It waits, and finds its session."""
    owning.hears(OFFER, 8, "c")
    number = owning.told[-1][1]
    if step == "asked":
        client = owning.connects("c", clean=False, expiry=600)
    owning.comes("c", number)
    if step == "state":
        client = owning.connects("c", clean=False, expiry=600)
    owning.answer(owning.question(), HERE, 9)
    if step == "taken":
        client = owning.connects("c", clean=False, expiry=600)
    client.silent()
    owning.hears(GIVEN, 9, "c")
    assert client.next("CONNACK").session_present


def test_what_is_offered_in_vain(owning: OwningHost) -> None:
    """A host that has the session itself, waits for its owner, or drains, does nothing."""
    owning.serves("has", clean=False, expiry=600)
    owning.connects("waits")
    owning.question()
    for client_id in ("has", "waits"):
        owning.hears(OFFER, 8, client_id)
    owning.owning.draining.set(True, TAKERS)
    owning.hears(OFFER, 8, "c")
    assert owning.told == []
    assert not owning.has_asked()


def test_an_offer_of_a_host_that_is_not_known(owning: OwningHost) -> None:
    owning.hears(OFFER, 8, "c", host=99)
    assert owning.told == []


def test_a_session_that_has_ended_meanwhile(owning: OwningHost) -> None:
    """Nothing is taken."""
    owning.hears(OFFER, 8, "c")
    owning.hears(NOTHING, owning.told[-1][1], "c")
    assert not owning.has_asked()
    owning.serves("c")


def test_a_session_that_does_not_come(owning: OwningHost) -> None:
    """It stays where it is, and its client is served when it comes here after all."""
    owning.hears(OFFER, 8, "c")
    owning.hears(CANCEL, owning.told[-1][1], "c")
    assert not owning.has_asked()
    assert owning.host.node.sessions.get("c") is None
    owning.connects("c")
    assert owning.question().kind == RequestKind.CLAIM


def test_another_host_was_faster(owning: OwningHost) -> None:
    """The session goes to that one from its former host: what has come here is not a second one."""
    owning.hears(OFFER, 8, "c")
    number = owning.told[-1][1]
    owning.comes("c", number)
    owning.answer(owning.question(), THERE, 9)
    assert owning.told[-1] == (CANCEL, 0)
    assert owning.host.node.sessions.get("c") is None
    assert not owning.has_asked()


def test_etcd_does_not_answer(owning: OwningHost) -> None:
    """Whether it was taken is found out later; the host that does not own it hands it over."""
    owning.hears(OFFER, 8, "c")
    owning.comes("c", owning.told[-1][1])
    owning.answer(owning.question(), "", 0, is_known=False)
    session = owning.host.node.sessions.get("c")
    assert session is not None
    assert session.details.epoch == 0
    owning.pass_time(1)
    claim = owning.question()
    assert claim.kind == RequestKind.CLAIM
    owning.answer(claim, THERE, 8)
    assert owning.told[-1][0] == LATE


def test_it_is_taken_on_while_it_comes(owning: OwningHost) -> None:
    """A third host takes the client id before the former one has said that it does not serve it."""
    owning.hears(OFFER, 8, "c")
    owning.comes("c", owning.told[-1][1])
    owning.answer(owning.question(), HERE, 9)
    owning.taken("c", 10, Fate.STAYS)
    owning.hears(GIVEN, 9, "c")
    owning.pass_time(1)
    owning.answer(owning.question(), THERE, 10)
    assert owning.told[-1][0] == LATE


# ---------------------------------------------------------------- answers that are not heard, and what races


def gives(owning: OwningHost, number: int = 5, is_offered: bool = True) -> None:
    """Let the other host ask for the session of c, which is owned here since 7."""
    owning.hears(GIVE, number, "c", GIVE_TERMS.pack(7, GiveKind.OFFERED if is_offered else GiveKind.SESSION))


def test_a_take_that_was_not_heard_is_told_to_the_former_owner(owning: OwningHost) -> None:
    """As soon as it is known that it was carried out: else that one would serve the client, too."""
    owning.hears(OFFER, 8, "c")
    owning.comes("c", owning.told[-1][1])
    owning.answer(owning.question(), "", 0, is_known=False)
    owning.pass_time(1)
    owning.answer(owning.question(), HERE, 9)
    assert owning.told[-1] == (TAKEN, 9)


def test_a_take_without_a_session_that_was_not_heard(owning: OwningHost) -> None:
    """Its client begins anew and goes at once: the former owner hears of it all the same, and the ownership ends."""
    client = owning.connects("c")
    owning.answer(owning.question(), THERE, 8)
    owning.hears(NOTHING, owning.told[-1][1], "c")
    owning.answer(owning.question(), "", 0, is_known=False)
    assert client.next("CONNACK").reason == 0
    owning.host.lose(client)
    owning.pass_time(1)
    claim = owning.question()
    assert claim.kind == RequestKind.CLAIM
    owning.answer(claim, HERE, 9)
    assert owning.told[-1] == (TAKEN, 9)
    owning.pass_time(30)
    assert owning.question().kind == RequestKind.RELEASE


def test_an_offer_of_a_former_owner(owning: OwningHost) -> None:
    """It has not heard that the client id is owned here by now."""
    owning.serves("c", epoch=9, clean=False, expiry=600)
    owning.hears(OFFER, 8, "c")
    assert owning.told == [(TAKEN, 9)]


def test_the_owner_has_taken_all_and_is_not_heard_again(owning: OwningHost) -> None:
    """What the session has is handed over to it, and then the session ends here."""
    away(owning, "c")
    gives(owning)
    owning.hears(GO_ON, 5, "c", ALL_THERE)
    owning.pass_time(11)
    owning.answer(owning.question(), THERE, 9)
    for _ in range(2):  # passes
        kind, number = owning.told[-1]
        assert kind == LATE
        owning.hears(DONE, number, "c", ALL_THERE)
    assert owning.host.node.sessions.get("c") is None


def test_a_client_that_came_back_stays(owning: OwningHost) -> None:
    """Its host does not drain any more when the other one asks for what it was offered."""
    away(owning, "c")
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(1)
    owning.owning.draining.set(False, TAKERS)
    client = owning.connects("c", clean=False, expiry=600)
    assert client.next("CONNACK").session_present
    gives(owning)
    assert owning.told[-1] == (CANCEL, 5)
    client.silent()
    gives(owning, 6, is_offered=False)  # it has connected there
    assert client.next("DISCONNECT").reason == 0x8E


def test_a_second_host_that_asks_does_not_let_it_last_longer(owning: OwningHost) -> None:
    owning.host.lose(owning.serves("c", clean=False, expiry=60))
    owning.pass_time(50)
    gives(owning, 5)
    gives(owning, 6)
    owning.hears(CANCEL, 6, "c")
    owning.pass_time(15)
    assert owning.host.node.sessions.get("c") is None


def test_a_session_that_is_deleted_while_it_leaves(owning: OwningHost) -> None:
    away(owning, "c")
    gives(owning)
    assert owning.host.node.closing.delete("c")
    assert owning.told[-1] == (CANCEL, 5)


def test_no_other_session_makes_room_for_an_offered_one(owning: OwningHost) -> None:
    """It stays where it is; a client that connects gets room."""
    away(owning, "mine")
    owning.host.node.context.limits.sessions_max = 1
    owning.hears(OFFER, 8, "c")
    number = owning.told[-1][1]
    owning.comes("c", number)
    assert owning.told[-1] == (CANCEL, number)
    assert owning.host.node.sessions.clients() == ["mine"]
    owning.serves("other", clean=False, expiry=600)
    assert owning.host.node.sessions.clients() == ["other"]


def test_an_offer_does_not_disturb_a_client_that_is_served(owning: OwningHost) -> None:
    """Its owner was not known when it connected here."""
    client = owning.connects("c", clean=False, expiry=600)
    owning.answer(owning.question(), "", 0, is_known=False)
    assert client.next("CONNACK").reason == 0
    owning.hears(OFFER, 8, "c")
    client.silent()
    assert owning.told == []


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("how", ["away", "cancels"])
def test_its_client_is_served_although_it_does_not_come(owning: OwningHost, how: str, clean: bool) -> None:
    """The client that has connected meanwhile is served as if there had been no offer."""
    owning.hears(OFFER, 8, "c")
    number = owning.told[-1][1]
    client = owning.connects("c", clean=clean, expiry=0 if clean else 600)
    if how == "away":
        owning.owning.host_away(OTHER)
        owning.host.settle()
    else:
        owning.hears(CANCEL, number, "c")
        kind, number = owning.told[-1]
        assert kind == GIVE
        if clean:
            owning.hears(NOTHING, number, "c")
        else:
            owning.comes("c", number)
    take = owning.question()
    assert take.kind == RequestKind.TAKE
    owning.answer(take, HERE, 9)
    owning.hears(GIVEN, 9, "c")
    assert client.next("CONNACK").reason == 0


def test_a_session_that_comes_when_its_new_host_drains(owning: OwningHost) -> None:
    """It stays where it was. What comes is counted as something that is left."""
    owning.hears(OFFER, 8, "c")
    number = owning.told[-1][1]
    owning.owning.draining.set(True, TAKERS)
    owning.pass_time(1)
    assert owning.owning.draining.report()["coming"] == 1
    owning.comes("c", number)
    assert owning.told[-1] == (CANCEL, 0)
    assert not owning.has_asked()
    assert owning.owning.draining.report() == {
        "on": True, "connected": 0, "sessions": 0, "left_behind": 0, "coming": 0,
    }  # fmt: skip


def left_behind(owning: OwningHost) -> None:
    """Let the session of c move while a third host is away: its subscriptions stay for what that one has for it."""
    owning.is_whole = False
    client = owning.serves("c", clean=False, expiry=600)
    client.subscribe(("t", 1))
    owning.host.lose(client)
    gives(owning)
    owning.hears(GO_ON, 5, "c", ALL_THERE)
    owning.taken("c", 9, Fate.MOVED)
    owning.pass_time(1)
    assert owning.owning.draining.report()["left_behind"] == 1


@pytest.mark.parametrize("what", ["deleted", "has a message", "comes back", "host is back"])
def test_what_counts_as_left_behind(owning: OwningHost, what: str) -> None:
    """A session that is there, has nothing, and waits for a host that is away."""
    left_behind(owning)
    if what == "deleted":
        assert owning.host.node.closing.delete("c")
    elif what == "has a message":
        publisher = owning.serves("publisher")
        publisher.publish("t", b"1", 1)
        owning.host.settle()
        owning.host.lose(publisher)
    elif what == "host is back":
        owning.is_whole = True
    else:
        owning.connects("c", clean=False, expiry=600)
        owning.answer(owning.question(), THERE, 9)
        owning.hears(DONE, owning.told[-1][1], "c", ALL_THERE)
        owning.pass_time(1)
        owning.comes("c", owning.told[-1][1])
        owning.answer(owning.question(), HERE, 11)
        owning.hears(GIVEN, 11, "c")
    report = owning.owning.draining.report()
    assert report["left_behind"] == 0
    assert report["sessions"] == (0 if what == "deleted" else 1)
