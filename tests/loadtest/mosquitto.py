"""Debian's mosquitto, a third-party broker, with a listener for each transport of the load tools, and with features
that mqttd lacks so far.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from tests.certificates import certificates
from tests.waiting import wait_until

PROGRAM = os.environ.get("MOSQUITTO", "/usr/sbin/mosquitto")
SCHEMES = ("mqtt", "mqtts", "ws", "wss")
USER, PASSWORD = "fleet", "a pass-word"

_GENERAL = """\
per_listener_settings true
user root
max_queued_messages 0
max_inflight_messages 0
set_tcp_nodelay true
"""
_LISTENER = """\
listener {port} 127.0.0.1
socket_domain ipv4
protocol {protocol}
allow_anonymous {anonymous}
"""
_TLS = """\
cafile {directory}/ca.pem
certfile {directory}/server.pem
keyfile {directory}/server.key
"""


class Mosquitto:
    """A broker that runs for a `with` block. `directory`: an empty one of its own, where it keeps the certificates."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._ports = dict(zip([*SCHEMES, "certificate", "password"], _free_ports(len(SCHEMES) + 2), strict=True))
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, scheme: str) -> str:
        """Return the URL for mqtt, mqtts, ws or wss."""
        return f"{scheme}://127.0.0.1:{self._ports[scheme]}"

    @property
    def url_with_certificate(self) -> str:
        """URL with mqtts, for clients that present a certificate of its authority."""
        return f"mqtts://127.0.0.1:{self._ports['certificate']}"

    @property
    def url_with_password(self) -> str:
        """URL with mqtt, for USER with PASSWORD."""
        return f"mqtt://127.0.0.1:{self._ports['password']}"

    @property
    def pid(self) -> int:
        """Process id of the broker."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Mosquitto:
        certificates(self.directory)
        file = self.directory / "passwords"
        file.write_text(f"{USER}:{PASSWORD}\n")
        subprocess.run(["mosquitto_passwd", "-U", str(file)], check=True, capture_output=True)
        config = self.directory / "mosquitto.conf"
        config.write_text(self._config())
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen([PROGRAM, "-c", str(config)], stdout=log, stderr=log)
        try:
            wait_until(self._listens, 60, "mosquitto listens")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    def _config(self) -> str:
        text = _GENERAL
        for name, port in self._ports.items():
            protocol = "websockets" if name in ("ws", "wss") else "mqtt"
            anonymous = str(name != "password").lower()
            text += _LISTENER.format(port=port, protocol=protocol, anonymous=anonymous)
            if name in ("mqtts", "wss", "certificate"):
                text += _TLS.format(directory=self.directory)
            if name == "certificate":
                text += "require_certificate true\n"
            if name == "password":
                text += f"password_file {self.directory}/passwords\n"
        return text

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"mosquitto has ended: {(self.directory / 'log').read_text()}")
        for port in self._ports.values():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    return False
        return True


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
