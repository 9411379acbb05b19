"""What a bridge costs: CPU per message that crosses, beside mosquitto's bridge.

python -m tests.benchmarks.bridging [--seconds 4] [--runs 3] [--bytes 100]

A publisher sends to a broker (one worker, store in memory), whose bridge passes everything on to another mqttd, which
has no subscriber; at most 2,000 messages are on their way. mqttd and mosquitto 2.0 are the first broker in turn.
Printed are medians: CPU of the first broker in us for each message, and messages per second. Generator and both brokers
share the cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.integration.test_admin import report, totals
from tests.waiting import wait_until
from tests.wire import Client, publish

_MOSQUITTO = """\
listener {port} 127.0.0.1
allow_anonymous true
max_inflight_messages 1000
max_queued_messages 0
connection there
address 127.0.0.1:{there}
topic # out {qos}
bridge_protocol_version mqttv50
"""
_BRIDGE = """\
[bridges.there]
address = "mqtt://127.0.0.1:{there}"
inflight_max = 1000
topic = [{{pattern = "#", qos = {qos}}}]
"""
_BLOCK = 100
_ON_THEIR_WAY_MAX = 2000
_LOST_SECONDS = 5.0
_WARM_SECONDS = 1.0


def _cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def _mqttd(directory: Path, there: int, qos: int) -> Iterator[tuple[int, list[int]]]:
    file = directory / "mqttd.toml"
    file.write_text(_BRIDGE.format(there=there, qos=qos))
    broker = BrokerProcess(1, ["--config", str(file), "--admin", "127.0.0.1:0"], store="memory")
    broker.start()
    try:
        wait_until(lambda: report(broker, "/api/v1/bridges")["bridges"][0]["is_connected"], 60, "the bridge")
        yield broker.port, broker.processes()
    finally:
        broker.stop()
        broker.forget()


@contextlib.contextmanager
def _mosquitto(directory: Path, there: int, qos: int) -> Iterator[tuple[int, list[int]]]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
    config = directory / "mosquitto.conf"
    config.write_text(_MOSQUITTO.format(port=port, there=there, qos=qos))
    process = subprocess.Popen(["/usr/sbin/mosquitto", "-c", str(config)], stderr=subprocess.DEVNULL)

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(listens, 60, "mosquitto listens")
        yield port, [process.pid]
    finally:
        process.terminate()
        process.wait()


_BROKERS = {"mqttd": _mqttd, "mosquitto": _mosquitto}


def _flood(client: Client, there: BrokerProcess, qos: int, size: int, seconds: float) -> int:
    """Publish for so many seconds; return how many. All have arrived."""
    before = arrived = totals(there)["mqtt_messages_received_total"]
    sent, until = 0, time.monotonic() + seconds
    block = b"".join(
        publish(5, "a/b", bytes(size), qos=qos, packet_id=number + 1 if qos else 0) for number in range(_BLOCK)
    )
    while time.monotonic() < until:
        client.send(block)
        sent += _BLOCK
        if qos:
            for _ in range(_BLOCK):
                client.await_packet("PUBACK")
        heard_at = time.monotonic()
        while sent - (arrived - before) > _ON_THEIR_WAY_MAX or (time.monotonic() >= until and arrived - before < sent):
            former, arrived = arrived, totals(there)["mqtt_messages_received_total"]
            if arrived != former:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + _LOST_SECONDS:
                raise RuntimeError(f"{sent - arrived + before:.0f} of {sent} messages were dropped")
    return sent


def _once(broker: str, qos: int, size: int, seconds: float) -> tuple[float, float]:
    """Return CPU in us per message, and messages per second."""
    there = BrokerProcess(1, ["--admin", "127.0.0.1:0"], store="memory")
    there.start()
    try:
        with tempfile.TemporaryDirectory() as name, _BROKERS[broker](Path(name), there.port, qos) as (port, pids):
            client = Client(("127.0.0.1", port), 5)
            client.connect("publisher")
            _flood(client, there, qos, size, _WARM_SECONDS)
            cpu, began = _cpu_seconds(pids), time.monotonic()
            sent = _flood(client, there, qos, size, seconds)
            took, used = time.monotonic() - began, _cpu_seconds(pids) - cpu
            client.close()
            return used * 1e6 / sent, sent / took
    finally:
        there.stop()
        there.forget()


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--bytes", type=int, default=100)
    options = parser.parse_args()
    print("| QoS | broker with the bridge | CPU us per message | messages/s |\n|---|---|---|---|")
    for qos in (0, 1):
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in _BROKERS}
        for _ in range(options.runs):
            for name, found in runs.items():
                found.append(_once(name, qos, options.bytes, options.seconds))
        for name, found in runs.items():
            cpu, rate = (statistics.median(each) for each in zip(*found, strict=True))
            print(f"| {qos} | {name} | {cpu:.2f} | {rate:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
