"""A reload of any size is in force in every worker before "reloaded" is logged."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.broker_process import KIND, BrokerProcess
from tests.waiting import wait_until
from tests.wire import Client

pytestmark = pytest.mark.skipif(KIND != "mqttd", reason="reloads are mqttd's own")

SECONDS_MAX = 30.0
ROOM = {"MQTTD_LIMITS__TAKEOVERS_PER_MINUTE_MAX": "0"}


def settings(rules: int, receive_maximum: int) -> str:
    """Return a file with so many [[shared]] tables, of about 130 bytes each in a message."""
    tables = (f'[[shared]]\ngroup = "{"g" * 60}{number}"\nstrategy = "round_robin"\n' for number in range(rules))
    return f"[limits]\nreceive_maximum = {receive_maximum}\n\n" + "\n".join(tables)


@pytest.mark.parametrize("rules", [400, 600, 2000, 20_000])
def test_a_large_reload_is_taken_over_by_all(tmp_path: Path, rules: int) -> None:
    """From 50 KB to 2.6 MB: every worker has the new Receive Maximum when the supervisor logs the reload."""
    file = tmp_path / "mqttd.toml"
    file.write_text(settings(0, 10))
    arguments = ["--log-format", "json", "--config", str(file), "--admin", "127.0.0.1:0"]
    with BrokerProcess(2, arguments, ROOM) as broker:

        def granted() -> set[int]:
            found = set()
            for number in range(8):  # their homes are both workers
                client = Client(broker.address, 5)
                found.add(client.connect(f"c{number}").properties["receive_maximum"])
                client.close()
            return found

        assert granted() == {10}
        file.write_text(settings(rules, 7))
        begin = broker.stderr_size()
        os.kill(broker.pid, signal.SIGHUP)

        def said() -> bool:
            reloaded = [line for line in broker.logged("reloaded", begin) if "worker" not in line]
            return bool(reloaded or broker.logged("reload_refused", begin))

        wait_until(said, SECONDS_MAX, "the supervisor says what became of it")
        assert not broker.logged("reload_refused", begin)
        assert granted() == {7}
        assert not broker.logged("worker_died")
