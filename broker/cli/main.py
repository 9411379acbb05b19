"""The command `mqttd`: reads the settings, opens the sockets, prints the start banner, supervises.

Exit statuses: 0 stopped as asked; 1 a worker cannot start, or too many died; 2 wrong usage or settings; 3 an address
cannot be listened on (in use, no permission, not of this machine); 4 the data directory cannot be used (another mqttd
has it, or its stores cannot be read for another number of workers). Each comes with one line on standard error that
begins with `mqttd: `.

Standard output carries one line, when every worker serves: `mqttd ready HOST:PORT workers=N`. Everything else goes to
standard error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import broker
from broker.cli import passwd
from broker.config.addresses import split_address
from broker.config.loading import ENVIRONMENT_CONFIG, load
from broker.config.settings import WORKERS_MAX, ConfigError, Settings, restart_needed
from broker.logs import Log
from leveldb_store.format.schema import VERSION
from shards import listening
from shards.clock import HostClock
from shards.console import BrokerFile, Console
from shards.cores import usable_cores
from shards.data_dir import DataDir, DataDirError
from shards.death_report import DeathReport
from shards.descriptors import left_for_connections, raise_descriptor_limit
from shards.listening import CannotListen, ListenOn
from shards.policy import Policy
from shards.runtime_dir import RuntimeDir, RuntimeDirError
from shards.supervisor import (
    ControlChannel,
    Reloaded,
    ReloadRefused,
    Supervisor,
    WorkerChannel,
)

_CANNOT_START = 1
_BAD_SETTINGS = 2
_CANNOT_LISTEN = 3
_CANNOT_USE_DATA = 4

_EPILOG = """\
mqttd status               show the state of a running broker (mqttd status --help)
mqttd check-config FILE    report every error in a configuration file and exit (status 2 if there is one)
mqttd sessions list        list the sessions of a running broker; also show, delete (mqttd sessions --help)
mqttd events               print recorded events of connections, sessions, drops (mqttd events --help)
mqttd drain                send the clients and sessions of a host to the others of its cluster (mqttd drain --help)
mqttd snapshot             copy the stores of a broker that may be running, or of its cluster (mqttd snapshot --help)
mqttd restore              make a data directory from a snapshot (mqttd restore --help)
mqttd store stats|verify   inspect the stores of a broker, or of a snapshot (mqttd store --help)
mqttd passwd FILE USER     set the password of a user in a password file; --help says more
mqttd try-cluster          run several hosts as one broker on this machine (mqttd try-cluster --help)

Settings come from defaults, then the file, then the environment (MQTTD_PORT, MQTTD_LIMITS__PACKET_BYTES_MAX, ...),
then flags.
Signals: SIGTERM, SIGINT and SIGQUIT stop the broker, SIGHUP re-reads the configuration; others are ignored.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `mqttd` with these arguments (default: the process's own). The exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["check-config"]:
            return _check_config(arguments[1:])
        if arguments[:1] == ["passwd"]:
            return passwd.main(arguments[1:])
        if arguments[:1] == ["status"]:
            status: int = importlib.import_module("broker.cli.status").main(arguments[1:])
            return status
        if arguments[:1] == ["sessions"]:
            asked: int = importlib.import_module("broker.cli.sessions_command").main(arguments[1:])
            return asked
        if arguments[:1] == ["drain"]:
            drained: int = importlib.import_module("broker.cli.drain_command").main(arguments[1:])
            return drained
        if arguments[:1] == ["events"]:
            printed: int = importlib.import_module("broker.cli.events_command").main(arguments[1:])
            return printed
        if arguments[:1] == ["store"]:
            inspected: int = importlib.import_module("broker.cli.store_command").main(arguments[1:])
            return inspected
        if arguments[:1] == ["snapshot"]:
            taken: int = importlib.import_module("broker.cli.snapshots").snapshot_main(arguments[1:])
            return taken
        if arguments[:1] == ["restore"]:
            restored: int = importlib.import_module("broker.cli.snapshots").restore_main(arguments[1:])
            return restored
        if arguments[:1] == ["try-cluster"]:
            tried: int = importlib.import_module("broker.cli.try_cluster").main(arguments[1:])
            return tried
        flags = vars(_parser().parse_args(arguments))
        file = flags.pop("config", None) or os.environ.get(ENVIRONMENT_CONFIG) or None
        return _serve(file, flags)
    except _CannotStart as error:
        for line in error.lines:
            print(f"mqttd: {line}", file=sys.stderr)
        return error.status
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _CannotStart(Exception):
    def __init__(self, status: int, *lines: str) -> None:
        super().__init__(*lines)
        self.status = status
        self.lines = lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mqttd",
        description="An MQTT 3.1, 3.1.1 and 5.0 broker of N shared-nothing workers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,  # flags that are not given must not override the environment
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--workers",
        type=int,
        metavar="N",
        help=f"worker processes (default: usable cores), at most {WORKERS_MAX}: a set of workers is a word of 64 bits",
    )
    add("--host", action="append", help="address to listen on, IPv4 or IPv6; may be repeated (default: loopback)")
    add("--port", type=int, help="TCP port, 0 picks a free one (default: 1883)")
    add("--config", metavar="FILE", help="configuration file (TOML); also MQTTD_CONFIG")
    add("--admin", metavar="HOST:PORT", help="admin interface over HTTP, or none (default: 127.0.0.1:8083)")
    add(
        "--admin-allow-anonymous",
        action=argparse.BooleanOptionalAction,
        help="let the admin interface, which asks for no credentials, listen on addresses beyond loopback",
    )
    add("--store", choices=["memory", "leveldb"], help="store of sessions and messages (default: leveldb)")
    add("--data-dir", metavar="DIR", help="directory of the stores, for leveldb (default: ./mqttd-data)")
    add(
        "--strict-store",
        action=argparse.BooleanOptionalAction,
        help="do not start when something in a store cannot be read (default: set it aside, the rest serves)",
    )
    add("--runtime-dir", metavar="DIR", help="directory for unix sockets (default: a private temporary one)")
    add("--log-level", choices=["debug", "info", "warning", "error"], help="default: info")
    add("--log-format", choices=["text", "json"], help="default: text")
    add(
        "--allow-anonymous",
        action=argparse.BooleanOptionalAction,
        help="let clients without credentials connect (default: on loopback addresses only, without a password file)",
    )
    add("--password-file", metavar="FILE", help="users and hashed passwords, as `mqttd passwd` writes them")
    add(
        "--cluster",
        type=lambda text: text.split(","),
        metavar="etcd://HOST:PORT[,...]",
        help="join the cluster that this etcd knows; needs --node-id and --mesh-listen. Without etcd: all hosts as "
        "peers://HOST:PORT,..., or a name with all addresses as dns://NAME:PORT (docs/cluster.md)",
    )
    add("--node-id", metavar="NAME", help="name of this host in the cluster")
    add(
        "--mesh-listen",
        metavar="tcp://HOST:PORT",
        help="where other hosts reach the first worker; each further worker has the next port",
    )
    add("--version", action="version", version=f"mqttd {broker.__version__}")
    return parser


def _check_config(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="mqttd check-config", description="Report errors in a configuration file.")
    parser.add_argument("file", metavar="FILE")
    file = parser.parse_args(arguments).file
    try:
        settings = load(file)
    except ConfigError as error:
        for line in error.lines:
            print(line, file=sys.stderr)
        return _BAD_SETTINGS
    if _exposed(settings):
        print(f"password_file: {settings.password_file}: others on this machine may read it", file=sys.stderr)
    print(f"{file}: no errors")
    return 0


def _exposed(settings: Settings) -> bool:
    return settings.credentials is not None and settings.credentials.world_readable


def _warn_if_exposed(settings: Settings, log: Log) -> None:
    if _exposed(settings):
        log.warning("password_file_world_readable", file=settings.password_file)


def _serve(file: str | None, flags: Mapping[str, Any]) -> int:
    asked = _load(file, flags)
    settings = _resolved(asked)
    run, row_bytes, heartbeat, settle_row = _worker()
    log = Log.of(settings)
    if not asked.workers and (cores := usable_cores()) > WORKERS_MAX:
        why = f"there can be {WORKERS_MAX}: a set of workers is a word of 64 bits"
        log.warning("workers_capped", cores=cores, workers=settings.workers, reason=why)
    descriptors = raise_descriptor_limit()
    try:
        # before the data directory is locked: a second broker with the same settings should report its port
        listening.probe_all(_listen_on(settings))
    except CannotListen as error:
        raise _CannotStart(_CANNOT_LISTEN, str(error)) from None
    data_dir = _data_dir(settings, log)
    try:
        runtime_dir = RuntimeDir(settings.runtime_dir)
    except RuntimeDirError as error:
        raise _CannotStart(_CANNOT_START, str(error)) from None
    admin: list[socket.socket] = []
    console = Console(runtime_dir.path)
    try:
        admin = _listen_admin(settings, log)
        supervisor = Supervisor(
            run,
            workers=settings.workers,
            listeners=_listen_on(settings),
            settings=settings,
            policy=_policy(settings),
            log=log.emit,
            runtime_dir=runtime_dir,
            on_ready=lambda: _say_ready(supervisor, settings),
            reload=_Reload(file, flags, settings, log),
            pin_cpus=settings.pin_cpus,
            row_bytes=row_bytes,
            heartbeat=heartbeat,
            settle_row=settle_row,
            control=_control() if admin or settings.cluster.is_on else None,
            admin=admin,
            console=console,
            clock=HostClock(None if data_dir is None else data_dir.path, log.emit),
            identity=_identity(settings),
        )
    except CannotListen as error:
        listening.close([admin])
        runtime_dir.close()
        raise _CannotStart(_CANNOT_LISTEN, str(error)) from None
    _say_start(supervisor, settings, log, descriptors, [_text(each) for each in admin])
    _warn_if_exposed(settings, log)
    if threading.active_count() != 1:
        raise AssertionError("a thread was started before the fork")
    directories = [runtime_dir.path] + ([] if data_dir is None else [data_dir.path])
    written = [_broker_file(directory, settings, console, log) for directory in directories]
    status = supervisor.serve()
    for each in written:
        if each is not None:
            each.remove()
    if data_dir is not None:
        data_dir.close()
    if supervisor.failure:
        raise _CannotStart(status, supervisor.failure)
    log.info("stopped")
    return status


def _data_dir(settings: Settings, log: Log) -> DataDir | None:
    """The data directory, locked, of this release and for this number of workers; None with a store in memory."""
    if settings.store == "memory":
        return None
    repartitioning = importlib.import_module("broker.repartition.supervision")  # fails where there is no LevelDB
    upgrading = importlib.import_module("broker.repartition.upgrading")
    try:
        work = repartitioning.Repartitioning(log, settings.leveldb, settings.strict_store)
        upgrade = upgrading.Upgrading(log, settings.strict_store)
        return DataDir(settings.data_dir, settings.workers, work, upgrade, VERSION)
    except (DataDirError, repartitioning.Refused, upgrading.UpgradeRefused) as error:
        raise _CannotStart(_CANNOT_USE_DATA, str(error)) from None


def _load(file: str | None, flags: Mapping[str, Any]) -> Settings:
    try:
        return load(file, os.environ, flags)
    except ConfigError as error:
        raise _CannotStart(_BAD_SETTINGS, *error.lines) from None


def _resolved(settings: Settings) -> Settings:
    """Resolve "as many as there are cores" and "where the host has one" on this machine."""
    updates: dict[str, Any] = {"workers": settings.workers or min(usable_cores(), WORKERS_MAX)}
    updates["data_dir"] = os.path.abspath(settings.data_dir)
    if "host" not in settings.model_fields_set:
        updates["host"] = _available(settings.host)
    updates["listener"] = [
        each if "host" in each.model_fields_set else each.model_copy(update={"host": _available(each.host)})
        for each in settings.listener
    ]
    return settings.model_copy(update=updates)


def _available(hosts: list[str]) -> list[str]:
    """Return the addresses that this machine has; all, if it has none of them."""
    return [host for host in hosts if listening.available(host)] or hosts


def _listen_on(settings: Settings) -> list[ListenOn]:
    return [ListenOn(each.name, each.kind, tuple(each.host), each.port) for each in settings.listeners]


def _listen_admin(settings: Settings, log: Log) -> list[socket.socket]:
    """Return the listening sockets of the admin interface; none if it is off, or its default address is in use."""
    address = settings.admin_address
    if address is None:
        return []
    host, port = address
    try:
        return listening.listen(listening.resolve([host]), port, 1)[1][0]
    except CannotListen as error:
        if "admin" in settings.model_fields_set:
            raise CannotListen(f"admin: {error}") from None
        log.warning("admin_unavailable", address=settings.admin, reason=str(error))
        return []


def _identity(settings: Settings) -> Any:
    """Return who this host is in its cluster; None: it is alone."""
    if not settings.cluster.is_on:
        return None
    try:
        hosts = importlib.import_module("broker.cluster.host")
        return hosts.identity_of(None if settings.store == "memory" else settings.data_dir)
    except ImportError as error:
        reason = f"{error}: the packages of the extra cluster are missing (pip install '.[cluster]')"
        raise _CannotStart(_CANNOT_START, f"cannot start: {reason}") from None
    except (OSError, ValueError) as error:
        raise _CannotStart(_CANNOT_USE_DATA, str(error)) from None


def _text(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{host}:{port}"


def _control() -> Callable[[ControlChannel], int]:
    """Return `run` of the control process. Imported before the fork: so its HTTP server is in memory once, shared by
    all processes, and is not loaded while the first clients connect.
    """
    run: Callable[[ControlChannel], int] = importlib.import_module("broker.admin.control").run
    return run


def _worker() -> tuple[Callable[[WorkerChannel], int], int, int, DeathReport]:
    """Return (a worker's `run`, the size of its counter row, the index of its heartbeat in it, a DeathReport).

    Imported before the fork, so that the workers share the memory of the code.
    """
    try:
        run = importlib.import_module("broker.worker.process").run
        counters = importlib.import_module("pyx.core.counters")
    except ImportError as error:
        name = error.name or ""
        if name.partition(".")[0] == "pyx":
            reason = f"the compiled module {name} is missing (needs a C compiler at installation: pip install .)"
        else:
            reason = f"{error}"
        raise _CannotStart(_CANNOT_START, f"cannot start: {reason}") from None
    death_report = DeathReport(counters.in_hand, counters.settle_row)
    return run, counters.ROW_BYTES, counters.NAMES.index("heartbeat"), death_report


def _broker_file(directory: str, settings: Settings, console: Console, log: Log) -> BrokerFile | None:
    """Write broker.json. Return None if the disk has no room for it: the broker serves all the same, because reading
    the stored messages makes room.
    """
    cluster = settings.cluster
    said = {"name": cluster.name, "node": cluster.node_id} if cluster.is_on else None
    try:
        return BrokerFile(directory, console.path, settings.workers, said)
    except OSError as error:
        log.warning("broker_json_failed", directory=directory, reason=error.strerror or str(error))
        return None


def _policy(settings: Settings) -> Policy:
    limits = settings.limits
    return Policy(worker_hang_seconds_max=limits.worker_hang_seconds_max, stop_seconds_max=limits.stop_seconds_max)


class _Reload:
    """Re-reads file and environment on SIGHUP; flags stay as they are."""

    def __init__(self, file: str | None, flags: Mapping[str, Any], settings: Settings, log: Log) -> None:
        self._file = file
        self._flags = flags
        self._settings = settings
        self._log = log

    def __call__(self) -> Reloaded:
        try:
            new = _resolved(load(self._file, os.environ, self._flags))
            kept = restart_needed(self._settings, new)
            settings = self._settings.reloaded(new.reloadable())
        except ConfigError as error:
            raise ReloadRefused("; ".join(error.lines)) from None
        if kept:
            self._log.warning("reload_needs_restart", keys=kept)
        self._settings = settings
        _warn_if_exposed(settings, self._log)
        self._log.configure(settings.log_level, settings.limits.log_lines_per_second_max)
        return Reloaded(settings, settings.reloadable(), _policy(settings))


def _say_ready(supervisor: Supervisor, settings: Settings) -> None:
    print(f"mqttd ready {supervisor.listening_on()[0]} workers={settings.workers}", flush=True)


def _say_start(supervisor: Supervisor, settings: Settings, log: Log, descriptors: int, admin: list[str]) -> None:
    """Print the start banner: text for people, or one event for machines."""
    limits = settings.limits
    connections = settings.workers * left_for_connections(
        settings.workers, supervisor.listeners.sockets(), settings.tables_open_max
    )
    if limits.connections_max:
        connections = min(connections, limits.connections_max)
    if settings.log_format == "json":
        log.info(
            "start",
            version=broker.__version__,
            listeners=supervisor.listening_on(),
            admin=admin,
            workers=settings.workers,
            store=settings.store,
            data_dir=None if settings.store == "memory" else settings.data_dir,
            durability=None if settings.store == "memory" else settings.durability,
            runtime_dir=supervisor.runtime_dir.path,
            connections_max=connections,
            descriptors=descriptors,
            anonymous=settings.anonymous_allowed,
            password_file=settings.password_file,
            users=None if settings.credentials is None else len(settings.credentials),
            limits=limits.model_dump(),
        )
        return
    host, port = split_address(supervisor.listening_on()[0])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    target = f"-h {host} -p {port}"
    if not settings.anonymous_allowed:
        target += " -u USER -P PASSWORD"
    print(
        f"mqttd {broker.__version__}\n"
        f"  listening on  {', '.join(supervisor.listening_on())}\n"
        f"  admin         {', '.join(f'http://{each}' for each in admin) or 'none'}\n"
        f"  workers       {settings.workers}\n"
        f"  store         {_store(settings)}\n"
        f"  runtime dir   {supervisor.runtime_dir.path}\n"
        f"  connections   {connections} at most ({descriptors} file descriptors per worker)\n"
        f"  limits        packet {limits.packet_bytes_max} bytes; per session {limits.queue_messages_max} messages "
        f"or {limits.queue_bytes_max} bytes queued, {limits.inflight_max} in flight\n"
        f"  access        {_access(settings)}\n"
        "try\n"
        f"  mosquitto_sub {target} -t 'hello/#' -v\n"
        f"  mosquitto_pub {target} -t hello/world -m 'hi' -q 1\n"
        f"  mosquitto_pub {target} -t hello/last -m 'kept' -r",
        file=sys.stderr,
        flush=True,
    )


def _store(settings: Settings) -> str:
    """Describe where messages are kept."""
    if settings.store == "memory":
        return "memory (lost with its worker)"
    return f"{settings.store} in {settings.data_dir} ({settings.durability})"


def _access(settings: Settings) -> str:
    """Describe who may connect."""
    anonymous = "anonymous clients are " + ("allowed" if settings.anonymous_allowed else "refused")
    if settings.credentials is not None:
        return f"{len(settings.credentials)} users of {settings.password_file}; {anonymous}"
    if not settings.anonymous_allowed:
        return f"{anonymous}, and no credentials are configured: nobody can connect"
    return anonymous


if __name__ == "__main__":
    raise SystemExit(main())
