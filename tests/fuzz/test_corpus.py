"""Every input that once was a find, and a short seeded run: ``make test`` and ``make asan`` fuzz a little too."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from tests import wire
from tests.fuzz.grammar import Grammar, vary
from tests.fuzz.minimise import failure, failure_of_child, minimise
from tests.fuzz.mutation import mutate
from tests.fuzz.run import CORPUS, SESSIONS
from tests.fuzz.stage import Script, Stage, Step
from tests.fuzz.targets import TARGETS, seeds
from tests.fuzz.watcher import Watcher

SCRIPTS = sorted(SESSIONS.glob("*.script"))


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.bin")), ids=lambda path: path.stem)
def test_former_finds(path: Path) -> None:
    """Inputs of the corpus keep the invariant of every target."""
    for target in TARGETS.values():
        target(path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_every_prefix_of_every_seed(name: str) -> None:
    """Each sane packet, cut at every byte."""
    for data in seeds():
        for size in range(len(data) + 1):
            TARGETS[name](data[:size])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("seed", range(4))
def test_short_run(name: str, seed: int) -> None:
    """Two thousand mutations of a fixed seed."""
    rng, inputs = random.Random(seed), seeds()
    for _ in range(2000):
        data = mutate(rng, inputs)
        try:
            TARGETS[name](data)
        except Exception as error:
            raise AssertionError(f"input {data.hex()}") from error


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_of_the_corpus(path: Path) -> None:
    """Scripts that once broke something, and some that show much, keep all invariants."""
    Stage(Script.from_json(path.read_text())).play()


@pytest.mark.parametrize("seed", range(4))
def test_short_run_of_sessions(seed: int) -> None:
    """A hundred scripts of a fixed seed, half of them variations of others."""
    kept = [Script.from_json(path.read_text()) for path in SCRIPTS]
    for number in range(100):
        rng = random.Random(f"{seed}/{number}")
        script = vary(rng, rng.choice(kept), kept) if number % 2 else Grammar(rng).script()
        told = failure(script)
        assert not told, f"{told}\n{script.to_json()}"


def test_a_script_is_the_same_after_writing_and_reading() -> None:
    """What is kept of a find is all that it takes to play it again: the same packets come, the same counters move."""
    for path in SCRIPTS[:4]:
        script = Script.from_json(path.read_text())
        assert script.to_json() == path.read_text()
        assert Stage(script).play() == Stage(script).play()


def test_a_failing_script_is_cut_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and bytes that the failure does not need are left out; what remains fails in the same way."""

    def ping_is_wrong(_self: Watcher, packet: wire.Packet, _size: int) -> None:
        assert packet.kind != "PINGRESP", "somebody was answered"

    monkeypatch.setattr(Watcher, "_form", ping_is_wrong)
    steps: list[Step] = [
        ("open", 0, 0), ("send", 0, wire.connect(4, "a").hex()), ("time", 1000), ("open", 1, 0),
        ("send", 1, wire.connect(4, "b").hex()), ("send", 0, (wire.publish(4, "t", b"x" * 50) + wire.PINGREQ).hex()),
        ("lose", 1), ("turn", 2),
    ]  # fmt: skip
    script = Script(1, "roomy", steps)
    assert "somebody was answered" in failure_of_child(script)
    small = minimise(script)
    assert small.steps == [
        ("open", 0, 0), ("send", 0, wire.connect(4, "a").hex()), ("send", 0, wire.PINGREQ.hex())
    ]  # fmt: skip


def test_a_crash_is_a_failure_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that dies says so by its status."""
    monkeypatch.setattr(Stage, "play", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    assert failure_of_child(Script(1, "roomy")) == "crash: signal 9"
