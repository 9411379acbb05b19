"""User names, passwords and AUTH: which clients are accepted, how others are refused, and service during the checks."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from loadtest import processor
from shards.placement import home
from tests import wire
from tests.broker_process import KIND, ROOT, BrokerProcess
from tests.scram_client import METHOD, ScramClient
from tests.waiting import wait_until
from tests.wire import Client, Connect, OpenConnection

pytestmark = pytest.mark.skipif(KIND == "mosquitto", reason="the password file is mqttd's own")

BAD_PASSWORD, NOT_AUTHORIZED, BAD_METHOD, QUOTA, PROTOCOL_ERROR, MALFORMED = 0x86, 0x87, 0x8C, 0x97, 0x82, 0x81
#: written by mosquitto_passwd, for "secret"
MOSQUITTOS = (
    "$7$101$MiT0TK6+jRXwuoq9$pRDGR+IzbY1byenMmk5cvb+cty/yUrBxXIwtnD9e2nTVul21I74HSfBy7RM6kCySPLkF4DZzwtojDpq3PENeDg=="
)
SALT_AND_KEY = MOSQUITTOS.partition("$7$101$")[2]


def passwd(path: Path, user: str, password: str) -> None:
    """Set a user's password with the command of an operator."""
    command = [sys.executable, "-m", "broker", "passwd", "--scram-iterations", "4096", str(path), user]
    subprocess.run(command, input=f"{password}\n".encode(), cwd=ROOT, check=True, timeout=60)


def guarded(path: Path, workers: int, *arguments: str) -> BrokerProcess:
    return BrokerProcess(workers, ["--password-file", str(path), "--log-format", "json", *arguments])


@pytest.fixture(scope="module")
def users() -> Iterator[Path]:
    """alice has password "wonder", for password and SCRAM logins; bob has "secret", with mosquitto's hash."""
    with tempfile.TemporaryDirectory(prefix="mqttd-test-") as directory:
        path = Path(directory, "users")
        path.write_text(f"# users of the tests\nbob:{MOSQUITTOS}\n")
        path.chmod(0o600)
        passwd(path, "alice", "wonder")
        yield path


@pytest.fixture(scope="module")
def guarded_brokers() -> Iterator[dict[int, BrokerProcess]]:
    running: dict[int, BrokerProcess] = {}
    yield running
    for each in running.values():
        status = each.stop()
        said = each.stderr()
        each.forget()
        assert status == 0
        assert "Traceback" not in said
        assert "wonder" not in said


@pytest.fixture
def broker(workers: int, users: Path, guarded_brokers: dict[int, BrokerProcess]) -> BrokerProcess:
    """A broker with the password file; ``connect`` and ``open_connection`` use it."""
    if workers not in guarded_brokers:
        guarded_brokers[workers] = guarded(users, workers).start()
    return guarded_brokers[workers]


def code(version: int, v5: int, v3: int) -> int:
    return v5 if version == 5 else v3


# ------------------------------------------------------------ user name and password


@pytest.mark.mqtt("5:3.1.4-2", "311:3.1.4-4")
@pytest.mark.parametrize(("user", "password"), [("alice", b"wonder"), ("bob", b"secret")])
def test_the_right_password(connect: Connect, any_version: int, name: str, user: str, password: bytes) -> None:
    """A user with the right password is accepted, whether the file has an argon2id hash or mosquitto's."""
    for number in range(3):  # four workers: any of them may accept the connection, the client's home decides
        connect(any_version, f"{name}{number}", username=user, password=password).expect_silence()


@pytest.mark.mqtt("5:3.1.4-2", "311:3.2.2-5")
@pytest.mark.parametrize(
    ("user", "password"),
    [("alice", b"wondeR"), ("alice", b""), ("alice", None), ("Alice", b"wonder"), ("nobody", b"wonder"), ("", b"x")],
)
def test_a_wrong_password(
    open_connection: OpenConnection, any_version: int, name: str, user: str, password: bytes | None
) -> None:
    """A wrong, an empty or a missing password and an unknown user are refused alike: 0x86, return code 4."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name, username=user, password=password))
    client.expect_refused(code(any_version, BAD_PASSWORD, 4))


@pytest.mark.mqtt("5:3.1.4-2", "311:3.2.2-5")
def test_no_user_name(open_connection: OpenConnection, any_version: int, name: str) -> None:
    """With a password file, a client without a user name is refused: 0x87, return code 5."""
    client = open_connection(any_version)
    client.send(wire.connect(any_version, name))
    client.expect_refused(code(any_version, NOT_AUTHORIZED, 5))


@pytest.mark.mqtt("5:3.1.4-2")
def test_a_password_without_a_user_name_is_anonymous(open_connection: OpenConnection, name: str) -> None:
    """v5 allows a password without a user name: the client is anonymous, so it is not authorized."""
    client = open_connection(5)
    client.send(wire.connect(5, name, password=b"wonder"))
    client.expect_refused(NOT_AUTHORIZED)


@pytest.mark.mqtt("5:3.1.4-6", "311:3.1.4-5")
def test_nothing_behind_a_refused_connect_is_processed(
    connect: Connect, open_connection: OpenConnection, any_version: int, name: str
) -> None:
    """Packets that follow a CONNECT with wrong credentials are not processed."""
    watcher = connect(5, username="alice", password=b"wonder")
    watcher.subscribe(name)
    thief = open_connection(any_version)
    thief.send(
        wire.connect(any_version, f"{name}thief", username="alice", password=b"guess"),
        wire.publish(any_version, name, b"stolen"),
    )
    thief.expect_refused(code(any_version, BAD_PASSWORD, 4))
    wire.expect_nothing_more(watcher, watcher, f"{name}/marker")


@pytest.mark.mqtt("5:3.1.4-3", "311:3.1.4-2")
def test_wrong_credentials_take_nobody_over(
    connect: Connect, open_connection: OpenConnection, any_version: int, name: str
) -> None:
    """A CONNECT with wrong credentials does not take over the connection of its client id."""
    owner = connect(any_version, name, username="alice", password=b"wonder")
    thief = open_connection(any_version)
    thief.send(wire.connect(any_version, name, username="alice", password=b"guess"))
    thief.expect_refused(code(any_version, BAD_PASSWORD, 4))
    owner.expect_silence()
    connect(any_version, name, username="bob", password=b"secret").expect_silence()
    owner.expect_closed(0x8E)


@pytest.mark.mqtt("5:3.1.4-2")
def test_refusals_are_logged_with_name_and_address_and_without_password(
    broker: BrokerProcess, open_connection: OpenConnection, name: str
) -> None:
    """The log names refused users and their addresses; it never contains the password."""
    client = open_connection(5)
    address = "{}:{}".format(*client.socket.getsockname())
    client.send(wire.connect(5, name, username="mallory", password=b"hush-hush"))
    client.expect_refused(BAD_PASSWORD)
    wait_until(lambda: any(each.get("client") == name for each in broker.logged("connection_refused")), 60.0, "logged")
    (line,) = [each for each in broker.logged("connection_refused") if each.get("client") == name]
    assert (line["username"], line["address"], line["code"]) == ("mallory", address, BAD_PASSWORD)
    assert "hush-hush" not in broker.stderr()


@pytest.mark.mqtt("5:3.1.4-5")
def test_mosquittos_clients_log_in(broker: BrokerProcess, connect: Connect, name: str) -> None:
    """`mosquitto_pub -u -P` publishes; with a wrong password it reports the refusal."""
    subscriber = connect(5, username="alice", password=b"wonder")
    subscriber.subscribe((name, 1))

    def publish(password: str) -> subprocess.CompletedProcess[str]:
        host, port = broker.address
        command = ["mosquitto_pub", "-h", host, "-p", str(port), "-u", "alice", "-P", password]
        return subprocess.run(
            [*command, "-t", name, "-m", "hello", "-q", "1"], capture_output=True, text=True, timeout=60
        )

    assert publish("wonder").returncode == 0
    subscriber.receive(name, b"hello")
    refused = publish("wrong")
    assert refused.returncode != 0
    assert "bad user name or password" in refused.stderr


# ------------------------------------------------------------ while hashes are computed

Own = Callable[..., BrokerProcess]


def slow_users(tmp_path: Path, iterations: int, count: int) -> Path:
    """Users whose hashes take long; nobody knows their passwords."""
    path = tmp_path / "users"
    lines = [f"slow{i}:$7${iterations}${SALT_AND_KEY}\n" for i in range(count)]
    path.write_text(f"bob:{MOSQUITTOS}\n" + "".join(lines))
    return path


def pbkdf2_iterations(seconds: float) -> int:
    """Return the number of iterations that take about this much time of a processor."""
    began = time.process_time()
    hashlib.pbkdf2_hmac("sha512", b"x", b"salt", 100_000)
    return int(100_000 * seconds / (time.process_time() - began)) + 1


def seconds_of_loops(broker: BrokerProcess) -> float:
    """Return the processor time of the event loops: of the first thread of each worker."""
    paths = [Path(f"/proc/{pid}/task/{pid}/stat") for pid in broker.worker_pids().values()]
    ticks = [int(field) for path in paths for field in path.read_text().rpartition(")")[2].split()[11:13]]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


@pytest.mark.mqtt("5:3.1.4-2")
def test_fifty_hashes_do_not_stop_the_broker(own_broker: Own, tmp_path: Path, workers: int) -> None:
    """While 50 passwords of 50 ms each are hashed another client is answered: the event loops compute no hash."""
    path = slow_users(tmp_path, pbkdf2_iterations(0.05), 50)
    # the threads that hash give way to all other processes of the machine
    patient = {"MQTTD_LIMITS__CONNECT_SECONDS_MAX": "300", "MQTTD_LIMITS__HANDOFF_SECONDS_MAX": "300"}
    broker = own_broker(workers, ["--password-file", str(path)], patient)
    client = Client(broker.address, 5)
    client.connect("watching", username="bob", password=b"secret")
    logins = [Client(broker.address, 5) for _ in range(50)]
    loops_before, everything_before = seconds_of_loops(broker), processor.seconds(broker.pid)
    for number, login in enumerate(logins):
        login.send(wire.connect(5, f"c{number}", username=f"slow{number}", password=b"guess"))
    for _ in range(20):
        client.expect_silence()
    for login in logins:
        login.expect_refused(BAD_PASSWORD)
        login.close()
    client.close()
    loops = seconds_of_loops(broker) - loops_before
    everything = processor.seconds(broker.pid) - everything_before
    # on a busy machine only the time of the processor says who computed what
    assert everything > 0.5  # less than 50 times 50 ms: the processor may be faster than when that was measured
    assert loops < everything / 2


@pytest.mark.mqtt("5:3.2.2-7", "311:3.2.2-5")
@pytest.mark.own_brokers
def test_too_many_that_wait_are_refused(own_broker: Own, tmp_path: Path, workers: int, any_version: int) -> None:
    """Beyond auth_pending_max a login is refused at once, with 0x97 or return code 3; those that wait are answered."""
    path = slow_users(tmp_path, pbkdf2_iterations(1.0), 2)
    environment = {"MQTTD_LIMITS__AUTH_PENDING_MAX": "1", "MQTTD_LIMITS__AUTH_THREADS_MAX": "1"}
    broker = own_broker(workers, ["--password-file", str(path)], environment)
    ids = [each for each in (f"c{number}" for number in range(100)) if home(each, workers) == 0]  # one worker's
    first, second = Client(broker.address, any_version), Client(broker.address, any_version)
    first.send(wire.connect(any_version, ids[0], username="slow0", password=b"guess"))
    second.send(wire.connect(any_version, ids[1], username="slow1", password=b"guess"))
    # the kernel chooses which of the two is read first
    second.expect_refused(code(any_version, QUOTA, 3), code(any_version, BAD_PASSWORD, 4))
    first.expect_refused(code(any_version, BAD_PASSWORD, 4), code(any_version, QUOTA, 3))
    assert broker.stderr().count("too many passwords wait to be checked") == 1
    first.close()
    second.close()


@pytest.mark.mqtt("5:3.1.4-2")
def test_a_check_that_outlasts_the_connect_timer(own_broker: Own, tmp_path: Path, workers: int) -> None:
    """A login whose password is not checked within connect_seconds_max gets 0x88, and the connection is closed."""
    path = slow_users(tmp_path, 10_000_000, 1)
    broker = own_broker(workers, ["--password-file", str(path)], {"MQTTD_LIMITS__CONNECT_SECONDS_MAX": "2"})
    client = Client(broker.address, 5)
    client.send(wire.connect(5, "c", username="slow0", password=b"guess"))
    client.expect_refused(0x88)
    client.close()
    # hashes that are still being computed do not keep the broker from stopping either
    assert broker.stop() == 0
    assert "workers_killed_stopping" not in broker.stderr()


@pytest.mark.mqtt("5:3.1.4-5", "311:3.1.4-4")
@pytest.mark.own_brokers
def test_the_second_login_costs_no_hash(own_broker: Own, tmp_path: Path, workers: int, any_version: int) -> None:
    """Recent successful logins are cached: with a hash that takes 0.3 s, a client that reconnects costs less."""
    iterations = pbkdf2_iterations(0.3)
    key = base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"right", b"salt", iterations)).decode()
    path = tmp_path / "users"
    path.write_text(f"slow:$7${iterations}$c2FsdA==${key}\n")
    broker = own_broker(workers, ["--password-file", str(path)])
    processor_seconds = [processor.seconds(broker.pid)]
    for _ in range(6):
        client = Client(broker.address, any_version)
        client.connect("same", username="slow", password=b"right")
        client.disconnect()
        processor_seconds.append(processor.seconds(broker.pid))
    first, *_, last = itertools.pairwise(processor_seconds)
    later = last[1] - first[1]
    assert later < first[1] - first[0], "five logins together cost less than the first"


# ------------------------------------------------------------ the password file and anonymous clients


def accepted(broker: BrokerProcess, version: int, user: str | None, password: bytes | None) -> bool:
    """Return whether a login succeeds now."""
    client = Client(broker.address, version)
    try:
        client.send(wire.connect(version, "", username=user, password=password))
        return client.expect("CONNACK").reason == 0
    finally:
        client.close()


@pytest.mark.mqtt("5:3.1.4-2", "311:3.2.2-5")
def test_sighup_reads_the_users_again(own_broker: Own, tmp_path: Path, workers: int) -> None:
    """A reload adds and removes users in every worker; a file with an error changes nothing, and the log says where."""
    path = tmp_path / "users"
    path.write_text(f"bob:{MOSQUITTOS}\n")
    path.chmod(0o644)
    broker = own_broker(workers, ["--password-file", str(path), "--log-format", "json"])
    assert broker.logged("password_file_world_readable")[0]["file"] == str(path)
    tries = range(workers * 4)  # assigned client ids stay with the worker that accepts: so all workers are asked
    assert all(accepted(broker, 5, "bob", b"secret") for _ in tries)
    stays = Client(broker.address, 5)
    stays.connect("stays", username="bob", password=b"secret")

    def reload(text: str, event: str, times: int) -> None:
        path.write_text(text)
        before = len(broker.logged(event))
        os.kill(broker.pid, signal.SIGHUP)
        wait_until(lambda: len(broker.logged(event)) == before + times, 60.0, event)

    reload(f"# changed\ncarl:{MOSQUITTOS}\n", "reloaded", workers + 1)
    assert not any(accepted(broker, 5, "bob", b"secret") for _ in tries)
    assert all(accepted(broker, 5, "carl", b"secret") for _ in tries)
    stays.expect_silence()
    reload(f"dora:{MOSQUITTOS}\ncarl:nonsense\n", "reload_refused", 1)
    assert f"password_file: {path}:2: no argon2id" in broker.logged("reload_refused")[0]["reason"]
    assert all(accepted(broker, 5, "carl", b"secret") for _ in tries)
    # a worker dies while the file is wrong: its successor has the same users as the other workers
    victim = broker.worker_pids()[workers - 1]
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(broker.logged("worker_ready")) == workers + 1, 60.0, "the successor is ready")
    assert all(accepted(broker, 5, "carl", b"secret") for _ in tries)
    stays.close()


@pytest.mark.mqtt("5:3.1.4-2", "311:3.1.4-4")
@pytest.mark.own_brokers
def test_anonymous_clients_beside_users(own_broker: Own, users: Path, workers: int, any_version: int) -> None:
    """With --allow-anonymous a client without a user name is accepted; wrong credentials are still refused."""
    broker = own_broker(workers, ["--password-file", str(users), "--allow-anonymous", "--host", "0.0.0.0"])
    assert "2 users of" in broker.stderr()
    assert "anonymous clients are allowed" in broker.stderr()
    client = Client(broker.address, any_version)
    client.connect("anonymous")
    client.close()
    wrong = Client(broker.address, any_version)
    wrong.send(wire.connect(any_version, "wrong", username="alice", password=b"guess"))
    wrong.expect_refused(code(any_version, BAD_PASSWORD, 4))
    wrong.close()


# ------------------------------------------------------------ AUTH


def authentication(data: bytes | None = None, method: str = METHOD) -> dict[str, str | bytes]:
    """Return the authentication properties of a CONNECT or an AUTH."""
    return {"authentication_method": method, **({} if data is None else {"authentication_data": data})}


def begin(client: Client, client_id: str, scram: ScramClient, **options: object) -> wire.Packet:
    """Send CONNECT with the first message; return the answer."""
    properties = authentication(scram.first())
    client.send(wire.connect(5, client_id, properties=properties, **options))  # type: ignore[arg-type]
    return client.expect("AUTH", reason=0x18)


def scram_login(client: Client, client_id: str, user: str = "alice", password: str = "wonder") -> wire.Packet:
    """Run the whole exchange; return the CONNACK."""
    scram = ScramClient(user, password)
    answer = begin(client, client_id, scram)
    assert answer.properties["authentication_method"] == METHOD
    client.send(wire.auth(0x18, authentication(scram.final(answer.properties["authentication_data"]))))
    connack = client.expect("CONNACK", reason=0)
    scram.check(connack.properties["authentication_data"])
    return connack


@pytest.mark.mqtt("5:4.12.0-2", "5:4.12.0-3", "5:4.12.0-5")
def test_scram(open_connection: OpenConnection, name: str) -> None:
    """SCRAM login by CONNECT, AUTH 0x18 both ways, CONNACK: each has the method, the last the server's signature."""
    for number in range(3):
        client = open_connection(5)
        connack = scram_login(client, f"{name}{number}")
        assert connack.properties["authentication_method"] == METHOD
        client.subscribe(name)
        client.expect_silence()


@pytest.mark.mqtt("5:4.12.0-2", "5:3.2.2-16")
def test_scram_with_the_first_message_in_auth_and_an_assigned_client_id(open_connection: OpenConnection) -> None:
    """A CONNECT without Authentication Data is asked for it by AUTH; an empty client id is assigned at the end."""
    client = open_connection(5)
    scram = ScramClient("alice", "wonder", "y,,")
    client.send(wire.connect(5, "", properties=authentication()))
    assert client.expect("AUTH", reason=0x18).properties == authentication()
    client.send(wire.auth(0x18, authentication(scram.first())))
    answer = client.expect("AUTH", reason=0x18)
    client.send(wire.auth(0x18, authentication(scram.final(answer.properties["authentication_data"]))))
    connack = client.expect("CONNACK", reason=0)
    scram.check(connack.properties["authentication_data"])
    assert connack.properties["assigned_client_identifier"]


@pytest.mark.mqtt("5:4.12.0-4")
@pytest.mark.parametrize(("user", "password"), [("alice", "guess"), ("nobody", "wonder"), ("bob", "secret")])
def test_scram_fails(open_connection: OpenConnection, name: str, user: str, password: str) -> None:
    """A wrong password, an unknown user and a user without a verifier get the same answers, then CONNACK 0x87."""
    client = open_connection(5)
    scram = ScramClient(user, password)
    answer = begin(client, name, scram)
    client.send(wire.auth(0x18, authentication(scram.final(answer.properties["authentication_data"]))))
    client.expect_refused(NOT_AUTHORIZED)


@pytest.mark.mqtt("5:4.12.0-4")
@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"n,,n=alice", b"p=tls-unique,,n=alice,r=x", b"n,,n=alice,r=" + b"x" * 3000, b"n,a=bob,n=alice,r=x"],
    ids=["empty", "zero", "no nonce", "channel binding", "too long", "other identity"],
)
def test_a_bad_first_message(open_connection: OpenConnection, name: str, data: bytes) -> None:
    """Authentication Data that is not a SCRAM message, or is one that cannot be served, gets CONNACK 0x87."""
    client = open_connection(5)
    client.send(wire.connect(5, name, properties=authentication(data)))
    client.expect_refused(NOT_AUTHORIZED)


@pytest.mark.mqtt("5:4.12.0-1")
@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "scram-sha-256", "", "PLAIN"])
def test_a_method_that_is_not_supported(open_connection: OpenConnection, name: str, method: str) -> None:
    """An unsupported Authentication Method gets CONNACK 0x8C."""
    client = open_connection(5)
    client.send(wire.connect(5, name, username="alice", password=b"wonder", properties=authentication(b"x", method)))
    client.expect_refused(BAD_METHOD)


@pytest.mark.mqtt("5:4.12.0-6", "5:4.12.0-7")
def test_auth_without_a_method_in_connect(connect: Connect) -> None:
    """A client without an Authentication Method gets none in CONNACK; its AUTH is a Protocol Error."""
    client = connect(5, username="alice", password=b"wonder")
    assert "authentication_method" not in client.connack.properties
    client.send(wire.auth(0x19, authentication(ScramClient("alice", "wonder").first())))
    client.expect_closed(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.2-30", "5:3.1.4-6")
@pytest.mark.parametrize(
    "packet",
    [wire.PINGREQ, wire.subscribe(5, 1, ("a", 0)), wire.publish(5, "a", b"x"), wire.connect(5, "again")],
    ids=["PINGREQ", "SUBSCRIBE", "PUBLISH", "CONNECT"],
)
def test_other_packets_during_the_exchange(open_connection: OpenConnection, name: str, packet: bytes) -> None:
    """Between CONNECT and CONNACK a client may send only AUTH and DISCONNECT."""
    client = open_connection(5)
    begin(client, name, ScramClient("alice", "wonder"))
    client.send(packet)
    client.expect_refused(PROTOCOL_ERROR)
    early = open_connection(5)
    early.send(wire.connect(5, name, properties=authentication(ScramClient("alice", "wonder").first())), packet)
    early.expect("AUTH", reason=0x18)
    early.expect_refused(PROTOCOL_ERROR)


@pytest.mark.mqtt("5:3.1.2-30")
def test_disconnect_during_the_exchange(open_connection: OpenConnection, name: str) -> None:
    """A client may send DISCONNECT during the exchange: the connection is closed without another packet."""
    client = open_connection(5)
    begin(client, name, ScramClient("alice", "wonder"))
    client.send(wire.disconnect(5))
    client.expect_closed()


@pytest.mark.mqtt("5:4.12.0-3", "5:4.12.0-5")
def test_auth_that_does_not_fit_into_the_exchange(open_connection: OpenConnection, name: str) -> None:
    """During the exchange AUTH 0x19, or AUTH without a method, is a Protocol Error; another method gets 0x8C."""
    for packet, reason in (
        (wire.auth(0x19, authentication(b"x")), PROTOCOL_ERROR),
        (wire.auth(0x18, authentication(b"x", "PLAIN")), BAD_METHOD),
        (wire.packet("AUTH", 0, b"\x18\x00"), PROTOCOL_ERROR),
    ):
        client = open_connection(5)
        begin(client, name, ScramClient("alice", "wonder"))
        client.send(packet)
        client.expect_refused(reason)


@pytest.mark.mqtt("5:3.15.1-1", "5:3.15.2-1")
def test_malformed_auth(open_connection: OpenConnection, name: str) -> None:
    """AUTH with reserved flags is malformed; a reason code that only the server may send is a Protocol Error."""
    for packet, reasons in (
        (b"\xf1" + wire.auth(0x18, authentication(b"x"))[1:], (MALFORMED,)),
        (wire.auth(0x00, authentication(b"x")), (PROTOCOL_ERROR, MALFORMED)),
    ):
        client = open_connection(5)
        begin(client, name, ScramClient("alice", "wonder"))
        client.send(packet)
        client.expect_refused(*reasons)


@pytest.mark.mqtt("5:3.1.4-2")
def test_the_connect_timer_bounds_the_exchange(own_broker: Own, users: Path, workers: int) -> None:
    """A client that begins an authentication and does not continue is closed after connect_seconds_max."""
    broker = own_broker(workers, ["--password-file", str(users)], {"MQTTD_LIMITS__CONNECT_SECONDS_MAX": "2"})
    client = Client(broker.address, 5)
    begin(client, "lazy", ScramClient("alice", "wonder"))
    client.expect_closed()
    client.close()


@pytest.mark.mqtt("5:3.1.2-24", "5:4.12.0-4")
def test_auth_is_not_larger_than_the_client_takes(open_connection: OpenConnection, name: str) -> None:
    """A client whose Maximum Packet Size is too small for the server's AUTH cannot authenticate: CONNACK 0x87."""
    client = open_connection(5)
    properties = {**authentication(ScramClient("alice", "wonder").first()), "maximum_packet_size": 60}
    client.send(wire.connect(5, name, properties=properties))
    client.expect_refused(NOT_AUTHORIZED)


# ------------------------------------------------------------ re-authentication


@pytest.mark.mqtt("5:4.12.1-1")
def test_re_authentication(open_connection: OpenConnection, name: str) -> None:
    """AUTH 0x19 starts the exchange again while messages continue; AUTH 0x00 with the signature ends it; repeatedly."""
    client = open_connection(5)
    scram_login(client, name)
    client.subscribe((name, 1))
    for _ in range(2):
        scram = ScramClient("alice", "wonder")
        client.send(wire.auth(0x19, authentication(scram.first())))
        answer = client.expect("AUTH", reason=0x18)
        client.publish(name, b"meanwhile", qos=1)
        client.receive(name, b"meanwhile")
        client.send(wire.auth(0x18, authentication(scram.final(answer.properties["authentication_data"]))))
        done = client.expect("AUTH", reason=0)
        assert done.properties["authentication_method"] == METHOD
        scram.check(done.properties["authentication_data"])
    client.expect_silence()


@pytest.mark.mqtt("5:4.12.1-2")
@pytest.mark.parametrize(("user", "password"), [("alice", "guess"), ("nobody", "x")])
def test_re_authentication_fails(open_connection: OpenConnection, name: str, user: str, password: str) -> None:
    """Re-authentication that fails, or is for another user, gets DISCONNECT 0x87."""
    client = open_connection(5)
    scram_login(client, name)
    scram = ScramClient(user, password)
    client.send(wire.auth(0x19, authentication(scram.first())))
    if user == "alice":
        answer = client.expect("AUTH", reason=0x18)
        client.send(wire.auth(0x18, authentication(scram.final(answer.properties["authentication_data"]))))
    client.expect_closed(NOT_AUTHORIZED)


@pytest.mark.mqtt("5:4.12.1-1", "5:4.12.0-5")
def test_auth_out_of_place_on_an_open_connection(open_connection: OpenConnection, name: str) -> None:
    """AUTH with another method than CONNECT's gets 0x8C; 0x18 without 0x19, and 0x19 twice, are Protocol Errors."""
    first = authentication(ScramClient("alice", "wonder").first())
    for packets, reason in (
        ([wire.auth(0x19, authentication(b"x", "PLAIN"))], BAD_METHOD),
        ([wire.auth(0x18, authentication(b"x"))], PROTOCOL_ERROR),
        ([wire.auth(0x19, first), wire.auth(0x19, first)], PROTOCOL_ERROR),
    ):
        client = open_connection(5)
        scram_login(client, name)
        client.send(*packets)
        if len(packets) == 2:
            client.expect("AUTH", reason=0x18)
        client.expect_closed(reason)
