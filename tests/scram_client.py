"""The client side of SCRAM-SHA-256 (RFC 5802, 3), for tests. It shares no code with the broker."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools

METHOD = "SCRAM-SHA-256"

_numbers = itertools.count(1)


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.new(key, message, "sha256").digest()


class ScramClient:
    """One SCRAM exchange. `header`: the gs2-header, which a test may set to a wrong one."""

    def __init__(self, user: str, password: str, header: str = "n,,") -> None:
        self.header = header
        self.password = password.encode()
        self.nonce = f"client{next(_numbers)}"
        self.bare = f"n={user},r={self.nonce}"
        self.auth_message = b""
        self.salted = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        fields = dict(field.split("=", 1) for field in server_first.decode().split(","))
        assert list(fields) == ["r", "s", "i"]
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) >= len(self.nonce) + 18
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        self.salted = hashlib.pbkdf2_hmac("sha256", self.password, salt, iterations)
        client_key = _hmac(self.salted, b"Client Key")
        without_proof = f"c={base64.b64encode(self.header.encode()).decode()},r={fields['r']}"
        self.auth_message = f"{self.bare},{server_first.decode()},{without_proof}".encode()
        signature = _hmac(hashlib.sha256(client_key).digest(), self.auth_message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, server_final: bytes) -> None:
        """Raise AssertionError if the server does not know the password's verifier."""
        signature = _hmac(_hmac(self.salted, b"Server Key"), self.auth_message)
        assert server_final == b"v=" + base64.b64encode(signature)
