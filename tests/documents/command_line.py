"""The command `mqttd`: its flags, exit statuses and one-line errors, written as docs/reference/command-line.md.

    python -m tests.documents.command_line --write docs/reference/command-line.md

Flags are those of ``--help``, error texts are read from the ``raise`` statements. The meanings of statuses are defined
here, and `statuses` finds those that the code of a command uses.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from broker.cli.cluster_client import SOME_MISSING
from broker.cli.main import main as mqttd

ROOT = Path(__file__).resolve().parents[2]
PAGE = "docs/reference/command-line.md"
COLUMNS = 110

BEGIN = f"<!-- generated: python -m tests.documents.command_line --write {PAGE} -->"
END = "<!-- end of what is generated -->"

_USAGE = "wrong usage, or wrong settings"
_MISSING = "done, but some hosts of the cluster have not answered: a line for each"
_DATA = "the data directory, the snapshot or the disk cannot be used"

#: Command -> its files, and the meanings of its statuses; 0: done, unless given.
STATUSES: dict[str, tuple[str, dict[int, str]]] = {
    "": (
        "main",
        {
            0: "stopped as requested",
            1: "a worker cannot start, or ten died within a minute; no runtime directory; not compiled",
            2: _USAGE,
            3: "an address cannot be listened on: in use, no permission, not of this machine",
            4: "the data directory cannot be used: another mqttd uses it, a newer one has written it, or its stores "
            "cannot be converted for this release or number of workers",
        },
    ),
    "check-config": ("main", {0: "no errors", 2: "the file has errors: a line for each"}),
    "status": ("status", {0: "ready", 1: "not ready, or no answer", 2: _USAGE}),
    "sessions": (
        "sessions_command",
        {0: "done", 1: "no such session, or no answering broker", 2: _USAGE, 3: _MISSING},
    ),
    "drain": (
        "drain_command",
        {0: "drained, or ended", 1: "refused, not done in time, interrupted, or no answering broker", 2: _USAGE},
    ),
    "events": (
        "events_command",
        {
            0: "done",
            1: "no answer, or unreadable records",
            2: _USAGE,
            3: _MISSING,
            4: "the directory cannot be used",
        },
    ),
    "snapshot": (
        "snapshots cluster_snapshot",
        {
            0: "done",
            1: "of a cluster: no host has taken one, or no answering broker",
            2: f"{_USAGE}; OUT is not empty",
            3: _MISSING,
            4: _DATA,
            130: "interrupted: no files are left behind",
        },
    ),
    "restore": (
        "snapshots",
        {0: "done", 2: f"{_USAGE}; the directory is not empty", 4: _DATA, 130: "interrupted: no files are left behind"},
    ),
    "store": (
        "store_command",
        {
            0: "no problem",
            1: "problems: a line for each; the broker does not answer",
            2: _USAGE,
            4: "in use, or no data directory",
        },
    ),
    "passwd": (
        "passwd",
        {0: "done", 1: "the file cannot be read or written, or has no such user", 2: "wrong usage, name or password"},
    ),
    "try-cluster": (
        "try_cluster",
        {
            0: "stopped as requested",
            1: "no etcd; a host cannot start; one did not stop and was killed",
            2: "wrong usage; the directory is in use, or cannot be made",
        },
    ),
}

#: Class of an error -> command and status of its lines, and the action.
ERRORS: dict[str, tuple[str, str]] = {
    "broker.config.loading.ConfigError": (
        "every command that reads settings, 2",
        "Correct the file, the variable or the flag: the line names its place, for example `limits.inflight_max: ...`.",
    ),
    "broker.cli.main._CannotStart": ("`mqttd`, 1", "Install mqttd on a machine with a C compiler."),
    "shards.supervisor._fail": ("`mqttd`, 1", "The log has the details: `worker_failed`, `worker_died`."),
    "shards.runtime_dir.RuntimeDirError": ("`mqttd`, 1", "Configure another `runtime_dir`, or none."),
    "shards.listening.CannotListen": ("`mqttd`, 3", "Free the address or port, or configure another."),
    "broker.cli.main.CannotListen": ("`mqttd`, 3", "Configure another `admin`, or `none`."),
    "shards.data_dir.DataDirError": (
        "`mqttd`, `events`, `snapshot`, `restore`, `store`, 4",
        "Check whether another mqttd runs, and who owns the directory; damage needs a [backup](../how-to/back-up.md).",
    ),
    "broker.repartition.supervision.Refused": (
        "`mqttd`, 4",
        "Free disk space, or start with the old number: [another number of workers](../how-to/resize.md).",
    ),
    "broker.repartition.upgrading.UpgradeRefused": (
        "`mqttd`, 4",
        "Free disk space, or start the previous release: [upgrading](../how-to/upgrade.md).",
    ),
    "leveldb_store.snapshots.snapshot.SnapshotError": (
        "`snapshot`, `restore`, `store`, `events`, 4",
        "Take another snapshot; a newer format needs the mqttd that wrote it.",
    ),
    "leveldb_store.snapshots.restoring.SnapshotError": ("`restore`, 4", "Take another snapshot."),
    "leveldb_store.snapshots.clone.CloneError": (
        "`snapshot`, 4; `store`, `events`, 1",
        "`mqttd store verify` reports the damage; a start of the broker repairs it.",
    ),
    "broker.cli.snapshots._Refused": ("`snapshot`, `restore`, 2 or 4", "Use another directory, or free disk space."),
    "broker.cli.store_command.Unusable": ("`store`, `events`, 4", "Name the data directory, or a snapshot."),
    "broker.cli.console_client.NoBroker": (
        "`sessions`, `drain`, 1",
        "Start the broker, or name its `--data-dir` or `--runtime-dir`.",
    ),
    "broker.cli.console_client.NoAnswer": (
        "`sessions`, `drain`, `events`, `store`, 1",
        "Name the directory, or try again; look at the log of the broker.",
    ),
    "broker.admin.requests.NoAnswer": (
        "`sessions`, `events`, `store`, 1; `GET /api/v1/stores`, 503",
        "Look at the log of the broker; a command and its broker must be of the same release.",
    ),
    "broker.admin.workers.NoAnswer": (
        "`GET /api/v1/stores`, 503",
        "Try again; look at the log of the broker.",
    ),
    "leveldb_store.snapshots.cluster_manifest.SnapshotError": (
        "`events`, 4",
        "Copy the missing part beside the others, or take another snapshot.",
    ),
    "broker.cli.events_command.SnapshotError": ("`events`, 4", "Name one of the hosts in the snapshot's manifest."),
    "broker.cli.cluster_client.NoAnswer": (
        "`sessions`, `events`, `snapshot`, 1",
        "Wait until the host has joined; look at its log; `mqttd status` lists the hosts.",
    ),
    "broker.cli.cluster_client.HostMissing": (
        "`sessions`, `events`, `snapshot`, 3",
        "Look at the log of that host; upgrade it if it is of an earlier release.",
    ),
    "broker.cluster.host_channel.HostSilent": (
        "`sessions`, `events`, `snapshot`, 3; `status`; `GET /api/v1/hosts`, 503",
        "Look at that host, and at the network between the two.",
    ),
    "broker.cli.sessions_command.NoAnswer": ("`sessions`, 1", "Leave `--node` out."),
    "broker.cli.events_command.NoAnswer": ("`events`, 1", "Leave `--node` out."),
    "broker.cli.cluster_snapshot.print": (
        "`snapshot`, 1, 2, interrupted: 130",
        "Start the broker, or name `--out`; the lines before say why each host has taken none.",
    ),
    "broker.cli.sessions_command.print": ("`sessions`, 1", "`mqttd sessions list` lists all sessions."),
    "broker.cli.drain_command._NotDone": (
        "`drain`, 1",
        "Follow the message: look at the other hosts (`mqttd status`), or let the host go on.",
    ),
    "broker.cli.drain_command.NoAnswer": ("`drain`, 1", "Try again; look at the log of the broker."),
    "broker.cli.drain_command.print": ("`drain`, 1, interrupted", "`mqttd drain --end` makes the host take clients."),
    "broker.cli.status.print": ("`status`, 1", "Start the broker, or name its `--admin`."),
    "broker.cli.events_command.print": ("`events`, 1", "`mqttd store verify` reports the damage."),
    "broker.cli.store_command.print": ("`store`, 1", "`mqttd store verify` reports the damage."),
    "broker.cli.snapshots.print": ("`snapshot`, `restore`, 4, interrupted: 130", "Check the disk."),
    "broker.cli.passwd._Refused": ("`passwd`, 1 or 2", "Follow the message."),
    "broker.cli.passwd.print": ("`passwd`, 1", "Check the file."),
    "broker.cli.try_cluster._Refused": (
        "`try-cluster`, 1 or 2",
        "Follow the message; a line of the log has its own row here.",
    ),
    "broker.cli.try_cluster.print": ("`try-cluster`, 1", "Check the disk."),
}


#: Placeholders with a name other than the last one in their expression
_NAMED = {
    "address[0]": "HOST",
    "address[1]": "PORT",
    "error.filename": "FILE",
    "error.filename or given.file": "FILE",
    "self.path": "DIR",
    "self._schema": "VERSION",
    "now.schema": "VERSION",
    "self._sources[worker]": "STORE",
}


def statuses(command: str) -> set[int]:
    """Return the exit statuses in the code of a command: its constants, and the numbers that it returns."""
    files = [ROOT / "broker" / "cli" / f"{name}.py" for name in STATUSES[command][0].split()]
    tree = ast.Module([each for file in files for each in ast.parse(file.read_text()).body], [])
    if command == "check-config":
        tree.body[:] = [
            each
            for each in tree.body
            if isinstance(each, ast.Assign) or (isinstance(each, ast.FunctionDef) and each.name == "_check_config")
        ]
    given = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    found = {0, SOME_MISSING} if "SOME_MISSING" in given else {0}
    for line in tree.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(status))):
                if name in given and re.match(r"_(CANNOT|BAD|NO_|NONE|PROBLEMS|INTERRUPTED)", name):
                    found.add(status)
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            branches = [node.value.body, node.value.orelse] if isinstance(node.value, ast.IfExp) else [node.value]
            found |= {each.value for each in branches if isinstance(each, ast.Constant) and type(each.value) is int}
    return found


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def texts(error: str) -> list[str]:
    """Return the lines raised as this error in this module (`print`: printed before exit), placeholders in capitals."""
    module, _, name = error.rpartition(".")
    tree = _parsed((ROOT / module.replace(".", "/")).with_suffix(".py"))
    known = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    found = set()
    for node in _last_words(tree) if name == "print" else ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == name:
            said = {_text(each, known) for each in node.args if not isinstance(each, ast.Name)}
            if name == "print":
                said = {each.removeprefix("mqttd: ") for each in said if each.startswith("mqttd: ")}
            found |= said - {"", "REASON", "LINE", "REFUSED"}
    return sorted(found)


def _last_words(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the calls in the same block as the statement that sets the exit status."""
    for node in ast.walk(tree):
        for block in (getattr(node, "body", []), getattr(node, "orelse", [])):
            if not isinstance(block, list) or not isinstance(node, ast.If | ast.ExceptHandler):
                continue
            if any(isinstance(each, ast.Return) or "status[0] =" in ast.unparse(each) for each in block):
                yield from (each.value for each in block if isinstance(each, ast.Expr))


def _text(node: ast.AST, known: dict[str, ast.expr]) -> str:
    match node:
        case ast.Constant(value=str() | int() as text):
            return str(text)
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, known) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name)) if name in known and (said := _text(known[name], {})):
            return said
        case ast.IfExp(body=ast.JoinedStr() as body):
            return _text(body, known)
        case ast.FormattedValue(value=value):
            return _filled_in(value)
        case ast.List(elts=[one]):
            return _text(one, known)
    return ""


def _filled_in(value: ast.expr) -> str:
    text = ast.unparse(value)
    if text in _NAMED:
        return _NAMED[text]
    if "error" in text or text.endswith("reason"):
        return "REASON"
    names: list[str] = re.findall(r"[A-Za-z_]+", text.partition(" or ")[0].partition(".decode")[0])
    return names[-1].strip("_").upper()


def raised() -> set[str]:
    """Return the places where one of these errors is raised with its own text, named as in ERRORS."""
    names = {error.rpartition(".")[2] for error in ERRORS} - {"_fail", "print"}
    found = set()
    for folder in ("broker", "shards", "leveldb_store"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(_parsed(path)):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    name = ast.unparse(node.exc.func)
                    if name in names and texts(f"{module}.{name}"):
                        found.add(f"{module}.{name}")
    for path in sorted((ROOT / "broker" / "cli").glob("*.py")):
        if texts(f"broker.cli.{path.stem}.print"):
            found.add(f"broker.cli.{path.stem}.print")
    return found


def usage(command: str) -> str:
    """Return the output of ``mqttd COMMAND --help``."""
    with (
        mock.patch.dict(os.environ, {"COLUMNS": str(COLUMNS)}),
        contextlib.redirect_stdout(io.StringIO()) as said,
        contextlib.suppress(SystemExit),
    ):
        mqttd([*command.split(), "--help"])
    return said.getvalue().rstrip()


def page() -> Iterator[str]:
    """Yield the lines of the generated part."""
    yield from ("## Exit statuses", "", "| command | status | meaning |", "|---|---|---|")
    for command, (_, meanings) in STATUSES.items():
        for status, meaning in meanings.items():
            yield f"| `{f'mqttd {command}'.strip()}` | {status} | {meaning} |"
    yield from ("", "## Errors", "")
    yield "Placeholders are in capitals. Each line begins with `mqttd: `, except those of `check-config`."
    yield from ("", "| line | command, status | action |", "|---|---|---|")
    for error, (of, meaning) in ERRORS.items():
        yield f"| {'<br>'.join(f'`{text}`' for text in texts(error))} | {of} | {meaning} |"
    yield from ("", "## Commands")
    for command in STATUSES:
        yield from ("", f"### {f'mqttd {command}'.strip()}", "")
        yield from (f"    {line}".rstrip() for line in usage(command).splitlines())


def with_tables(document: str) -> str:
    """Return a document with its generated part replaced. Raise ValueError if it has no place for it."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document has no lines {BEGIN!r} and {END!r}")
    lines = "\n".join(page())
    return f"{before}{begin}\n\n{lines}\n\n{end}{after}"


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit status."""
    match arguments:
        case ["--write", file]:
            path = Path(file)
            path.write_text(with_tables(path.read_text()))
            return 0
    print(f"usage: python -m tests.documents.command_line --write {PAGE}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
