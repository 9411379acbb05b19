"""Comparisons of brokers: short runs of real ones, commands that are no brokers, and the arithmetic of the tables."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.testing import processes_of_session
from loadtest import brokers, compare, comparison, document
from loadtest.brokers import PLAIN, Broker, BrokerFailed
from loadtest.comparison import Cell, Comparison, Row
from tests.broker_process import ROOT
from tests.certificates import certificates
from tests.waiting import wait_until

SHORT = ["--runs", "1", "--seconds", "0.3", "--warmup", "0.1", "--drain", "30", "--quiet"]
LISTENER = (
    f"{sys.executable} -c 'import signal, socket; s = socket.create_server((\"127.0.0.1\", {{port}})); signal.pause()'"
)
"""Accepts connections and never sends anything."""


def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.compare", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def two_brokers() -> Comparison:
    """Return results of mosquitto with 10 us and mqttd with 1 us (0.5 to 1.5); mqttd lost one message."""
    cells = {
        "mosquitto": Cell([{"cpu": 10.0, "rate": 1000.0, "lost": 0.0}] * 3),
        "mqttd": Cell([{"cpu": value, "rate": 20_000.0, "lost": 1.0} for value in (0.5, 1.5, 1.0)]),
        "nats-server": Cell([], ["nats-server ended with status 1"]),
    }
    about = {name: {"version": "1", "command": f"{name} {{port}}", "keeps": "nothing", "files": ""} for name in cells}
    row = Row("two of them", "pair -c 2", ["rate", "cpu", "lost"], ["cpu"], "2026-01-01", "abc", 2.0, 0.25, cells)
    return Comparison("a machine", "mosquitto", about, {"pair0": row})


def test_medians_spreads_and_ratios() -> None:
    found = two_brokers()
    assert comparison.table(found.rows["pair0"], "mosquitto") == [
        ["broker", "delivered", "CPU per message", "lost", "beside mosquitto", "remark"],
        ["mosquitto", "1,000/s", "10 us", "0", "", ""],
        ["mqttd", "20,000/s", "1 us (0.5 - 1.5)", "1", "CPU per message 1/10", ""],
        ["nats-server", "-", "-", "-", "", "nats-server ended with status 1"],
    ]
    assert found.rows["pair0"].ratio("mqttd", "rate", "mosquitto") == 20.0
    assert found.failures() == ["pair0: nats-server ended with status 1"]


def test_what_is_written_can_be_read() -> None:
    found = two_brokers()
    values = json.loads(json.dumps(found.values()))
    assert values["ratios"]["pair0"]["mqttd"]["cpu"] == 0.1
    assert values["medians"]["pair0"]["mqttd"]["cpu"] == 1.0
    assert Comparison.of(values) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("pair0.cpu.ratio>0.05", "pair0.cpu.ratio>0.05: pair0, mqttd: 1/10"),
        ("pair0.mqttd.cpu.ratio>=0.1", "pair0.mqttd.cpu.ratio>=0.1: pair0, mqttd: 1/10"),
        ("cpu.ratio>0.2", None),
        ("rate.ratio<30", "rate.ratio<30: pair0, mqttd: 20"),
        ("mosquitto.cpu>9us", "mosquitto.cpu>9us: pair0, mosquitto: 10 us"),
        ("cpu>1s", None),
        ("lost>0", "lost>0: pair0, mqttd: 1"),
        ("nats-server.lost>0", "nats-server.lost>0: nothing was measured for it"),
    ],
)
def test_conditions(text: str, said: str | None) -> None:
    found = two_brokers()
    wanted = comparison.conditions(text, found.rows, found.brokers)
    assert comparison.failed(wanted, found) == ([] if said is None else [said])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is no condition"),
        ("pair0.speed>1", "speed is no scenario, broker or figure"),
        ("pair9.cpu>1us", "pair9 is no scenario, broker or figure"),
        ("cpu>1", "say us, ms or s"),
        ("lost>1ms", "lost is no duration"),
        ("cpu.ratio>1us", "a ratio has no unit"),
    ],
)
def test_a_condition_that_is_none_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        comparison.conditions(text, ["pair0"], ["mqttd"])


def test_a_document_is_written_again_without_a_change(tmp_path: Path) -> None:
    path = tmp_path / "figures.md"
    path.write_text(f"before\n\n{compare.MARK}\n\nold\n\n{document.END}\n\nafter\n")
    compare.write(path, two_brokers(), "a command")
    once = path.read_text(), {each.name: each.read_text() for each in (tmp_path / "figures").iterdir()}
    compare.write(path, two_brokers(), "a command")
    again = path.read_text(), {each.name: each.read_text() for each in (tmp_path / "figures").iterdir()}
    assert once == again
    text, images = again
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| mqttd | 20,000/s | 1 us (0.5 - 1.5) | 1 | CPU per message 1/10 |  |" in text
    assert set(images) == {"cpu.svg", "rate.svg"}
    assert all(f"(figures/{name})" in text and len(svg) < 30_000 for name, svg in images.items())
    path.write_text("nothing")
    with pytest.raises(ValueError, match="has no lines"):
        compare.write(path, two_brokers(), "a command")


def test_real_brokers_in_turn(tmp_path: Path) -> None:
    """mosquitto and mqttd in turn, a custom scenario and a built-in one: a page, JSON, and conditions that hold."""
    if shutil.which("mosquitto", path="/usr/sbin:/usr/bin") is None:
        pytest.fail("mosquitto is not installed: tests/packaging/debian-packages test")
    page, found = tmp_path / "page.html", tmp_path / "found.json"
    done = run(
        "--brokers", "mosquitto,mqttd-single", "--scenario", "mine=pair -c 3 -q 1 --rate 300",
        "--scenarios", "ack", *SHORT, "--runs", "2", "--html", str(page), "--json", str(found),
        "--fail-if", "lost>0,duplicates>0,memory.ratio>100,p99>1000s",
    )  # fmt: skip
    values = json.loads(found.read_text())
    assert values["ok"]
    assert values["brokers"]["mosquitto"]["version"].startswith("mosquitto version ")
    assert "listener {port} 127.0.0.1" in values["brokers"]["mosquitto"]["files"]
    for scenario in ("mine", "ack"):
        for broker in ("mosquitto", "mqttd-single"):
            runs: list[dict[str, float]] = values["rows"][scenario]["cells"][broker]["runs"]
            assert len(runs) == 2
            assert all(each["rate"] > 0 and each["memory"] > 1e6 and each["lost"] == 0 for each in runs)
    assert values["medians"]["mine"]["mosquitto"]["p99"] > 0
    assert values["medians"]["ack"]["mosquitto"]["ack_p50"] > 0
    assert "| mqttd-single |" in done.stdout
    text = page.read_text()
    assert text.count("<svg") >= 3
    assert "href=" not in text.replace('href="#', "")


def test_idle_connections_are_counted() -> None:
    """The memory of idle connections is counted: 4,000 take more than a worker frees after its start."""
    scenario = compare.Scenario("few", "", "conn -c 4000 -i 0", (), ())
    options = compare.parser().parse_args(SHORT)
    figures, said = compare.once(scenario, brokers.KNOWN["mqttd-single"], PLAIN, options)
    assert said == []
    assert figures["connect_p50"] > 0
    assert 0 < figures["client_bytes"] < 100_000


def results(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return found


def test_a_broker_that_fails_is_one_line_and_the_others_go_on() -> None:
    done = run(
        "--broker", f"exits={sys.executable} -c 'raise SystemExit(\"no licence\")'",
        "--broker", f"mute={LISTENER}", "--broker", "absent=no-such-broker --port {port}",
        "--brokers", "mosquitto", "--patience", "8", "--scenario", "a=pair -c 2 --rate 100",
        "--scenario", "b=pair -c 2 --rate 100", *SHORT, "--json", "-", status=1,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("compare: ")]
    assert lines == [
        "compare: absent is left out: no-such-broker is not installed",
        "compare: a: exits ended with status 1: no licence",
        "compare: a: mute does not answer CONNECT within 8 s",
    ]
    rows = results(done.stdout)["rows"]
    assert len(rows["b"]["cells"]["mosquitto"]["runs"]) == 1


def test_a_broker_that_ends_in_a_run_is_named() -> None:
    """The broker answers the first CONNECT, which checks that it serves, and exits at the second."""
    script = (
        "import socket; s = socket.create_server((\"127.0.0.1\", {port})); "
        "a, _ = s.accept(); a.recv(99); a.sendall(b\"\\x20\\x02\\0\\0\"); b, _ = s.accept()"
    )  # fmt: skip
    broker = Broker("leaves", f"{sys.executable} -c '{script}'")
    options = compare.parser().parse_args(SHORT)
    with pytest.raises(BrokerFailed, match=r"leaves(:| ended)"):
        compare.once(compare.Scenario("a", "", "pair -c 1 --rate 100", (), ()), broker, PLAIN, options)


def test_a_broker_that_does_not_listen_to_signals_is_killed_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "STOP_SECONDS_MAX", 0.2)
    script = (
        "import os, signal, socket; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "s = socket.create_server((\"127.0.0.1\", {port})); os.fork(); "
        "a, _ = s.accept(); a.recv(99); a.sendall(b\"\\x20\\x02\\0\\0\"); signal.pause()"
    )  # fmt: skip
    with brokers.started(Broker("deaf", f"{sys.executable} -c '{script}'")) as running:
        pid = running.pid
        assert len(processes_of_session(pid)) == 2
    wait_until(lambda: not processes_of_session(pid), 30, "the killed are gone")


def test_a_broker_that_refuses_is_named() -> None:
    script = (
        "import socket; s = socket.create_server((\"127.0.0.1\", {port})); "
        "a, _ = s.accept(); a.recv(99); a.sendall(b\"\\x20\\x02\\0\\5\"); a.recv(99)"
    )  # fmt: skip
    with pytest.raises(BrokerFailed, match="refuses clients: CONNACK with Reason Code 0x05"):
        with brokers.started(Broker("strict", f"{sys.executable} -c '{script}'")):
            pytest.fail("it is not ready")


def test_earlier_results_stand_beside_what_is_measured_now(tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps(two_brokers().values()))
    done = run("--scenarios", "none", "--brokers", "mqttd", "--with", str(earlier), "--json", "-", "--quiet", status=1)
    found = results(done.stdout)
    assert found["base"] == "mosquitto"
    assert found["failed"] == ["pair0: nats-server ended with status 1"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--brokers", "emqx"], "emqx is no broker: mqttd, "),
        (["--scenarios", "pair9"], "pair9 is no scenario: pair0, "),
        (["--broker", "mqttd"], "--broker mqttd: NAME=COMMAND"),
        (["--broker", "new=no-such-broker"], "new is left out: no-such-broker is not installed"),
        (["--brokers", "mqttd,mqttd"], "names must differ"),
        (["--scenario", "mine=pair -s 10"], "has 20 bytes at least"),
        (["--scenario", "mine=pair --colour red"], "unrecognized arguments"),
        (["--base", "emqx"], "--base emqx takes no part"),
        (["--runs", "0"], "argument --runs: 0: a number from 1 on"),
        (["--fail-if", "nonsense"], "--fail-if: 'nonsense' is no condition"),
        (["--with", "/nowhere"], "--with /nowhere: No such file or directory"),
        (["--with", "pyproject.toml"], "was not written by --json"),
        (["--scheme", "mqtts", "--brokers", "mosquitto"], "--scheme mqtts: mosquitto, as started here, has no such"),
        (["--brokers", "mosquitto", "--cafile", "x"], "mqtt:// has no TLS"),
        (["--brokers", "mosquitto", "--payload", "5"], "--payload 5: one that is checked has 20 bytes at least"),
        (["--write", "README.md"], "no lines"),
        (["--write", "/nowhere"], "/nowhere: No such file or directory"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], said: str) -> None:
    done = run("--quiet", *arguments, status=2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_all_tools_take_goes_before_what_scenarios_say(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    run(
        "--brokers", "mosquitto", "--scenario", "mine=pair -c 2", "--rate", "200", "--payload", "3:64,100",
        "--qos", "1", "--topic", "a/%i", "--session-expiry", "5", "--client-prefix", "x-", "--mqtt-version", "5",
        "--password", "p w", "--user", "u", *SHORT, "--json", str(found),
    )  # fmt: skip
    values = json.loads(found.read_text())
    row = values["rows"]["mine"]
    assert shlex.split(row["flood"])[3:] == [
        "--mqtt-version", "5", "--client-prefix", "x-", "--qos", "1", "--rate", "200.0", "--payload", "3:64,100",
        "--topic", "a/%i", "--session-expiry", "5",
    ]  # fmt: skip
    assert "p99" in row["shows"]
    assert 0 < row["cells"]["mosquitto"]["runs"][0]["rate"] < 5000  # sent by a schedule; a busy machine catches up
    assert "--password ... --user u" in values["command"]
    assert "p w" not in found.read_text()


def test_options_that_a_broker_cannot_leave_it_out() -> None:
    given = compare.parser().parse_args(["--brokers", "mosquitto,nats-server", "--scenarios", "pair0", "--qos", "2"])
    [scenario] = compare.chosen(given).scenarios
    assert scenario.needs == {"qos2"}


def test_a_broker_of_a_command_is_reached_by_tls_with_a_name_and_a_password(tmp_path: Path) -> None:
    certificates(tmp_path)
    (tmp_path / "passwords").write_text("fleet:word\n")
    subprocess.run(["mosquitto_passwd", "-U", str(tmp_path / "passwords")], check=True, capture_output=True)
    (tmp_path / "conf").write_text(
        f"user root\nallow_anonymous false\npassword_file {tmp_path}/passwords\n"
        f"cafile {tmp_path}/ca.pem\ncertfile {tmp_path}/server.pem\nkeyfile {tmp_path}/server.key\n"
    )
    secured = (
        f"secured=sh -c '(echo listener {{port}} 127.0.0.1; cat {tmp_path}/conf) > {{dir}}/conf; "
        "exec mosquitto -c {dir}/conf'"
    )
    common = ["--broker", secured, "--scenario", "a=pair -c 2 -q 1 --rate 200", "--scheme", "mqtts", *SHORT]
    done = run(*common, "--cafile", f"{tmp_path}/ca.pem", "--user", "fleet", "--password", "word", "--json", "-")
    (once,) = results(done.stdout)["rows"]["a"]["cells"]["secured"]["runs"]
    assert once["rate"] > 0
    assert once["lost"] == 0
    done = run(*common, "--cafile", f"{tmp_path}/ca.pem", "--user", "fleet", "--password", "wrong", status=2)
    assert "refuses clients: CONNACK with Reason Code 0x05" in done.stderr


def test_brokers_and_scenarios_are_listed() -> None:
    said = run("--list").stdout
    assert all(name in said for name in [*brokers.KNOWN, *compare.SCENARIOS])
