"""The one place where tests wait for something that no socket tells them: everything else blocks with a deadline."""

from __future__ import annotations

import time

from broker.testing import wait_until

__all__ = ["let_pass", "wait_until"]


def let_pass(seconds: float) -> None:
    """Let time pass: for what MQTT itself counts in seconds (expiry, keep-alive), and for nothing else."""
    time.sleep(seconds)
