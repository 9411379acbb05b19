"""Certificates for tests with TLS, made by openssl."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def certificates(directory: Path) -> None:
    """Make ca.pem, other-ca.pem, server.pem for 127.0.0.1 and client.pem (both signed by ca.pem), each with a .key."""
    _certificate(directory, "ca", "/CN=authority")
    _certificate(directory, "other-ca", "/CN=somebody else")
    _certificate(directory, "server", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1")
    _certificate(directory, "client", "/CN=client")


def _certificate(directory: Path, name: str, subject: str, *more: str) -> None:
    signed = [] if name.endswith("ca") else ["-CA", "ca.pem", "-CAkey", "ca.key"]
    subprocess.run(
        ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2",
         "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", subject, *more, *signed],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
