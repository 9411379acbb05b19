"""Which broker is loaded, and how its clients introduce themselves."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyx.encoders import encode_connect, encode_subscribe

LOOPBACK_CLIENTS = 20_000
"""Connections of one source address: the ports of an address are bounded, and so is what one may open."""


@dataclass(frozen=True)
class Target:
    """A broker's address, and what stands in every CONNECT."""

    host: str
    port: int
    version: int = 4
    username: str | None = None
    password: str | None = None
    session_expiry: int | None = None
    """Seconds for which sessions outlive their connections; None: they end with them."""
    keep_alive: int = 60

    @classmethod
    def parse(cls, url: str, **more: object) -> Target:
        """`mqtt://HOST:PORT`, `HOST:PORT` or `HOST`. ValueError: another scheme, or no port."""
        parts = urlsplit(url if "://" in url else f"mqtt://{url}")
        if parts.scheme != "mqtt":
            raise ValueError(f"{url}: flood speaks mqtt:// alone, not {parts.scheme}://")
        if not parts.hostname:
            raise ValueError(f"{url} names no host")
        return cls(parts.hostname, parts.port or 1883, **more)  # type: ignore[arg-type]

    def dial(self, number: int) -> int:
        """Begin a connection, and give its descriptor. The source addresses of many clients on this machine differ:
        127.0.0.1, 127.0.0.2, ... OSError: there are no more descriptors, or no such address.
        """
        family, kind, protocol, _, address = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        one = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
        try:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if family == socket.AF_INET and str(address[0]).startswith("127.") and number >= LOOPBACK_CLIENTS:
                one.bind((f"127.0.0.{1 + number // LOOPBACK_CLIENTS}", 0))
            one.connect_ex(address)  # what it says is seen when the connection is used
        except BaseException:
            one.close()
            raise
        return one.detach()

    def connect(self, client_id: str) -> bytes:
        """The CONNECT of a client."""
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
        """The SUBSCRIBE of a client that has sent nothing else."""
        return encode_subscribe(self.version, 1, [(topic_filter, qos)])
