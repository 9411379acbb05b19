"""The address of the loaded broker, and the CONNECT of its clients."""

from __future__ import annotations

import argparse
import socket
import ssl
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from loadtest.options import password_of
from pyx.protocol.encoders import encode_connect, encode_subscribe

LOOPBACK_CLIENTS = 10_000
"""Connections of one source address. Linux gives connect(2) every second of 28,000 ports; beyond these it searches all
of them each time.
"""
_BIND_ADDRESS_NO_PORT: Final = 24  # <linux/in.h>; in `socket` from Python 3.12 on
SUBPROTOCOL: Final = "mqtt"
"""Subprotocol of a WebSocket [MQTT-6.0.0-3]."""
_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
SCHEMES: Final = tuple(_PORTS)


@dataclass(frozen=True)
class Target:
    """A broker's address, and the common contents of every CONNECT."""

    host: str
    port: int
    scheme: str = "mqtt"
    path: str = "/mqtt"
    """Path of a WebSocket, with its query."""
    version: int = 4
    username: str | None = None
    password: str | None = None
    session_expiry: int | None = None
    """Session Expiry Interval in seconds; None: sessions end with their connections."""
    keep_alive: int = 60
    cafile: Path | None = None
    """Trusted certificates instead of the system's; PEM, as the next two."""
    cert: Path | None = None
    key: Path | None = None

    @classmethod
    def parse(cls, url: str, **more: object) -> Target:
        """Parse `mqtt://HOST:PORT` (mqtts, ws, wss), `HOST:PORT` or `HOST`. ValueError: another scheme, or no host."""
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        if parts.scheme not in _PORTS:
            raise ValueError(f"{url}: mqtt://, mqtts://, ws:// or wss://, not {parts.scheme}://")
        if not parts.hostname:
            raise ValueError(f"{url} names no host")
        if parts.username is not None:
            raise ValueError(f"{parts.scheme}://{parts.hostname}: names and passwords are --user and --password")
        path = f"{parts.path or '/mqtt'}{'?' if parts.query else ''}{parts.query}"
        return cls(parts.hostname, parts.port or _PORTS[parts.scheme], parts.scheme, path, **more)  # type: ignore[arg-type]

    @classmethod
    def of(cls, options: argparse.Namespace) -> Target:
        """Make one from `loadtest.options`. ValueError: they are invalid together."""
        target = cls.parse(
            options.host,
            version=options.mqtt_version,
            username=options.user,
            password=password_of(options),
            session_expiry=options.session_expiry,
            cafile=options.cafile,
            cert=options.cert,
            key=options.key,
        )
        if target.password is not None and target.username is None and target.version < 5:
            raise ValueError("a password needs --user before MQTT 5 [MQTT-3.1.2-22]")
        if target.is_tls:
            target.tls()  # reports errors in the files now
        elif (target.cafile, target.cert, target.key) != (None, None, None):
            raise ValueError(f"{target.scheme}:// has no TLS: --cafile, --cert and --key are for mqtts:// and wss://")
        return target

    @property
    def is_tls(self) -> bool:
        """Whether it is mqtts or wss."""
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        """Whether it is ws or wss."""
        return self.scheme in ("ws", "wss")

    @property
    def url(self) -> str:
        """Its URL, with its port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path if self.is_websocket else ''}"

    def tls(self) -> ssl.SSLContext:
        """Return the context for all connections, which checks the broker's certificate and its name. ValueError: a
        file is invalid.
        """
        if self.key is not None and self.cert is None:
            raise ValueError("--key is the key of --cert, which is missing")
        doing = f"--cafile {self.cafile}"
        try:
            context = ssl.create_default_context(cafile=self.cafile)
            if self.cert is not None:
                doing = f"--cert {self.cert}" + (f" --key {self.key}" if self.key else "")
                # a key with a password would prompt for it on the terminal
                context.load_cert_chain(self.cert, self.key, password="")
        except OSError as error:  # includes ssl.SSLError
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
            raise ValueError(f"{doing}: {reason or error}") from None
        return context

    def dial(self, number: int) -> int:
        """Begin a connection, and return its descriptor. Many clients on this machine use different source addresses:
        127.0.0.1, 127.0.0.2, ... OSError: there are no more descriptors, or no such address.
        """
        family, kind, protocol, address = _resolved(self.host, self.port)
        one = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET and str(address[0]).startswith("127.") and number >= LOOPBACK_CLIENTS:
                one.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)  # the port is chosen when it connects
                one.bind((f"127.0.0.{1 + number // LOOPBACK_CLIENTS}", 0))
            one.connect_ex(address)  # its result shows when the connection is used
        except BaseException:
            one.close()
            raise
        return one.detach()

    def connect(self, client_id: str) -> bytes:
        """Return the CONNECT of a client."""
        properties = {"receive_maximum": 65_535} if self.version == 5 else {}
        if self.version == 5 and self.session_expiry is not None:
            properties["session_expiry_interval"] = self.session_expiry
        return encode_connect(
            self.version,
            client_id,
            clean_start=self.session_expiry is None,
            keep_alive=self.keep_alive,
            username=self.username,
            password=None if self.password is None else self.password.encode(),
            properties=properties,
        )

    def subscribe(self, topic_filter: str, qos: int) -> bytes:
        """Return the SUBSCRIBE of a client that has sent nothing else."""
        return encode_subscribe(self.version, 1, [(topic_filter, qos)])


@lru_cache(maxsize=64)
def _resolved(host: str, port: int) -> tuple[int, int, int, Any]:
    # once for all clients, which would each resolve it again
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return family, kind, protocol, address
