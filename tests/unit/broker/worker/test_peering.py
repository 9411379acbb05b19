"""Messages of the links to a worker, and the answers they require."""

from __future__ import annotations

from pyx.core.peer import sibling
from tests.sansio import Host
from tests.unit.pyx.delivery.test_router import client_at
from zmq_mesh.interest import Change


def test_a_sibling_is_told_at_once_that_its_interest_is_known() -> None:
    """Its SUBACKs wait for that message, which must not wait for the next heartbeat, a tenth of a second later."""
    peering = Host(workers=2).node.peering
    peering.commit()
    assert not peering.commit()
    peering.interest(sibling(1), [Change(b"a/+", None, 1, durable=False)])
    assert peering.commit()
    assert not peering.commit()
    peering.interest_snapshot(sibling(1), [], first=True, last=True)
    assert peering.commit()


def test_the_promise_of_a_suback_outlasts_two_workers_that_stop_one_after_the_other() -> None:
    """The second one sends the SUBACK while the first is stopped; then the first asks in vain for the subscriptions."""
    host = Host(workers=2)
    subscriber, publisher = host.connect(client_at(1, 2)), host.connect(client_at(0, 2))
    host.held |= {(0, 1), (1, 0)}
    host.pass_time(2.0)
    subscriber.subscribe(("t", 1))
    first = host.nodes[0].links[sibling(1)]
    first.greet(host.now)
    host.pass_time(2.0)
    assert not first.confirming
    publisher.publish("t", b"begun after the SUBACK", 1)
    publisher.publish("t", b"once", 2)
    host.settle()
    assert [packet.kind for packet in publisher.packets] == ["PUBACK", "PUBREC"]
    host.held.clear()
    host.pass_time(1.0)
    assert [packet.payload for packet in subscriber.receive()] == [b"begun after the SUBACK", b"once"]
    # from now on the interest of that worker is known again
    sent = first.traffic.messages_sent
    publisher.publish("nobody/wants/it", b"", 1)
    host.settle()
    assert publisher.packets[-1].kind == "PUBACK"
    assert first.traffic.messages_sent == sent
    host.check_books()
