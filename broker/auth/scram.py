"""SCRAM-SHA-256 (RFC 5802, RFC 7677): the server side of one exchange, and the verifier that is stored for a user.

    client -> server   n,,n=USER,r=CNONCE
    server -> client   r=CNONCE+SNONCE,s=SALT,i=ITERATIONS
    client -> server   c=biws,r=CNONCE+SNONCE,p=PROOF
    server -> client   v=SIGNATURE

The server never sees the password, and only the client computes PBKDF2: the server has StoredKey and ServerKey, and an
exchange costs it a few HMACs. Channel binding is not offered ("p=" is refused; "n" and "y" mean the same here).
A verifier as text, without a colon: $scram-sha-256$i=ITERATIONS$SALT$STOREDKEY$SERVERKEY, base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable

from broker.auth.contract import MethodError, Verifier
from broker.auth.saslprep import saslprep

__all__ = ["ITERATIONS", "ITERATIONS_MAX", "ITERATIONS_MIN", "SALT_BYTES", "Exchange", "make", "read", "text_of"]

ITERATIONS = 100_000
"""PBKDF2 rounds of a new verifier: each connecting client computes them."""
ITERATIONS_MIN = 4096  # RFC 7677, 4
ITERATIONS_MAX = 10_000_000
SALT_BYTES = 16
_NONCE_BYTES = 18

_KEY = r"[A-Za-z0-9+/]{43}="
_VERIFIER = re.compile(
    rf"\$scram-sha-256\$i=([1-9]\d{{0,9}})\$((?:[A-Za-z0-9+/]{{4}})+(?:[A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?)"
    rf"\$({_KEY})\$({_KEY})"
)
_FIRST = re.compile(
    r"(?P<header>(?P<flag>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,\0]+))?,)"
    r"(?P<bare>(?P<mandatory>m=[^,]*,)?n=(?P<name>[^,\0]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*)"
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<header>[A-Za-z0-9+/=]+),r=(?P<nonce>[!-+\--~]+)(?:,[A-Za-z]=[^,\0]+)*),"
    r"p=(?P<proof>[A-Za-z0-9+/]{43}=)"
)


def text_of(verifier: Verifier) -> str:
    """Return the verifier's form in a password file."""
    salt, stored, server = (_base64(each) for each in (verifier.salt, verifier.stored_key, verifier.server_key))
    return f"$scram-sha-256$i={verifier.iterations}${salt}${stored}${server}"


def make(password: str, iterations: int = ITERATIONS, salt: bytes | None = None) -> Verifier:
    """Return a new verifier. Slow. Raises ValueError for a password that SASLprep (RFC 4013) refuses."""
    salt = secrets.token_bytes(SALT_BYTES) if salt is None else salt
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    return Verifier(
        iterations, salt, hashlib.sha256(_hmac(salted, b"Client Key")).digest(), _hmac(salted, b"Server Key")
    )


def read(text: str) -> Verifier:
    """Parse a verifier. Raises ValueError with the cause, without repeating the text."""
    found = _VERIFIER.fullmatch(text)
    if found is None:
        raise ValueError("the SCRAM-SHA-256 verifier is malformed")
    iterations = int(found[1])
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"SCRAM-SHA-256 with {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return Verifier(iterations, *(base64.b64decode(field) for field in found.groups()[1:]))


class Exchange:
    """One authentication. `step` takes a message of the client and returns the answer; `done` is set after the last.

    `lookup` returns the verifier of a (prepared) user name; for an unknown user one that nothing matches.
    """

    def __init__(self, lookup: Callable[[str], Verifier], nonce: str | None = None) -> None:
        self._lookup = lookup
        self._own_nonce = secrets.token_urlsafe(_NONCE_BYTES) if nonce is None else nonce
        self.username = ""
        """User name; known after the first step, proven when `done`."""
        self.done = False
        self._verifier: Verifier | None = None
        self._header = b""
        self._nonce = ""
        self._said = ""  # client-first-message-bare and server-first-message, with commas

    def step(self, data: bytes) -> bytes:
        """Return the answer to the client's next message. Raises MethodError when the authentication has failed."""
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise MethodError("a SCRAM message that is not UTF-8") from None
        if self.done:
            raise MethodError("a SCRAM message after the last")
        return (self._first(text) if self._verifier is None else self._final(text, self._verifier)).encode()

    def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise MethodError("client-first-message is malformed")
        if found["flag"].startswith("p="):
            raise MethodError("channel binding is not supported")
        if found["mandatory"] is not None:
            raise MethodError("an extension that is not supported")
        self.username = _name(found["name"])
        if found["authzid"] is not None and _name(found["authzid"]) != self.username:
            raise MethodError("a user may not act as another")
        self._verifier = verifier = self._lookup(self.username)
        self._header = found["header"].encode()
        self._nonce = found["nonce"] + self._own_nonce
        answer = f"r={self._nonce},s={_base64(verifier.salt)},i={verifier.iterations}"
        self._said = f"{found['bare']},{answer},"
        return answer

    def _final(self, text: str, verifier: Verifier) -> str:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise MethodError("client-final-message is malformed")
        try:
            header, proof = (base64.b64decode(found[name], validate=True) for name in ("header", "proof"))
        except binascii.Error:
            raise MethodError("client-final-message is malformed") from None
        if header != self._header:
            raise MethodError("the channel binding flag has changed under way")
        if not hmac.compare_digest(found["nonce"].encode(), self._nonce.encode()):
            raise MethodError("the nonce is another")
        message = (self._said + found["without_proof"]).encode()
        signature = _hmac(verifier.stored_key, message)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), verifier.stored_key):
            raise MethodError("wrong user name or password")
        self.done = True
        return f"v={_base64(_hmac(verifier.server_key, message))}"


def _name(escaped: str) -> str:
    """Decode a saslname: "=2C" is a comma, "=3D" an equals sign; any other "=" is invalid (RFC 5802, 5.1)."""
    if re.search("=(?!2C|3D)", escaped):
        raise MethodError("a user name with an invalid escape")
    try:
        return saslprep(escaped.replace("=2C", ",").replace("=3D", "="))
    except ValueError as error:
        raise MethodError(f"user name: {error}") from None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
