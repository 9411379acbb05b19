"""The one place where tests wait for something that no socket tells them: everything else blocks with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return once ``condition()`` is true; raise TimeoutError naming ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    pause = 0.001
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)


def let_pass(seconds: float) -> None:
    """Let time pass: for what MQTT itself counts in seconds (expiry, keep-alive), and for nothing else."""
    time.sleep(seconds)
