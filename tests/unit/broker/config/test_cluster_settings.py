"""Settings of a cluster: what is wrong is said, and what is right is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.cluster.host import identity_of
from broker.config.cluster import read_secret
from broker.config.loading import load
from broker.config.settings import ConfigError, Settings

RIGHT = {"cluster": ["etcd://127.0.0.1:2379"], "node_id": "n1", "mesh_listen": "tcp://127.0.0.1:7400", "workers": 2}


def loaded(**changes: object) -> Settings:
    return load(None, {}, {**RIGHT, **changes})


def errors(**changes: object) -> list[str]:
    with pytest.raises(ConfigError) as raised:
        loaded(**changes)
    return list(raised.value.lines)


def test_a_host_is_alone_by_default() -> None:
    assert not load(None, {}, {}).cluster.is_on


def test_flags_name_settings_of_the_table() -> None:
    cluster = loaded(cluster=["etcd://a:1", "etcd://[::1]:2379"]).cluster
    assert cluster.is_on
    assert cluster.endpoints == ("a:1", "[::1]:2379")
    assert (cluster.node_id, cluster.address, cluster.name) == ("n1", "tcp://127.0.0.1:7400", "mqttd")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("cluster", ["http://a:1"], "'http://a:1' is not etcd://HOST:PORT (from --cluster)"),
        ("cluster", ["etcd://a"], "'etcd://a' is not etcd://HOST:PORT"),
        ("cluster", ["etcd://a:0"], "'etcd://a:0' is not etcd://HOST:PORT"),
        ("cluster", ["etcd://a:65536"], "'etcd://a:65536' is not etcd://HOST:PORT"),
        ("cluster", [f"etcd://a:{at}" for at in range(1, 18)], "at most 16"),
        ("node_id", "", "'' is no name"),
        ("node_id", "a/b", "'a/b' is no name"),
        ("node_id", "a" * 64, "is no name"),
        ("mesh_listen", "", "'' is not tcp://HOST:PORT"),
        ("mesh_listen", "10.0.0.1:7400", "is not tcp://HOST:PORT"),
        ("mesh_listen", "tcp://a:0", "is not tcp://HOST:PORT"),
        ("mesh_listen", "tcp://${HOST}:7400", "is not tcp://HOST:PORT"),
        ("mesh_listen", "tcp://*:7400", "is not tcp://HOST:PORT"),
        ("mesh_listen", "tcp://a:65535", "with a port for each worker (2)"),
        ("mesh_listen", "tcp://0.0.0.0:7400", "cluster.advertise: needed"),
        ("mesh_listen", "tcp://[::]:7400", "cluster.advertise: needed"),
    ],
)
def test_what_is_wrong(key: str, value: object, says: str) -> None:
    found = errors(**{key: value})
    assert len(found) == 1
    assert says.removesuffix(" (from --cluster)") in found[0]


@pytest.mark.parametrize("name", ["a", "a" * 63, "n-1.example_x"])
def test_names(name: str) -> None:
    assert loaded(node_id=name).cluster.node_id == name


def test_the_last_port() -> None:
    assert loaded(mesh_listen="tcp://a:65533").cluster.listen == "tcp://a:65533"  # two workers, and the control process
    with pytest.raises(ConfigError, match="and one more"):
        loaded(mesh_listen="tcp://a:65534")


@pytest.mark.parametrize("address", ["", "a", "[::1]:1883", "a" * 255])
def test_addresses_for_clients(address: str) -> None:
    environment = {"MQTTD_CLUSTER__CLIENT_ADDRESS": address}
    assert load(None, environment, RIGHT).cluster.client_address == address


@pytest.mark.parametrize("address", ["a b", "a\n", "\0", "é", "a" * 256])
def test_no_addresses_for_clients(address: str) -> None:
    """It is told as one of several, with a space between them."""
    with pytest.raises(ConfigError, match=r"cluster\.client_address"):
        load(None, {"MQTTD_CLUSTER__CLIENT_ADDRESS": address}, RIGHT)


@pytest.mark.parametrize(("per_second", "is_right"), [(0, False), (1, True), (1_000_000, True), (1_000_001, False)])
def test_the_pace_of_draining(per_second: int, is_right: bool) -> None:
    environment = {"MQTTD_CLUSTER__DRAIN_PER_SECOND": str(per_second)}
    if is_right:
        assert load(None, environment, RIGHT).cluster.drain_per_second == per_second
    else:
        with pytest.raises(ConfigError, match=r"cluster\.drain_per_second"):
            load(None, environment, RIGHT)


def test_members_are_spread_where_clients_know_the_hosts(tmp_path: Path) -> None:
    """A host that others send members to has to say where they reach it; one that is in no cluster need not."""
    file = tmp_path / "mqttd.toml"
    file.write_text('[[shared]]\ngroup = "a*"\nstrategy = "sticky"\nspread = true\n')
    with pytest.raises(ConfigError) as raised:
        load(str(file), {}, RIGHT)
    (line,) = raised.value.lines
    assert line.startswith("shared.spread: needs cluster.client_address, where clients that other hosts send away")
    assert line.endswith("(group 'a*')")
    assert load(str(file), {"MQTTD_CLUSTER__CLIENT_ADDRESS": "a"}, RIGHT).shared[0].spread
    assert load(str(file), {}, {}).shared[0].spread
    file.write_text('[[shared]]\ngroup = "a*"\nstrategy = "sticky"\n')
    assert not load(str(file), {}, RIGHT).shared[0].spread


def test_nothing_of_it_without_etcd() -> None:
    found = errors(cluster=[])
    assert found == [
        "cluster.node_id: has no meaning without cluster.etcd, cluster.peers or cluster.dns (--cluster)",
        "cluster.listen: has no meaning without cluster.etcd, cluster.peers or cluster.dns (--cluster)",
    ]


def test_an_installation_stays(tmp_path: Path) -> None:
    """It is kept with the data; keys are new at each start."""
    first, second = identity_of(str(tmp_path)), identity_of(str(tmp_path))
    assert first.installation == second.installation
    assert first.keys != second.keys
    assert identity_of(None).installation != identity_of(None).installation


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"format": 2, "installation": "00"}', b'{"format": 1, "installation": 5}']
)
def test_a_damaged_installation_is_refused(tmp_path: Path, content: bytes) -> None:
    """Not replaced: others would take this host for another one, and keep what it is owed for ever."""
    (tmp_path / "cluster.json").write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        identity_of(str(tmp_path))


# ------------------------------------------------------------ peers


def secret(folder: Path, content: bytes = b"0123456789abcdef", mode: int = 0o600) -> str:
    """Return a file with a secret."""
    file = folder / "secret"
    file.touch(mode)
    file.chmod(mode)
    file.write_bytes(content)
    return str(file)


def of_peers(
    folder: Path, cluster: list[str], changes: dict[str, str] | None = None, listen: str = "a:7400"
) -> Settings:
    variables = {"MQTTD_CLUSTER__SECRET_FILE": secret(folder)} if not (folder / "secret").exists() else {}
    given = {f"MQTTD_CLUSTER__{name.upper()}": value for name, value in (changes or {}).items()}
    flags = {**RIGHT, "cluster": cluster, "mesh_listen": f"tcp://{listen}"}
    return load(None, {**variables, **given}, flags)


def test_peers_in_a_list(tmp_path: Path) -> None:
    cluster = of_peers(tmp_path, ["peers://a:7390", "b:7390", "peers://[::1]:7390"]).cluster
    assert cluster.peers == ["a:7390", "b:7390", "[::1]:7390"]
    assert (cluster.is_on, cluster.has_peers, cluster.etcd) == (True, True, [])
    assert (cluster.peers_address, cluster.needed_peers) == ("a:7390", 2)


def test_peers_behind_a_name(tmp_path: Path) -> None:
    cluster = of_peers(tmp_path, ["dns://mqttd.example:7390"]).cluster
    assert (cluster.dns, cluster.peers_address, cluster.needed_peers) == ("mqttd.example:7390", "a:7390", 1)


@pytest.mark.parametrize(
    ("listen", "changes", "address"),
    [
        ("a:7400", {}, "a:7390"),
        ("0.0.0.0:7400", {"advertise": "tcp://b:7400"}, "0.0.0.0:7391"),
        ("a:7400", {"peers_listen": "0.0.0.0:9"}, "0.0.0.0:9"),
    ],
)
def test_where_it_listens_for_peers(tmp_path: Path, listen: str, changes: dict[str, str], address: str) -> None:
    assert of_peers(tmp_path, ["peers://a:7390", "b:7391"], changes, listen).cluster.peers_address == address


@pytest.mark.parametrize("size", range(1, 6))
def test_the_quorum(tmp_path: Path, size: int) -> None:
    """More than half by default; up to all."""
    peers = [f"peers://{'abcde'[at]}:7390" for at in range(size)]
    assert of_peers(tmp_path, peers).cluster.needed_peers == {1: 1, 2: 2, 3: 2, 4: 3, 5: 3}[size]
    file = {"secret_file": str(tmp_path / "secret")}
    assert of_peers(tmp_path, peers, {**file, "quorum": str(size)}).cluster.needed_peers == size
    with pytest.raises(ConfigError, match="can never agree"):
        of_peers(tmp_path, peers, {**file, "quorum": str(size + 1)})


@pytest.mark.parametrize(
    ("cluster", "changes", "says"),
    [
        (["peers://a"], {}, "cluster.peers: 'a' is not HOST:PORT"),
        (["peers://a:0"], {}, "cluster.peers: 'a:0' is not HOST:PORT"),
        (["peers://a:65536"], {}, "cluster.peers: 'a:65536' is not HOST:PORT"),
        (["peers://a:1", "etcd://b:1"], {}, "cluster.peers: 'etcd://b:1' is not HOST:PORT"),
        (["peers://a:1", "a:1"], {"peers_listen": "a:1"}, "cluster.peers: a:1 is named twice"),
        (["peers://a:1", "0.0.0.0:1"], {}, "cluster.peers: other hosts cannot reach 0.0.0.0"),
        (["peers://b:1", "c:1"], {}, "cluster.peers_listen: needed"),
        (["peers://a:1", "a:2"], {}, "cluster.peers_listen: needed"),
        (["peers://a:1"], {"peers_listen": "a"}, "cluster.peers_listen: 'a' is not HOST:PORT"),
        (["peers://a:1"], {"quorum": "65"}, "cluster.quorum"),
        (["peers://a:1"], {"quorum": "-1"}, "cluster.quorum"),
        (["peers://a:1"], {"secret_file": "/nowhere/secret"}, "cluster.secret_file: /nowhere/secret: No such file"),
        (["peers://a:1"], {"secret_file": "/"}, "cluster.secret_file: /: Is a directory"),
        (["peers://a:1"], {"secret_file": "/dev/null"}, "not a regular file"),
        (["dns://a"], {}, "cluster.dns: 'a' is not HOST:PORT"),
        (["dns://a:1", "b:1"], {}, "cluster.dns: 'a:1,b:1' is not HOST:PORT"),
        (["dns://0.0.0.0:1"], {}, "cluster.dns: other hosts cannot reach 0.0.0.0"),
        (["dns://a:1"], {"etcd": "etcd://b:1"}, "one of them is needed, 2 are set"),
        (["etcd://a:1"], {"quorum": "1"}, "cluster.quorum: has no meaning without cluster.peers"),
        (["peers://a:1", *(f"b:{at}" for at in range(1, 65))], {}, "at most 64"),
    ],
)
def test_what_is_wrong_with_peers(tmp_path: Path, cluster: list[str], changes: dict[str, str], says: str) -> None:
    if cluster[0].startswith("etcd"):
        secret(tmp_path)  # then it is not named
    with pytest.raises(ConfigError) as raised:
        of_peers(tmp_path, cluster, changes)
    assert says in "\n".join(raised.value.lines)


def test_a_secret_is_needed(tmp_path: Path) -> None:
    secret(tmp_path)
    with pytest.raises(ConfigError, match=r"cluster\.secret_file: needed"):
        of_peers(tmp_path, ["peers://a:1"])


@pytest.mark.parametrize(
    ("size", "mode", "says"),
    [
        (0, 0o600, "16 to 4096 bytes are needed"),
        (15, 0o600, "16 to 4096 bytes are needed"),
        (16, 0o600, ""),
        (4096, 0o640, ""),
        (4097, 0o600, "16 to 4096 bytes are needed"),
        (16, 0o604, "others on this machine may read or write it"),
        (16, 0o602, "others on this machine may read or write it"),
    ],
)
@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_the_secret(tmp_path: Path, size: int, mode: int, says: str, end: bytes) -> None:
    """It is not the end of its line."""
    file = secret(tmp_path, b"x" * size + end, mode)
    if says:
        with pytest.raises(ValueError, match=says):
            read_secret(file)
    else:
        assert read_secret(file) == b"x" * size
