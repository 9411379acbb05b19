"""A worker sends clients to other hosts, as many as the leader of the cluster has planned."""

from __future__ import annotations

import pytest

from broker.admin.requests import MoveClients
from broker.worker.draining import Taker
from broker.worker.moving_clients import TOLD_MAX
from pyx.core import counters as count
from tests.owning_host import OTHER, OwningHost, owning
from tests.sansio import Peer
from tests.wire import Will

__all__ = ["owning"]

ANOTHER_SERVER = 0x9C
THERE, ELSEWHERE = "there.example:1883", "elsewhere.example"


def moves(owning: OwningHost, plan: int, *to: tuple[str, int], per_second: float = 1000.0) -> int:
    return owning.owning.moving_clients.take(MoveClients(plan, to, per_second))


def lasting(owning: OwningHost, client_id: str) -> Peer:
    return owning.serves(client_id, clean=False, expiry=600)


def comes_back(owning: OwningHost, client_id: str) -> Peer:
    peer = owning.connects(client_id, clean=False, expiry=600)
    assert peer.next("CONNACK").session_present
    return peer


def told(peer: Peer) -> str:
    """Return where a client was told to go."""
    packet = peer.next("DISCONNECT")
    assert packet.reason == ANOTHER_SERVER
    reference: str = packet.properties["server_reference"]
    return reference


def closed(peers: list[Peer]) -> int:
    return sum(each.closed for each in peers)


def test_as_many_as_planned_go_to_each_host(owning: OwningHost) -> None:
    clients = [lasting(owning, f"c{at}") for at in range(10)]
    assert moves(owning, 7, (THERE, 2), (ELSEWHERE, 3)) == 5
    owning.pass_time(3)
    assert [told(each) for each in clients if each.closed] == [THERE] * 2 + [ELSEWHERE] * 3
    assert owning.host.node.counters.get(count.CLIENTS_SENT_AWAY) == 5
    owning.pass_time(100)
    assert closed(clients) == 5


@pytest.mark.parametrize("planned", [1, 3, 4])
def test_one_more_than_there_are(owning: OwningHost, planned: int) -> None:
    clients = [lasting(owning, f"c{at}") for at in range(3)]
    moves(owning, 7, (THERE, planned))
    owning.pass_time(3)
    assert closed(clients) == min(3, planned)
    assert owning.owning.moving_clients.left == 0


def test_the_same_plan_again_changes_nothing(owning: OwningHost) -> None:
    """The control process was started anew, and has read it again."""
    clients = [lasting(owning, f"c{at}") for at in range(6)]
    moves(owning, 7, (THERE, 2))
    owning.pass_time(2)
    assert moves(owning, 7, (THERE, 2)) == 0
    owning.pass_time(2)
    assert closed(clients) == 2
    assert moves(owning, 3, (THERE, 1)) == 1, "another number, also a lower one of a new etcd, is another plan"
    owning.pass_time(2)
    assert closed(clients) == 3


def test_a_plan_that_is_taken_back(owning: OwningHost) -> None:
    clients = [lasting(owning, f"c{at}") for at in range(6)]
    moves(owning, 7, (THERE, 6), per_second=1.0)
    owning.pass_time(2)
    gone = closed(clients)
    assert 1 <= gone <= 3
    assert moves(owning, 7) == 0
    owning.pass_time(20)
    assert closed(clients) == gone
    assert moves(owning, 7, (THERE, 6)) == 0, "not again"
    assert moves(owning, 0) == 0, "a control process that was started anew knows no number"
    assert moves(owning, 7, (THERE, 6)) == 0, "nor is it carried out again then"
    owning.pass_time(5)
    assert closed(clients) == gone


def test_the_pace(owning: OwningHost) -> None:
    """After a long silence, too, not more than a second's are sent away at once."""
    clients = [lasting(owning, f"c{at}") for at in range(8)]
    moves(owning, 7, (THERE, 8), per_second=1.0)
    for seconds in range(1, 5):
        owning.pass_time(1)
        assert closed(clients) <= seconds + 1
    before = closed(clients)
    owning.host.pass_time(10)
    owning.owning.tick(owning.host.now)
    owning.host.settle()
    assert closed(clients) <= before + 1


def test_without_a_pace_nobody_goes(owning: OwningHost) -> None:
    """And it is given up."""
    client = lasting(owning, "c")
    moves(owning, 7, (THERE, 1), per_second=0.0)
    owning.pass_time(40)
    client.silent()
    assert owning.owning.moving_clients.left == 0


def test_who_stays(owning: OwningHost) -> None:
    """Who cannot be told where to go, and who would not come back as he was."""
    older = [owning.serves("v4", version=4, clean=False), owning.serves("v3", version=3, clean=False)]
    newest = lasting(owning, "newest")
    owning.host.lose(lasting(owning, "away"))
    reads_archive = lasting(owning, "replays")
    session = owning.host.node.sessions.get("replays")
    assert session is not None
    session.replays = {b"t": object()}
    moves(owning, 7, (THERE, 10))
    owning.pass_time(3)
    session.replays = None
    assert told(newest) == THERE
    for each in (*older, reads_archive):
        each.silent()
        assert not each.closed


def test_first_those_that_nobody_misses(owning: OwningHost) -> None:
    """Whose sessions last, and whose wills are not due at once; the others if these are too few."""
    brief = owning.serves("brief")
    due = owning.serves("due", clean=False, expiry=600, will=Will("w", b"gone"))
    delayed = Will("w", b"gone", properties={"will_delay_interval": 60})
    waits = owning.serves("waits", clean=False, expiry=600, will=delayed)
    plain = lasting(owning, "plain")
    moves(owning, 7, (THERE, 2))
    owning.pass_time(3)
    assert [each.closed for each in (brief, due, waits, plain)] == [False, False, True, True]
    moves(owning, 8, (THERE, 1))
    owning.pass_time(3)
    assert closed([brief, due]) == 1


def test_who_has_come_back_is_not_told_again(owning: OwningHost) -> None:
    client = lasting(owning, "c")
    moves(owning, 7, (THERE, 1))
    owning.pass_time(3)
    assert told(client) == THERE
    again = comes_back(owning, "c")
    moves(owning, 8, (THERE, 1))
    owning.pass_time(3)
    again.silent()
    assert not again.closed


def test_not_all_are_remembered(owning: OwningHost) -> None:
    """The earliest is forgotten first."""
    client = lasting(owning, "c")
    moves(owning, 7, (THERE, 1))
    owning.pass_time(3)
    assert client.closed
    remembered = owning.owning.moving_clients._told
    assert len(remembered) == 1
    for number in range(TOLD_MAX):
        remembered[number] = None
    del remembered[0]
    assert len(remembered) == TOLD_MAX
    other, again = lasting(owning, "d"), comes_back(owning, "c")
    moves(owning, 8, (THERE, 1))
    owning.pass_time(3)
    assert (other.closed, again.closed) == (True, False)
    assert len(remembered) == TOLD_MAX
    moves(owning, 9, (THERE, 1))
    owning.pass_time(3)
    assert again.closed


def test_a_host_that_drains_sends_all_away(owning: OwningHost) -> None:
    """Draining is the stronger one; what is planned beside it does no harm."""
    clients = [lasting(owning, f"c{at}") for at in range(4)]
    moves(owning, 7, (THERE, 2), per_second=1.0)
    owning.owning.draining.set(True, [Taker(OTHER, ELSEWHERE)])
    owning.pass_time(5)
    assert closed(clients) == 4
    owning.pass_time(40)
    assert owning.owning.moving_clients.left == 0


def test_an_hour_without_a_leader(owning: OwningHost) -> None:
    """The worker is told nothing by a leader: its clients connect, stay, and come back as ever."""
    stays = owning.serves("stays")
    for minute in range(60):
        owning.pass_time(60)
        client = lasting(owning, f"c{minute}")
        owning.host.lose(client)
    stays.silent()
    assert not stays.closed
    comes_back(owning, "c59")
    assert owning.owning.moving_clients.left == 0
