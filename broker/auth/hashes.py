"""Password hashes as text: argon2id (RFC 9106), and for reading only mosquitto's two forms.

    $argon2id$v=19$m=19456,t=2,p=1$SALT$HASH     the PHC string format; base64 without padding
    $7$ITERATIONS$SALT$HASH                      mosquitto 2: PBKDF2-HMAC-SHA512 of 64 bytes; base64
    $6$SALT$HASH                                 mosquitto before 2: SHA-512 of password and salt; base64

A text is checked in full when it is read, so a Hash is always valid. No text contains a colon. Computing a hash takes
milliseconds and releases the GIL, so it should run in a thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass

import argon2
from argon2.exceptions import VerifyMismatchError

__all__ = ["NOBODY", "Hash", "make", "read"]

# OWASP's recommendation for argon2id: 19 MiB, two passes, one lane: about 15 ms
_MEMORY_KIB = 19_456
_PASSES = 2
_LANES = 1

# the most that a line may cost a worker: higher values are a mistake and would block logins
_MEMORY_KIB_MAX = 1_048_576
_PASSES_MAX = 100
_LANES_MAX = 16
_ITERATIONS_MAX = 10_000_000

_BASE64 = r"[A-Za-z0-9+/]"
_PADDED = rf"(?:{_BASE64}{{4}})+(?:{_BASE64}{{2}}==|{_BASE64}{{3}}=)?"
_SHA512 = rf"{_BASE64}{{86}}=="
_ARGON2ID = re.compile(
    rf"\$argon2id\$v=19\$m=([1-9]\d{{0,9}}),t=([1-9]\d{{0,9}}),p=([1-9]\d{{0,9}})\$({_BASE64}{{11,86}})\$({_BASE64}{{22,86}})"
)
_PBKDF2 = re.compile(rf"\$7\$([1-9]\d{{0,9}})\$({_PADDED})\$({_SHA512})")
_SALTED = re.compile(rf"\$6\$({_PADDED})\$({_SHA512})")

_argon2id = argon2.PasswordHasher(time_cost=_PASSES, memory_cost=_MEMORY_KIB, parallelism=_LANES, type=argon2.Type.ID)


@dataclass(frozen=True, slots=True)
class Hash:
    """A password hash that has been parsed and validated."""

    text: str

    def verify(self, password: bytes) -> bool:
        """Return whether `password` matches. Slow; callable from any thread. MemoryError when argon2 gets no memory."""
        scheme, *fields = self.text[1:].split("$")
        if scheme == "argon2id":
            try:
                return _argon2id.verify(self.text, password)
            except VerifyMismatchError:
                return False
            except argon2.exceptions.VerificationError as error:
                raise MemoryError(str(error)) from error
        salt, expected = (base64.b64decode(field) for field in fields[-2:])
        if scheme == "7":
            found = hashlib.pbkdf2_hmac("sha512", password, salt, int(fields[0]))
        else:
            found = hashlib.sha512(password + salt).digest()
        return hmac.compare_digest(found, expected)


NOBODY = Hash(f"$argon2id$v=19$m={_MEMORY_KIB},t={_PASSES},p={_LANES}${'A' * 22}${'A' * 43}")
"""A hash that no password matches: as slow to check as a new one."""


def make(password: bytes) -> Hash:
    """Return a new hash (argon2id, random salt). Slow."""
    return Hash(_argon2id.hash(password))


def read(text: str) -> Hash:
    """Parse one of the forms above. Raises ValueError with the cause, without repeating the text."""
    if found := _ARGON2ID.fullmatch(text):
        memory, passes, lanes = (int(each) for each in found.groups()[:3])
        if memory > _MEMORY_KIB_MAX or passes > _PASSES_MAX or lanes > _LANES_MAX or memory < 8 * lanes:
            raise ValueError(
                f"argon2id with m={memory}, t={passes}, p={lanes}; at most m={_MEMORY_KIB_MAX}, t={_PASSES_MAX}, "
                f"p={_LANES_MAX}, at least m=8 for each p"
            )
        if not all(_is_unpadded_base64(field) for field in found.groups()[3:]):
            raise ValueError("the argon2id hash is malformed")
        return Hash(text)
    if found := _PBKDF2.fullmatch(text):
        if int(found[1]) > _ITERATIONS_MAX:
            raise ValueError(f"$7$ with {found[1]} iterations; at most {_ITERATIONS_MAX}")
        return Hash(text)
    if _SALTED.fullmatch(text):
        return Hash(text)
    for start, name in (("$argon2id$", "argon2id"), ("$7$", "$7$ (PBKDF2)"), ("$6$", "$6$ (SHA-512)")):
        if text.startswith(start):
            raise ValueError(f"the {name} hash is malformed")
    raise ValueError("no argon2id, $7$ or $6$ hash")


def _is_unpadded_base64(text: str) -> bool:
    # as strict as libargon2: no impossible length, no bits left over
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        return False
    return base64.b64encode(data).decode().rstrip("=") == text
