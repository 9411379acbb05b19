"""The pytest plugin, in test suites that are made here and run by a separate pytest."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker_process import KIND, ROOT, processes_of_session
from tests.waiting import wait_until

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="the plugin starts mqttd, whatever MQTTD_TEST_BROKER says")

SECONDS_MAX = 60.0

#: The MQTT fixture of a user's test suite: a connected client.
CONFTEST = """
    import queue, pytest, paho.mqtt.client as paho
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    class Client:
        def __init__(self, mqttd, client_id, expiry=0):
            self.messages, self.connacks, self.subacks = queue.Queue(), queue.Queue(), queue.Queue()
            self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
            self.client.on_message = lambda *it: self.messages.put(it[-1])
            self.client.on_subscribe = lambda *it: self.subacks.put(it[-2])
            self.client.on_connect = lambda _c, _u, flags, _r, properties: self.connacks.put((flags, properties))
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry
            self.client.connect(mqttd.host, mqttd.port, clean_start=not expiry, properties=properties)
            self.client.loop_start()
            flags, self.granted = self.connacks.get(timeout=20)
            self.session_present = flags.session_present

        def subscribe(self, topic):
            self.client.subscribe(topic, 1)
            self.subacks.get(timeout=20)

        def publish(self, topic, payload):
            self.client.publish(topic, payload, 1).wait_for_publish(20)

        def close(self):
            self.client.disconnect()
            self.client.loop_stop()

    @pytest.fixture
    def connect():
        made = []
        def connect(*it, **named):
            made.append(Client(*it, **named))
            return made[-1]
        yield connect
        for each in made:
            each.close()
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return a directory with the conftest above, and the plugin loaded by its module: nothing has to be installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "broker.pytest_plugin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST)
    return pytester


def run(suite: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return suite.runpytest_subprocess("-p", "no:cacheprovider", *arguments, timeout=SECONDS_MAX)


def test_a_broker_for_each_test_with_v5_and_shared_subscriptions(suite: pytest.Pytester) -> None:
    """Two members of a group get each message once between them; another test has another broker."""
    suite.makepyfile("""
        def test_shared(mqttd, connect):
            members = [connect(mqttd, f"member{number}") for number in range(2)]
            for each in members:
                each.subscribe("$share/group/work/#")
            publisher = connect(mqttd, "publisher")
            for number in range(10):
                publisher.publish("work/x", b"%d" % number)
            got = []
            while len(got) < 10:
                got += [each.messages.get().payload for each in members if each.messages.qsize()]
            assert sorted(got) == [b"%d" % number for number in range(10)]
            publisher.client.publish("kept", b"here", 1, retain=True).wait_for_publish(20)

        def test_nothing_of_the_other(mqttd, connect):
            client = connect(mqttd, "client")
            client.subscribe("#")
            client.publish("first", b"")
            assert client.messages.get(timeout=20).topic == "first"
            assert mqttd.url == f"mqtt://127.0.0.1:{mqttd.port}"
    """)
    run(suite, "-W", "error").assert_outcomes(passed=2)


def test_settings_by_marker_and_by_configuration(suite: pytest.Pytester) -> None:
    """The closest marker counts; missing settings come from pytest's configuration or its command line."""
    suite.makefile(".toml", settings="[limits]\nreceive_maximum = 11\n")
    suite.makeini("[pytest]\nmqttd_workers = 2\nmqttd_config = settings.toml\naddopts = --strict-markers\n")
    suite.makepyfile("""
        import pytest

        def test_default(mqttd, connect):
            assert sorted(mqttd.worker_pids()) == [0, 1]
            assert connect(mqttd, "x").granted.ReceiveMaximum == 11

        @pytest.mark.mqttd(workers=1, config={"limits": {"receive_maximum": 12}, "queue_full": "drop_oldest"})
        class TestOfAClass:
            def test_marked(self, mqttd, connect):
                assert list(mqttd.worker_pids()) == [0]
                assert connect(mqttd, "x").granted.ReceiveMaximum == 12

            @pytest.mark.mqttd(config="other.toml")
            def test_file(self, mqttd, connect):
                assert connect(mqttd, "x").granted.ReceiveMaximum == 13
    """)
    suite.makefile(".toml", other="port = 1\nworkers = 9\n[limits]\nreceive_maximum = 13\n")
    run(suite).assert_outcomes(passed=3)
    run(suite, "-o", "mqttd_workers=3", "-k", "default").stdout.fnmatch_lines(["*assert [[]0, 1, 2[]] == [[]0, 1[]]*"])


def test_restart_and_a_killed_worker(suite: pytest.Pytester) -> None:
    """The port stays and clients reconnect by themselves; sessions in memory end with the broker or their worker."""
    suite.makepyfile("""
        import pytest

        def test_restart(mqttd, connect):
            first = connect(mqttd, "first", expiry=100)
            port, pid = mqttd.port, mqttd.pid
            mqttd.restart()
            assert (mqttd.port, mqttd.pid != pid) == (port, True)
            first.connacks.get(timeout=20)  # paho has reconnected
            assert not connect(mqttd, "second").session_present
            assert mqttd.logs.count("worker_ready") == 2

        def test_stop_and_start(mqttd, connect):
            mqttd.stop()
            with pytest.raises(ConnectionRefusedError):
                connect(mqttd, "early")
            mqttd.start()
            connect(mqttd, "late")

        @pytest.mark.mqttd(workers=2)
        def test_kill_worker(mqttd, connect):
            clients = [connect(mqttd, f"client{number}", expiry=100) for number in range(8)]
            before = mqttd.worker_pids()
            mqttd.kill_worker(1)
            after = mqttd.worker_pids()
            assert (before[0] == after[0], before[1] != after[1]) == (True, True)
            for each in clients:
                each.client.disconnect()
            present = {connect(mqttd, f"client{number}", expiry=100).session_present for number in range(8)}
            assert present == {True, False}
    """)
    run(suite).assert_outcomes(passed=3)


def test_one_broker_for_many_tests(suite: pytest.Pytester) -> None:
    """mqttd_factory serves fixtures of any scope; a failing test shows the lines logged during it, and no more."""
    suite.makepyfile("""
        import os, signal, pytest

        @pytest.fixture(scope="module")
        def shared(mqttd_factory):
            return mqttd_factory(workers=1, config={"log_level": "debug"})

        def reload(broker):
            before = broker.logs.count("reloaded")
            os.kill(broker.pid, signal.SIGHUP)
            while broker.logs.count("reloaded") == before:
                pass

        def test_one(shared):
            reload(shared)

        def test_two(shared):
            reload(shared)
            assert shared.port == 0
    """)
    result = run(suite, "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    report = result.stdout.str().partition("log of mqttd at mqtt://127.0.0.1:")[2]
    assert "worker_ready" not in report
    assert "reloaded" in report


def test_a_broker_that_cannot_start_or_ends_by_itself(suite: pytest.Pytester) -> None:
    """The error says why, in the broker's own words."""
    suite.makepyfile("""
        import os, signal, pytest

        @pytest.mark.mqttd(config={"limits": {"inflight_maxx": 1}})
        def test_wrong(mqttd): ...

        def test_killed(mqttd):
            os.kill(mqttd.pid, signal.SIGKILL)
            while mqttd.alive():
                pass

        @pytest.mark.mqttd(4)
        def test_by_position(mqttd): ...
    """)
    result = run(suite)
    result.assert_outcomes(passed=1, errors=3)
    result.stdout.fnmatch_lines(["*inflight_maxx*", "*ended by itself with status -9*"])
    result.stdout.fnmatch_lines(["*takes its arguments by name*"])


@pytest.fixture
def tmp_short() -> Iterator[Path]:
    """A directory for temporary files whose path is short enough for the sockets of brokers."""
    with tempfile.TemporaryDirectory(prefix="mqttd-", dir="/tmp") as directory:
        yield Path(directory)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_nothing_is_left_when_pytest_is_ended(suite: pytest.Pytester, tmp_short: Path, number: signal.Signals) -> None:
    """Interrupted, terminated or killed during a test: no process is left and, after an interrupt, no file."""
    suite.makepyfile("""
        import pathlib, signal

        def test_forever(mqttd, mqttd_factory):
            started = [mqttd.pid, mqttd_factory(workers=2).pid]
            pathlib.Path("pids.part").write_text(" ".join(map(str, started)))
            pathlib.Path("pids.part").rename("pids")
            signal.pause()
    """)
    pids = Path(suite.path, "pids")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=suite.path,
        env={**os.environ, "TMPDIR": str(tmp_short)},
        stdout=subprocess.DEVNULL,
        # a suite in the background of a shell has SIGINT ignored, and its child processes inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_until(pids.exists, SECONDS_MAX, "the brokers run")
        sessions = [int(pid) for pid in pids.read_text().split()]
        assert all(processes_of_session(session) for session in sessions)
        assert len(list(tmp_short.glob("mqttd*"))) == 2
        process.send_signal(number)
        assert process.wait(SECONDS_MAX) != 0
        wait_until(lambda: not any(map(processes_of_session, sessions)), SECONDS_MAX, "the brokers have ended")
    finally:
        process.kill()
        process.wait(SECONDS_MAX)
    if number == signal.SIGINT:
        assert not list(tmp_short.glob("mqttd*"))


def test_the_examples_of_the_documentation(suite: pytest.Pytester) -> None:
    """The examples of docs/testing-with-mqttd.md run as they are."""
    page = (ROOT / "docs" / "testing-with-mqttd.md").read_text()
    examples = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    suite.makeconftest("")
    suite.makepyfile("import pytest\n" + "\n".join(examples))
    suite.mkdir("deploy").joinpath("mqttd.toml").write_text("workers = 3\n")
    run(suite).assert_outcomes(passed=5)


def test_mqttd_does_not_need_pytest() -> None:
    """Neither the broker nor the class behind the fixture imports it."""
    program = "import sys, broker.cli.main, broker.worker.process, broker.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=SECONDS_MAX, check=False).returncode == 0
