"""The simulation notices defects: with some records of the disk left out, some seed breaks a promise."""

from __future__ import annotations

from typing import Any

import pytest

from broker.context.context import Context
from broker.persistence.handoff_log import StoredHandoff
from broker.worker.peering import Peering
from pyx.core.peer import Peer
from tests.kept_store import KeptStore
from tests.simulation import workers
from tests.simulation.seeds import attempt
from zmq_mesh.mesh import Mesh

SEEDS = 60


def noticed(first: int) -> str:
    """Return the first violation. `first`: the first seed that shows one at present; it saves the ones before."""
    for seed in range(first, first + SEEDS):
        found = attempt((seed, "survives"))
        if found is not None:
            return found
    return ""


def without(monkeypatch: pytest.MonkeyPatch, families: bytes) -> None:
    """Make the store drop these records."""
    put = KeptStore.put

    def forgetful(store: KeptStore, key: bytes, value: bytes) -> None:
        if key[:1] not in families:
            put(store, key, value)

    monkeypatch.setattr(KeptStore, "put", forgetful)


@pytest.mark.parametrize(("family", "first"), [("V", 0), ("P", 11), ("Q", 0), ("T", 0)])
def test_a_family_of_records_that_is_not_there(monkeypatch: pytest.MonkeyPatch, family: str, first: int) -> None:
    without(monkeypatch, family.encode())
    assert noticed(first)


@pytest.mark.long
def test_a_hand_off_log_that_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(log: StoredHandoff, sequence: int, part: Any, payloads: list[Any], entries: int) -> None:
        """Store nothing."""

    monkeypatch.setattr(StoredHandoff, "append", forget)
    assert noticed(first=15)


@pytest.mark.long
def test_a_link_ack_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Peering.__init__

    def hasty(peering: Peering, context: Context, *parts: Any) -> None:
        make(peering, context, *parts)
        batch = peering.batch

        def batch_and_ack(peer: Peer, volatile: Any, sequenced: Any, payloads: list[Any], sequence: int) -> None:
            batch(peer, volatile, sequenced, payloads, sequence)
            if sequence:
                context.links[peer].commit(sequence)

        peering.batch = batch_and_ack

    def mesh_with_events(*parts: Any, **options: Any) -> Mesh:
        """Batches are events of the links, which call `batch_and_ack`."""
        return Mesh(*parts, **{**options, "batches": None})

    monkeypatch.setattr(Peering, "__init__", hasty)
    monkeypatch.setattr(workers, "Mesh", mesh_with_events)
    assert noticed(first=430)  # one run in some hundred has a crash at that moment
