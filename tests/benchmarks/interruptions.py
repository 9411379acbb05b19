"""The wait of other clients while a process of the broker is killed, stopped or replaced, or passwords are checked, and
the time the broker takes to end.

Pairs of all workers to all workers publish at a steady rate. A pair is *untouched* when neither of its ends lives on
the worker that is killed or stopped. Tests ensure on any machine that nothing is lost; this module measures the times.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import select
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests import wire
from tests.benchmarks.ruler import Figures
from tests.broker_process import BrokerProcess, processes_of_session
from tests.chaos.crowd import Crowd, Publisher, Subscriber, ids_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.benchmarks.ruler import Ruler

_WORKERS = 4
_VICTIM = 3
_RATE = 30.0
_QUIET_SECONDS = 1.0
_STOPPED_SECONDS = 6.0
_PATIENCE_SECONDS = 60.0
_AWAY_SECONDS = 1.0  # link_silence_seconds_max, peer_stall_seconds_max
_PASSWORDS = 50
_HASH_SECONDS = 0.05


class _Pair:
    """A publisher on one worker and a subscriber on another, at QoS 1."""

    def __init__(self, crowd: Crowd, source: int, target: int) -> None:
        self.source, self.target = source, target
        subscriber_id = next(ids_on(target, _WORKERS, f"{source}{target}s"))
        publisher_id = next(ids_on(source, _WORKERS, f"{source}{target}p"))
        topic = f"interruption/{source}{target}"
        self.subscriber = Subscriber(crowd, subscriber_id, topic, qos=1)
        self.publisher = Publisher(crowd, publisher_id, topic, qos=1, rate=_RATE)

    def watch(self) -> None:
        """Measure from this moment."""
        self.subscriber.watch_gaps()
        self.publisher.ack_seconds_max = 0.0


@contextmanager
def _running(*arguments: str, **limits: float) -> Iterator[tuple[BrokerProcess, Crowd, list[_Pair]]]:
    """Yield a broker of four workers, and pairs of all to all that have published for a second."""
    environment = {f"MQTTD_LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    broker = BrokerProcess(_WORKERS, ["--log-format", "json", *arguments], environment, store="memory")
    with broker, Crowd(broker.address) as crowd:
        pairs = [_Pair(crowd, *where) for where in itertools.product(range(_WORKERS), repeat=2)]
        crowd.settle()
        crowd.begin()
        crowd.let_run(_QUIET_SECONDS)
        for pair in pairs:
            pair.watch()
        yield broker, crowd, pairs


def _untouched(pairs: list[_Pair]) -> list[_Pair]:
    return [pair for pair in pairs if _VICTIM not in (pair.source, pair.target)]


def _gap_ms(pairs: list[_Pair]) -> float:
    return 1e3 * max(pair.subscriber.gap() for pair in pairs)


def _ack_ms(pairs: list[_Pair]) -> float:
    return 1e3 * max(pair.publisher.longest_ack() for pair in pairs)


def worker_killed(_: Ruler) -> Figures:
    """SIGKILL of a worker: longest gap of the untouched pairs, and the time until its successor serves."""
    with _running() as (broker, crowd, pairs):
        began = time.monotonic()
        os.kill(broker.worker_pids()[_VICTIM], signal.SIGKILL)
        serves = _served(crowd, began)
        crowd.let_run(_QUIET_SECONDS)
        return {"ok": True, "gap_ms": _gap_ms(_untouched(pairs)), "serves_s": serves}


def _served(crowd: Crowd, began: float) -> float:
    """Return the seconds until a new subscriber of that worker has its SUBACK; retry after a refusal."""
    names = ids_on(_VICTIM, _WORKERS, "new")
    client = [Subscriber(crowd, next(names), "interruption/new", qos=1)]

    def is_served() -> bool:
        if client[0].closed:
            client[0] = Subscriber(crowd, next(names), "interruption/new", qos=1)
        return client[0].subscribed

    crowd.until(is_served, "the successor serves", _PATIENCE_SECONDS)
    client[0].close()
    return time.monotonic() - began


def worker_stopped(_: Ruler) -> Figures:
    """SIGSTOP of a worker: longest gap and ack of the untouched pairs, longest ack of publishers to the stopped one."""
    return stopped_for(_STOPPED_SECONDS)


def stopped_for(seconds: float) -> Figures:
    """Measure `worker_stopped` with this number of seconds."""
    away = {"link_silence_seconds_max": _AWAY_SECONDS, "peer_stall_seconds_max": _AWAY_SECONDS}
    with _running(worker_hang_seconds_max=_PATIENCE_SECONDS, **away) as (broker, crowd, pairs):
        pid = broker.worker_pids()[_VICTIM]
        os.kill(pid, signal.SIGSTOP)
        try:
            crowd.let_run(seconds)
            untouched = _untouched(pairs)
            to_it = [pair for pair in pairs if pair.target == _VICTIM != pair.source]
            return {
                "ok": True,
                "gap_ms": _gap_ms(untouched),
                "ack_ms": _ack_ms(untouched),
                "ack_to_stopped_ms": _ack_ms(to_it),
            }
        finally:
            os.kill(pid, signal.SIGCONT)


def control_killed(_: Ruler) -> Figures:
    """SIGKILL of the control process: longest gap of all pairs, and the time until its successor serves."""
    with _running("--admin", "127.0.0.1:0") as (broker, crowd, pairs):
        crowd.until(lambda: bool(broker.logged("control_ready")), "it serves", _PATIENCE_SECONDS)
        for pair in pairs:
            pair.watch()
        began = time.monotonic()
        os.kill(broker.control_pid(), signal.SIGKILL)
        crowd.until(lambda: len(broker.logged("control_ready")) > 1, "its successor serves", _PATIENCE_SECONDS)
        return {"ok": True, "gap_ms": _gap_ms(pairs), "serves_s": time.monotonic() - began}


def stopping(_: Ruler) -> Figures:
    """SIGTERM while all publish: time until the broker has ended."""
    return _ended(lambda broker: os.kill(broker.pid, signal.SIGTERM))


def supervisor_killed(_: Ruler) -> Figures:
    """SIGKILL of the supervisor while all publish: time until no process of the broker is left."""
    return _ended(lambda broker: os.kill(broker.pid, signal.SIGKILL))


def _ended(end: Callable[[BrokerProcess], None]) -> Figures:
    with _running() as (broker, crowd, _):
        session = broker.pid
        began = time.monotonic()
        end(broker)
        crowd.until(lambda: all(each.closed for each in crowd.members), "all connections end", _PATIENCE_SECONDS)
        # the supervisor is our child: once reaped, it is in no session
        wait_until(lambda: not broker.alive() and not processes_of_session(session), _PATIENCE_SECONDS, "it has ended")
        seconds = time.monotonic() - began
        broker.kill()  # no process is left: the fixture must not report a failed broker
        return {"ok": True, "end_s": seconds}


def passwords_checked(_: Ruler) -> Figures:
    """Median time of an answer to a connected client while passwords of 50 others, of 50 ms each, are checked."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as clients:
        path = Path(folder) / "users"
        slow = _iterations(_HASH_SECONDS)
        users = {"watching": 100, **{f"slow{number}": slow for number in range(_PASSWORDS)}}
        path.write_text("".join(f"{user}:{_hashed(iterations)}\n" for user, iterations in users.items()))
        broker = clients.enter_context(BrokerProcess(2, ["--password-file", str(path)], store="memory"))

        def client() -> wire.Client:
            return clients.enter_context(closing(wire.Client(broker.address, 5)))

        watching = client()
        watching.connect("watching", username="watching", password=b"right")
        logins = [client() for _ in range(_PASSWORDS)]
        for number, login in enumerate(logins):
            login.send(wire.connect(5, f"c{number}", username=f"slow{number}", password=b"right"))
        answers: list[float] = []
        while len(select.select([login.socket for login in logins], [], [], 0)[0]) < _PASSWORDS:
            began = time.perf_counter()
            watching.expect_silence()
            answers.append(time.perf_counter() - began)
        return {"ok": True, "answer_ms": 1e3 * statistics.median(answers)}


def _iterations(seconds: float) -> int:
    """Return the number of iterations of PBKDF2 that take about this long on this machine."""
    began = time.perf_counter()
    hashlib.pbkdf2_hmac("sha512", b"right", b"salt", 20_000)
    return int(20_000 * seconds / (time.perf_counter() - began)) + 1


def _hashed(iterations: int) -> str:
    """Return the hash of "right" as mosquitto_passwd writes it."""
    key = hashlib.pbkdf2_hmac("sha512", b"right", b"salt", iterations)
    return f"$7${iterations}${base64.b64encode(b'salt').decode()}${base64.b64encode(key).decode()}"
