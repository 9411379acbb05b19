"""Waits without a socket. Tests use them from here only: all other waits block with a deadline."""

from __future__ import annotations

import time

from broker.testing import wait_until

__all__ = ["let_pass", "wait_until"]


def let_pass(seconds: float) -> None:
    """Sleep: only for intervals that MQTT itself counts in seconds (expiry, keep-alive)."""
    time.sleep(seconds)
