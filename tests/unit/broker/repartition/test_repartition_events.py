"""Events of N workers become those of M: all of them, each once, in the order of their numbers."""

from __future__ import annotations

from pathlib import Path

import plyvel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.repartition.events import carry_events
from leveldb_store.format import events, schema
from leveldb_store.format.events import KEY_BYTES, decode_event, encode_event, event_key
from tests.kept_host import lasting, let_go, on_disk
from tests.unit.broker.repartition.test_repartition import CHANGES, moved, paths

Record = tuple[bytes, bytes]


def made(numbers: list[int]) -> list[Record]:
    found, end = [], 0
    for number in sorted(set(numbers)):
        value = schema.U64.pack(end) + encode_event(events.EXPIRED, (str(number), None), ())
        found.append((event_key(number), value))
        end += KEY_BYTES + len(value)
    return found


@given(st.lists(st.lists(st.integers(1, 2**50), max_size=20), min_size=1, max_size=4), st.integers(1, 4))
def test_all_are_carried_in_order_and_say_what_is_before_them(before: list[list[int]], after: int) -> None:
    targets: list[list[Record]] = [[] for _ in range(after)]
    puts = [lambda key, value, each=each: each.append((key, value)) for each in targets]
    count = carry_events([made(numbers) for numbers in before], puts)
    assert count == sum(len(set(numbers)) for numbers in before)
    for index, records in enumerate(targets):
        end = 0
        for key, value in records:
            assert decode_event(key, value).before == end
            end += len(key) + len(value)
        assert [key for key, _ in records] == sorted({key for key, _ in records})
        own = [number for source in range(index, len(before), after) for number in set(before[source])]
        assert sorted(decode_event(*each).fields["client"] for each in records) == sorted(map(str, own))


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_stores_keep_them(tmp_path: Path, before: int, after: int) -> None:
    def contents(directory: Path, workers: int) -> list[bytes]:
        found = []
        for path in paths(directory, workers):
            with plyvel.DB(str(path)) as db:
                found += [key for key, _ in db.iterator(prefix=schema.EVENT)]
        return sorted(found)

    host = on_disk(paths(tmp_path, before))
    for number in range(20):
        host.lose(lasting(host, f"c{number}", 5))
    host.pass_time(2)
    let_go(host)
    there = contents(tmp_path, before)
    assert len(there) == 60
    moved(tmp_path, before, after)
    host = on_disk(paths(tmp_path / "next", after))
    assert max(store.last_event for store in host.stores) == int.from_bytes(there[-1][1:])
    host.connect("later")
    host.pass_time(2)
    let_go(host)
    now = contents(tmp_path / "next", after)
    assert set(there) < set(now)
    assert len(now) == len(there) + 1
