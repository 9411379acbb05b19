"""Log lines: names chosen by clients do no harm in them, floods are limited, and a stuck reader blocks nobody."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker import logs
from broker.config.loading import load
from broker.logs import Level, Log, Sink, StandardLibrary

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


class Kept(Sink):
    """A sink that keeps its lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def write(self, line: bytes) -> bool:
        self.lines.append(line.decode())
        return True


class Clock:
    """The logs' time.monotonic, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time_ns = staticmethod(lambda: 1_700_000_000_123_000_000)
    strftime = staticmethod(time.strftime)
    gmtime = staticmethod(time.gmtime)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


@pytest.fixture
def sink() -> Kept:
    return Kept()


def test_text_line(sink: Kept) -> None:
    log = Log(sink=sink).bind(worker=3)
    log.info("connection_closed", client_id="kitchen/1", reason="a b", seconds=1.5, bytes=7, clean=True, will=None)
    stamp, rest = sink.lines[0].split(" ", 1)
    assert TIME.fullmatch(stamp)
    assert rest == (
        'info    connection_closed worker=3 client_id=kitchen/1 reason="a b" seconds=1.5 bytes=7 clean=True will=null\n'
    )


def test_json_line(sink: Kept) -> None:
    Log(form="json", sink=sink).bind(worker=3).warning("refused", client_id='a"b', address=("::1", 5), code=0x87)
    entry = json.loads(sink.lines[0])
    assert TIME.fullmatch(entry.pop("time"))
    assert entry == {
        "level": "warning",
        "event": "refused",
        "worker": 3,
        "client_id": 'a"b',
        "address": ["::1", 5],
        "code": 0x87,
    }


@pytest.mark.parametrize("form", ["text", "json"])
@given(value=st.text() | st.text(alphabet='\x00\x1b\x7f\x9b\u2028\u202e\ud800\U000e0001 ="\\\n'))
def test_nothing_in_a_value_escapes_its_line(form: Any, value: str) -> None:
    """Each value is printable, on one line, and reads back exactly."""
    sink = Kept()
    Log(form=form, sink=sink).info("opened", client_id=value, end="end")
    line = sink.lines[0]
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    if form == "json":
        assert json.loads(line)["client_id"] == value
    else:
        shown = line.partition(" client_id=")[2].removesuffix(" end=end\n")
        assert (json.loads(shown) if shown.startswith('"') else shown) == value


def test_bytes_and_strange_objects_are_shown(sink: Kept) -> None:
    Log(form="json", sink=sink).info("x", raw=b"a\xff", number=2**70, keyed={b"k": 1}, kind=ValueError)
    entry = json.loads(sink.lines[0])
    assert (entry["raw"], entry["number"]) == ("b'a\\xff'", str(2**70))
    Log(form="json", sink=sink).info("x", raw=b"a\xff", kind=ValueError)
    entry = json.loads(sink.lines[1])
    assert (entry["raw"], entry["kind"]) == ("a\\xff", "<class 'ValueError'>")


def test_a_huge_value_is_cut_and_the_line_stays_json(sink: Kept) -> None:
    Log(form="json", sink=sink).info("x", value="v" * 1_000_000)
    assert len(sink.lines[0]) < 70_000
    assert json.loads(sink.lines[0])["truncated"].endswith("vvv")


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_level(sink: Kept, level: Level, count: int) -> None:
    log = Log(level=level, sink=sink)
    for emit in (log.debug, log.info, log.warning, log.error):
        emit("x")
    assert len(sink.lines) == count
    for name in ("debug", "info", "warning", "error"):
        log.emit(name, "y")
    assert len(sink.lines) == 2 * count


def test_a_reload_reaches_what_was_bound_before(sink: Kept) -> None:
    log = Log(sink=sink)
    bound = log.bind(worker=1)
    log.configure("debug", 2)
    for _ in range(5):
        bound.debug("x")
    assert len(sink.lines) == 2


def test_a_storm_is_limited_per_event_and_counted(sink: Kept, clock: Clock) -> None:
    log = Log(sink=sink, lines_per_second_max=3, form="json").bind(worker=0)
    for number in range(10):
        log.info("opened", number=number)
    log.info("closed")
    assert [json.loads(line)["event"] for line in sink.lines] == ["opened"] * 3 + ["closed"]
    clock.now += 0.99
    log.info("opened")
    assert len(sink.lines) == 4
    clock.now += 0.02
    log.info("opened", number=11)
    said = [json.loads(line) for line in sink.lines[4:]]
    assert (said[0]["event"], said[0]["lines"], said[0]["worker"]) == ("log_suppressed", {"opened": 8}, 0)
    assert said[1]["number"] == 11


def test_a_timer_says_what_was_suppressed_when_nothing_else_happens(sink: Kept, clock: Clock) -> None:
    log = Log(sink=sink, lines_per_second_max=1)
    assert [log.allows("x"), log.allows("x")] == [True, False]
    log.flush()
    assert sink.lines == []
    clock.now += 1.5
    log.flush()
    assert sink.lines[0].endswith(' warning log_suppressed lines={"x":1}\n')
    clock.now += 1.5
    log.flush()
    assert len(sink.lines) == 1


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_suppressed_call_makes_no_text(form: Any) -> None:
    """Skipping the text keeps the call cheap: 0.2 us."""
    shown = 0

    class Address:
        def __str__(self) -> str:
            nonlocal shown
            shown += 1
            return "127.0.0.1"

    sink = Kept()
    log = Log(sink=sink, lines_per_second_max=1, form=form)
    log.info("x", address=Address())
    made = shown
    assert made
    for _ in range(10):
        log.info("x", address=Address())
    assert len(sink.lines) == 1
    assert shown == made


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Return (read end, write end) of a pipe with room for two pages; the write end blocks."""
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 8192)
    yield read, write
    os.close(write)
    os.close(read)


def test_a_reader_that_does_not_read_stops_nobody_and_is_told_what_it_missed(pipe: tuple[int, int]) -> None:
    log = Log(sink=Sink(pipe[1]), lines_per_second_max=10**9, form="json")
    for number in range(1000):
        log.info("x", number=number)
    seen = os.read(pipe[0], 1 << 20).decode().splitlines()
    assert len(seen) < 1000
    assert [json.loads(line)["number"] for line in seen] == list(range(len(seen)))
    log.info("x", number="after")
    lost, after = (json.loads(line) for line in os.read(pipe[0], 1 << 20).decode().splitlines())
    assert (lost["event"], lost["lines"]) == ("log_lost", 1000 - len(seen))
    assert after["number"] == "after"


def test_nobody_waits_for_the_rest_of_a_long_line(pipe: tuple[int, int]) -> None:
    """Data of a client may make lines of 64 KB: the reader takes them in pieces, and the worker continues."""
    sink = Sink(pipe[1])
    waits: list[int] = []
    poll = sink._poll.poll
    sink._poll = SimpleNamespace(poll=lambda ms: waits.append(ms) or poll(ms))  # type: ignore[assignment, func-returns-value]
    log = Log(sink=sink, lines_per_second_max=10**9, form="json")
    log.info("long", text="x" * 65_000)
    log.info("lost")
    seen = b""
    for _ in range(20):
        seen += os.read(pipe[0], 1 << 20)
        log.flush()
        if seen.endswith(b"\n"):
            break
    log.info("after")
    seen += os.read(pipe[0], 1 << 20)
    assert [json.loads(line)["event"] for line in seen.splitlines()] == ["long", "log_lost", "after"]
    assert set(waits) == {0}


def test_a_closed_standard_error_is_survived(pipe: tuple[int, int]) -> None:
    gone = os.dup(pipe[1])
    sink = Sink(gone)
    os.close(gone)
    log = Log(sink=sink)
    log.info("x")
    log.info("x")
    assert sink.lost == 2


def test_what_libraries_log_comes_as_events(sink: Kept) -> None:
    library = logging.getLogger("tests.some_library")
    handler = StandardLibrary(Log(sink=sink, form="json"))
    library.addHandler(handler)
    try:
        raise ValueError("wrong")
    except ValueError:
        library.exception("failed at %s", "x")
    finally:
        library.removeHandler(handler)
    entry = json.loads(sink.lines[0])
    assert (entry["level"], entry["event"], entry["message"]) == ("error", "library", "failed at x")
    assert "ValueError: wrong" in entry["stack"]


def test_log_of_settings() -> None:
    read, write = os.pipe()
    with os.fdopen(read) as lines:
        saved = os.dup(2)
        os.dup2(write, 2)
        try:
            log = Log.of(load(None, {}, {"log_level": "error", "log_format": "json"}))
            log.warning("x")
            log.error("y")
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(write)
        assert [json.loads(line)["event"] for line in lines] == ["y"]
