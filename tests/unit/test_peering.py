"""What the links tell a worker, and what it owes them for it."""

from __future__ import annotations

from tests.sansio import Host
from zmq_mesh.interest import Change


def test_a_sibling_is_told_at_once_that_its_interest_is_known() -> None:
    """Its SUBACKs wait for that word: it must not wait for the next heartbeat, a tenth of a second later."""
    peering = Host(workers=2).node.peering
    peering.commit()
    assert not peering.commit()
    peering.interest(1, [Change(b"a/+", None, 1, durable=False)])
    assert peering.commit()
    assert not peering.commit()
    peering.interest_snapshot(1, iter([]))
    assert peering.commit()
