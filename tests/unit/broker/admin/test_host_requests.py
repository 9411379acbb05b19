"""Requests to control processes: each comes back as it was, and nothing else is one."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from broker.admin.host_requests import (
    MANIFEST_CHARACTERS_MAX,
    EndSnapshot,
    HostStates,
    KeepManifest,
    OfHost,
    OnHost,
    OwnState,
    SnapshotState,
    TakeSnapshot,
    decode,
    decode_own,
    encode,
)
from broker.admin.requests import DeleteSession, Drain, ListEvents, ListSessions, Request, ShowSession
from leveldb_store.snapshots.cluster_manifest import (
    ClusterManifest,
    HostPart,
    MissingHost,
    directory_of,
)
from leveldb_store.snapshots.snapshot import SnapshotError
from shards.console import REQUEST_BYTES_MAX

OF_WORKERS: list[Request] = [ListSessions(7), ShowSession("c", 1), DeleteSession("c"), ListEvents(1 << 63), Drain(None)]
OF_HOSTS: list[OfHost] = [
    OwnState(),
    TakeSnapshot("a"),
    SnapshotState("a" * 63),
    EndSnapshot("a"),
    KeepManifest("a", ""),
]


@pytest.mark.parametrize("request_", OF_WORKERS, ids=repr)
@pytest.mark.parametrize("worker", [0, 255])
def test_of_workers(request_: Request, worker: int) -> None:
    said = json.loads(json.dumps(encode(OnHost("b", worker, request_))))
    assert decode(said) == OnHost("b", worker, request_)
    del said["node"]
    assert decode_own(said) == (worker, request_)


@pytest.mark.parametrize("request_", OF_HOSTS, ids=repr)
def test_of_hosts(request_: OfHost) -> None:
    said = json.loads(json.dumps(encode(OnHost("b", None, request_))))
    assert decode(said) == OnHost("b", None, request_)
    assert decode(encode(HostStates())) == HostStates()
    assert decode({"drain": "begin"}) == Drain("begin")


@pytest.mark.parametrize(
    "said",
    [
        None, [], {}, {"hosts": "other"}, {"sessions": "list", "from": 0}, {"node": 1, "worker": 0, "store": "stats"},
        {"node": "b", "store": "stats"}, {"node": "b", "worker": -1, "store": "stats"},
        {"node": "b", "worker": 256, "store": "stats"}, {"node": "b", "worker": True, "store": "stats"},
        {"node": "b", "worker": None, "store": "stats"}, {"node": "b", "worker": 0, "host": "state"},
        {"node": "b", "worker": 0, "sessions": "list", "from": -1}, {"node": "b", "worker": None, "snapshot": "take"},
        {"node": "b", "worker": None, "snapshot": "other", "id": "a"},
        {"node": "b", "worker": None, "snapshot": "keep", "id": "a"},
        {"node": "b", "worker": None, "snapshot": "keep", "id": "a", "manifest": 1},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_none(said: object) -> None:
    assert decode(said) is None


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/a", ".a", "-", "a\n", "a b", "é", "a" * 64])
def test_ids_are_names_of_directories(name: str) -> None:
    for what in ("take", "state", "end"):
        assert decode_own({"worker": None, "snapshot": what, "id": name}) is None


@pytest.mark.parametrize("size", [0, 1, MANIFEST_CHARACTERS_MAX, MANIFEST_CHARACTERS_MAX + 1])
def test_manifests_have_a_greatest_length(size: int) -> None:
    said = {"worker": None, "snapshot": "keep", "id": "a", "manifest": "x" * size}
    assert (decode_own(said) is not None) is (size <= MANIFEST_CHARACTERS_MAX)
    longest = encode(OnHost("b", None, KeepManifest("a", "\n" * MANIFEST_CHARACTERS_MAX)))
    assert decode(longest) is not None
    assert len(json.dumps({"worker": 255, "ask": longest})) < REQUEST_BYTES_MAX


def test_any_json() -> None:
    """Whatever it is, it is a request that comes back as it was, or none."""
    chance = random.Random(20261128)
    names = [
        "node",
        "worker",
        "snapshot",
        "id",
        "sessions",
        "from",
        "client",
        "hosts",
        "host",
        "manifest",
        "events",
        "drain",
    ]
    values: list[Any] = [None, 0, 1, -1, 1.5, True, "", "b", "a", "take", "list", "state", "states", [], {}, 1 << 70]
    found = 0
    for _ in range(50_000):
        said = {chance.choice(names): chance.choice(values) for _ in range(chance.randrange(6))}
        request = decode(said)
        if isinstance(request, OnHost | HostStates):
            found += 1
            assert decode(encode(request)) == request
    assert found > 50


PART = HostPart("a", "/x/host-a", "1.0", 2, 3, 4, 5, 6, 7, 8)


def test_a_manifest_comes_back() -> None:
    manifest = ClusterManifest("id", "mqttd", 1, (PART,), (MissingHost("b", "why"),))
    assert ClusterManifest.decode(manifest.encode()) == manifest
    assert directory_of("a") == PART.directory == "host-a"
    said = json.loads(manifest.encode())
    assert said["format"] == 1
    changes: list[dict[str, Any]] = [{"format": 0}, {"format": 2}, {"format": "x"}, {"hosts": 1}, {"missing": [1]}]
    for change in (*changes, {"hosts": [{}]}):
        with pytest.raises(SnapshotError):
            ClusterManifest.decode(json.dumps({**said, **change}))
    outside = {**said, "hosts": [{**said["hosts"][0], "node": "../../x"}]}
    with pytest.raises(SnapshotError, match="damaged"):
        ClusterManifest.decode(json.dumps(outside))
    text = manifest.encode().encode()
    for at in range(len(text) - 2):
        with pytest.raises(SnapshotError):
            ClusterManifest.decode(text[:at])
