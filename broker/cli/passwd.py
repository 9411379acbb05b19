"""`mqttd passwd`: sets and deletes passwords in a password file.

All other lines stay as they are, byte for byte, comments and mistakes included. The file is replaced as a whole
(written beside it, synced, renamed), so readers see either the old one or the new one. Two runs at once wait for each
other.

Exit statuses: 0 done; 1 the file cannot be read or written, or there is no such user to delete; 2 wrong usage, name or
password. Each but 0 comes with a line on standard error that begins with `mqttd: `.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import getpass
import io
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from broker.auth import hashes, scram
from broker.auth.password_file import name_error
from broker.auth.saslprep import saslprep

__all__ = ["main"]

_CANNOT = 1
_BAD_USAGE = 2
_PASSWORD_BYTES_MAX = 65_535  # the longest Password of CONNECT (MQTT 5, 1.5.6)

_EPILOG = """\
The password is asked for twice; without a terminal it is the first line of standard input. The file is made with mode
0600 if there is none. A running broker reads it again on SIGHUP.

A stolen file is as strong as its weaker half, the SCRAM verifier: --scram-iterations 0 leaves it out where no client
uses SCRAM-SHA-256, and a smaller number spares small devices.
"""


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def main(arguments: Sequence[str]) -> int:
    """Run `mqttd passwd` with these arguments. The exit status."""
    given = _parser().parse_args(arguments)
    try:
        if error := name_error(given.user):
            raise _Refused(_BAD_USAGE, error)
        if given.delete:
            _change(given.file, given.user, None)
        else:
            _change(given.file, given.user, _line(given.user, _password(given.password_stdin), given.scram_iterations))
    except _Refused as refused:
        print(f"mqttd: {refused}", file=sys.stderr)
        return refused.status
    except OSError as error:
        print(f"mqttd: {error.filename or given.file}: {error.strerror}", file=sys.stderr)
        return _CANNOT
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mqttd passwd",
        description="Set the password of a user in a password file, or delete the user.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-D", "--delete", action="store_true", help="delete the user")
    add("--password-stdin", action="store_true", help="read the password from standard input, its first line")
    add(
        "--scram-iterations",
        type=_iterations,
        default=scram.ITERATIONS,
        metavar="N",
        help=f"PBKDF2 rounds of the SCRAM-SHA-256 verifier, {scram.ITERATIONS_MIN} to {scram.ITERATIONS_MAX}; 0: no "
        f"verifier (default: {scram.ITERATIONS})",
    )
    add("file", metavar="FILE")
    add("user", metavar="USER")
    return parser


def _iterations(text: str) -> int:
    number = int(text)
    if number and not scram.ITERATIONS_MIN <= number <= scram.ITERATIONS_MAX:
        raise argparse.ArgumentTypeError(f"0, or {scram.ITERATIONS_MIN} to {scram.ITERATIONS_MAX}")
    return number


def _password(from_stdin: bool) -> str:
    if from_stdin or not sys.stdin.isatty():
        line = sys.stdin.buffer.readline(_PASSWORD_BYTES_MAX + 3)
        try:
            password = line.removesuffix(b"\n").removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise _Refused(_BAD_USAGE, "the password is not UTF-8") from None
    else:
        try:
            password = getpass.getpass("Password: ")
            if getpass.getpass("Again: ") != password:
                raise _Refused(_BAD_USAGE, "the passwords differ")
        except (EOFError, KeyboardInterrupt):
            raise _Refused(_BAD_USAGE, "no password") from None
    if not password:
        raise _Refused(_BAD_USAGE, "an empty password")
    if len(password.encode(errors="surrogatepass")) > _PASSWORD_BYTES_MAX:
        raise _Refused(_BAD_USAGE, f"a password of more than {_PASSWORD_BYTES_MAX} bytes")
    return password


def _line(user: str, password: str, iterations: int) -> bytes:
    try:
        fields = [user, hashes.make(password.encode()).text]
    except UnicodeEncodeError:
        raise _Refused(_BAD_USAGE, "the password is not UTF-8") from None
    if iterations:
        try:
            if saslprep(user) != user:
                raise ValueError("the user name has characters that SASLprep changes")
            fields.append(scram.text_of(scram.make(password, iterations)))
        except ValueError as error:
            raise _Refused(
                _BAD_USAGE, f"SCRAM-SHA-256 does not allow it: {error}; --scram-iterations 0 leaves it out"
            ) from None
    return ":".join(fields).encode() + b"\n"


def _change(file: str, user: str, line: bytes | None) -> None:
    """Replace the user's line by `line`, or append it; None: remove it."""
    path = Path(os.path.realpath(file))  # the target of a link is replaced, not the link
    with _alone(path.parent):
        try:
            data = path.read_bytes()
            status = path.stat()
        except FileNotFoundError:
            if line is None:
                raise
            data, status = b"", None
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise _Refused(_CANNOT, f"{file}: not a regular file")
        prefix = user.encode() + b":"
        kept: list[bytes] = []
        found = False
        for each in io.BytesIO(data).readlines():  # bytes.splitlines would also split at a lone CR
            if not each.startswith(prefix):
                kept.append(each)
            elif not found:
                found = True
                kept.append(line or b"")
        if not found:
            if line is None:
                raise _Refused(_CANNOT, f"{file}: no user {user}")
            if kept and not kept[-1].endswith(b"\n"):
                kept.append(b"\n")
            kept.append(line)
        _replace(path, b"".join(kept), status)


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
        os.fsync(descriptor)  # makes the new name durable, too
    finally:
        os.close(descriptor)


def _replace(path: Path, data: bytes, former: os.stat_result | None) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    try:
        with open(descriptor, "wb") as new:
            if former is not None:
                os.fchmod(descriptor, stat.S_IMODE(former.st_mode))
                if (former.st_uid, former.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, former.st_uid, former.st_gid)
            new.write(data)
            new.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
