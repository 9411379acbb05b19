"""mosquitto_pub, mosquitto_sub and mosquitto_rr in ordinary use: QoS, retained, wills, sessions, properties."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess
from tests.waiting import let_pass, wait_until

SECONDS_MAX = 60.0

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None, reason="Debian's mosquitto-clients are missing: make test installs them"
)


class Subscriber:
    """A running mosquitto_sub; its output grows in a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self.log = log

    def said(self) -> str:
        """Return everything that it has written until now."""
        return self.log.read_text(errors="replace")

    def wait_for(self, text: str) -> None:
        """Wait until it has written this."""
        wait_until(lambda: text in self.said(), SECONDS_MAX, f"{text!r} in {self.said()!r}")


class Commands:
    """mosquitto_pub and mosquitto_sub for one broker and one version."""

    def __init__(self, broker: BrokerProcess, version: str, directory: Path) -> None:
        host, port = broker.address
        self.common = ["-h", host, "-p", str(port), "-V", version]
        self.directory = directory
        self.running: list[Subscriber] = []

    def publish(self, *arguments: str, data: bytes | None = None) -> None:
        """Run mosquitto_pub; its exit status is 0 only if its QoS handshake was completed."""
        command = ["mosquitto_pub", *self.common, *arguments]
        subprocess.run(command, input=data, timeout=SECONDS_MAX, check=True)

    def listen(self, *arguments: str) -> Subscriber:
        """Run mosquitto_sub in the background; return it once it is subscribed."""
        log = self.directory / f"subscriber{len(self.running)}"
        with log.open("wb") as out:
            command = ["stdbuf", "-oL", "mosquitto_sub", *self.common, "-d", "-v", *arguments]
            subscriber = Subscriber(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT), log)
        self.running.append(subscriber)
        subscriber.wait_for("Subscribed (mid:")
        return subscriber

    def lines(self, *arguments: str, program: str = "mosquitto_sub") -> list[str]:
        """Run a mosquitto_sub that ends by itself (-C, -E, -W); return the lines that it wrote."""
        command = [program, *self.common, *arguments]
        done = subprocess.run(command, timeout=SECONDS_MAX, check=True, capture_output=True, text=True)
        return done.stdout.splitlines()


@pytest.fixture(params=["mqttv311", "mqttv5"])
def commands(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[Commands]:
    with tempfile.TemporaryDirectory() as directory:
        made = Commands(broker, request.param, Path(directory))
        yield made
        for each in made.running:
            each.process.kill()
            each.process.wait()


only_v5 = pytest.mark.parametrize("commands", ["mqttv5"], indirect=True)


def durable(commands: Commands, name: str) -> list[str]:
    """Return the arguments of a lasting session: client id, no clean session, in v5 an expiry."""
    return ["-i", name, "-c", *(["-x", "60"] if "mqttv5" in commands.common else [])]


@pytest.mark.mqtt("5:4.2-1", "311:7.0.0-2")
@pytest.mark.parametrize("granted", ["0", "1", "2"])
@pytest.mark.parametrize("published", ["0", "1", "2"])
def test_publish_and_subscribe(commands: Commands, name: str, published: str, granted: str) -> None:
    """mosquitto_sub prints what mosquitto_pub publishes, at the lower QoS."""
    subscriber = commands.listen("-t", f"{name}/#", "-q", granted)
    commands.publish("-t", f"{name}/a", "-q", published, "-m", "hello")
    subscriber.wait_for(f"{name}/a hello\n")
    assert f"q{min(published, granted)}, r0" in subscriber.said()


@pytest.mark.parametrize(
    "qos", ["0", "1", pytest.param("2", marks=pytest.mark.mosquitto_differs("refuses part of it in v5, with 0x97"))]
)
def test_a_file_of_lines(commands: Commands, name: str, qos: str) -> None:
    """The five hundred lines of mosquitto_pub -l arrive in order."""
    subscriber = commands.listen("-t", name, "-q", qos)
    commands.publish("-t", name, "-q", qos, "-l", data=b"".join(b"line %d\n" % n for n in range(500)))
    subscriber.wait_for("line 499\n")
    got = [line for line in subscriber.said().splitlines() if line.startswith(f"{name} line")]
    assert got == [f"{name} line {n}" for n in range(500)]


def test_a_large_file(commands: Commands, name: str) -> None:
    """The 300,000 bytes of mosquitto_pub -s arrive whole."""
    subscriber = commands.listen("-t", name, "-q", "1")
    commands.publish("-t", name, "-q", "1", "-s", data=b"0123456789" * 30000)
    subscriber.wait_for("0123456789" * 30000)


def test_retained(commands: Commands, name: str) -> None:
    """A retained message is printed by a later mosquitto_sub; -n clears it."""
    commands.publish("-t", name, "-q", "1", "-r", "-m", "kept")
    assert commands.lines("-t", name, "-C", "1", "-F", "%r %p") == ["1 kept"]
    commands.publish("-t", name, "-q", "1", "-r", "-n")
    commands.publish("-t", f"{name}/marker", "-q", "1", "-r", "-m", "only this")
    assert commands.lines("-t", f"{name}/#", "-C", "1", "-F", "%p") == ["only this"]


def test_will(commands: Commands, name: str) -> None:
    """The will of a killed mosquitto_sub is printed; that of one that ends by itself is not."""
    watcher = commands.listen("-t", f"{name}/will/#", "-q", "1")
    commands.lines("-t", name, "-E", "--will-topic", f"{name}/will/p", "--will-payload", "polite", "--will-qos", "1")
    victim = commands.listen("-t", name, "--will-topic", f"{name}/will/v", "--will-payload", "dead", "--will-qos", "1")
    os.kill(victim.process.pid, signal.SIGKILL)
    watcher.wait_for(f"{name}/will/v dead\n")
    assert "polite" not in watcher.said()


@pytest.mark.parametrize("qos", ["1", "2"])
def test_resumption(commands: Commands, name: str, qos: str) -> None:
    """Messages published while mosquitto_sub -c was away are printed on its return."""
    session = durable(commands, name)
    commands.lines(*session, "-t", name, "-q", qos, "-E")
    for number in range(5):
        commands.publish("-t", name, "-q", qos, "-m", f"missed {number}")
    assert commands.lines(*session, "-t", name, "-q", qos, "-C", "5") == [f"missed {number}" for number in range(5)]


def test_shared_subscription(commands: Commands, name: str) -> None:
    """Two mosquitto_sub of one group print each message once between them."""
    members = [commands.listen("-t", f"$share/g/{name}", "-q", "1") for _ in range(2)]
    for number in range(20):
        commands.publish("-t", name, "-q", "1", "-m", f"<{number}>")
    seen: Callable[[], str] = lambda: "".join(member.said() for member in members)  # noqa: E731
    wait_until(lambda: all(f"<{number}>" in seen() for number in range(20)), SECONDS_MAX, "all messages")
    assert all(seen().count(f" <{number}>\n") == 1 for number in range(20))


@only_v5
def test_shared_subscription_of_one_that_leaves(commands: Commands, name: str) -> None:
    """Once a member of a group is killed, even before the broker notices, the other gets everything."""
    stays, leaves = (commands.listen("-t", f"$share/g/{name}", "-q", "1") for _ in range(2))
    for number in range(10):
        commands.publish("-t", name, "-q", "1", "-m", f"<{number}>")
    wait_until(lambda: (stays.said() + leaves.said()).count(f"{name} <") >= 10, SECONDS_MAX, "ten messages")
    leaves.process.kill()
    leaves.process.wait()
    before = stays.said().count(f"{name} <")
    for number in range(10, 20):
        commands.publish("-t", name, "-q", "1", "-m", f"<{number}>")
    wait_until(lambda: stays.said().count(f"{name} <") >= before + 10, SECONDS_MAX, "ten more at the other")


@only_v5
def test_properties(commands: Commands, name: str) -> None:
    """mosquitto_sub -F prints the properties set by mosquitto_pub -D."""
    pairs = ["b", "2", "a", "1", "b", "3"]
    properties = [
        ["content-type", "text/plain"],
        ["response-topic", f"{name}/answers"],
        ["correlation-data", "c0ffee"],
        ["payload-format-indicator", "1"],
        ["message-expiry-interval", "1000"],
        *(["user-property", *pairs[at : at + 2]] for at in range(0, 6, 2)),
    ]
    arguments = [word for each in properties for word in ("-D", "publish", *each)]
    commands.publish("-t", name, "-q", "1", "-r", "-m", "hello", *arguments)
    subscribed = ["-D", "subscribe", "subscription-identifier", "42"]
    (line,) = commands.lines("-t", name, "-q", "1", "-C", "1", "-F", "%C|%R|%D|%F|%P|%S|%E|%p", *subscribed)
    *rest, expiry, payload = line.split("|")
    assert rest == ["text/plain", f"{name}/answers", "c0ffee", "1", "b:2 a:1 b:3", "42"]
    assert (900 < int(expiry) <= 1000, payload) == (True, "hello")


def test_request_and_response(commands: Commands, name: str) -> None:
    """mosquitto_rr gets the answer published to its response topic."""
    listener = commands.listen("-t", f"{name}/asked", "-q", "1")
    asking = ["stdbuf", "-oL", "mosquitto_rr", *commands.common, "-q", "1", "-t", f"{name}/asked", "-m", "question"]
    asker = subprocess.Popen([*asking, "-e", f"{name}/answer"], stdout=subprocess.PIPE, text=True)
    try:
        listener.wait_for(f"{name}/asked question\n")
        commands.publish("-t", f"{name}/answer", "-q", "1", "-m", "forty-two")
        assert asker.communicate(timeout=SECONDS_MAX)[0] == "forty-two\n"
    finally:
        asker.kill()
        asker.wait()


@only_v5
def test_will_delay(commands: Commands, name: str) -> None:
    """A delayed will is not published if its client returns in time; otherwise it is, with its properties."""
    watcher = commands.listen("-t", f"{name}/will/#", "-q", "1", "-F", "%t %p %C")
    delay = ["--will-payload", "dead", "--will-qos", "1", "-D", "will", "will-delay-interval", "1"]
    delay += ["-D", "will", "content-type", "text/x-will", "-x", "100", "-c"]
    for client_id in ("returns", "stays"):
        arguments = ["-i", f"{name}{client_id}", "--will-topic", f"{name}/will/{client_id}", *delay]
        commands.listen("-t", name, *arguments).process.kill()
    commands.lines("-i", f"{name}returns", "-c", "-x", "100", "-t", name, "-E")
    watcher.wait_for(f"{name}/will/stays dead text/x-will\n")
    assert "will/returns" not in watcher.said()


@only_v5
def test_session_expiry(commands: Commands, name: str) -> None:
    """A session lasts until its expiry: one second, or a hundred, after the connection."""
    for client_id, seconds in ((f"{name}short", "1"), (f"{name}long", "100")):
        commands.lines("-i", client_id, "-c", "-x", seconds, "-t", f"{name}/{client_id}", "-q", "1", "-E")
    let_pass(1.3)
    for client_id in (f"{name}short", f"{name}long"):
        commands.publish("-t", f"{name}/{client_id}", "-q", "1", "-m", "waited")
    back = ["-c", "-q", "1", "-C", "1", "-W", "2"]
    assert commands.lines("-i", f"{name}long", "-x", "100", "-t", f"{name}/{name}long", *back) == ["waited"]
    again = ["-i", f"{name}short", "-x", "1", "-t", f"{name}/marker", "-D", "connect", "receive-maximum", "1"]
    short = commands.listen("-c", "-q", "1", *again)
    commands.publish("-t", f"{name}/marker", "-q", "1", "-m", "first")
    short.wait_for("marker first\n")
    assert "waited" not in short.said()


@only_v5
def test_message_expiry(commands: Commands, name: str) -> None:
    """An expired retained message is not printed; one that waited has less time left."""
    for topic, seconds in (("short", "1"), ("long", "100")):
        expiry = ["-D", "publish", "message-expiry-interval", seconds]
        commands.publish("-t", f"{name}/{topic}", "-q", "1", "-r", "-m", topic, *expiry)
    let_pass(1.2)
    (line,) = commands.lines("-t", f"{name}/+", "-C", "1", "-F", "%p %E")
    payload, left = line.split()
    assert (payload, 90 < int(left) < 100) == ("long", True)
