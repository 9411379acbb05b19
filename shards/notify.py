"""systemd's readiness protocol, sd_notify(3): datagrams to the socket in NOTIFY_SOCKET. Does nothing elsewhere."""

from __future__ import annotations

import contextlib
import os
import socket
import time


class Notifier:
    """Sends READY, RELOADING, STOPPING and WATCHDOG to the service manager that started us, if one did."""

    def __init__(self) -> None:
        """Remove the address from the environment: workers must not speak for the service."""
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        if self._address.startswith("@"):  # the abstract namespace
            self._address = "\0" + self._address[1:]
        watchdog_pid = os.environ.pop("WATCHDOG_PID", "")
        watchdog_usec = os.environ.pop("WATCHDOG_USEC", "")
        ours = self._address and watchdog_usec.isdigit() and watchdog_pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(watchdog_usec) / 2e6 if ours else 0.0
        """Seconds between two WATCHDOG messages (half of the manager's limit), 0 when it does not watch."""

    def ready(self, status: str) -> None:
        """Announce that start-up, or a reload, is complete."""
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        """Announce that a reload has begun; `ready` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Announce that the broker stops."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Send WATCHDOG; to be called every `watchdog_seconds`."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.setblocking(False)
            # If the manager is gone or busy, serving continues; its own timeouts notice.
            with contextlib.suppress(OSError):
                sender.sendto(message.encode(), self._address)
