"""The poller of Linux: epoll(7)."""

from typing import final

from pyx.io.poller import Poller

@final
class Epoll(Poller):
    """One epoll set; its descriptor is readable when something is ready."""
