"""The interface of authorisation rules: what an authenticated client may do.

Rules are asked for every publish, subscription, will, replay, and retained message about to be sent to a client
(`broker.clients.authorising`). No rules exist yet: every client may do everything.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Client", "Rules"]


class Client(NamedTuple):
    """The client that asks for something."""

    client_id: str
    username: str | None
    """User name as the back-end has verified it; None: not verified (no back-end, or an anonymous client)."""
    listener: str | None
    """Name of the listener that it is connected to; None: it is not connected."""


class Rules(Protocol):
    """Authorisation rules: each method returns whether an action is allowed. An exception counts as an internal error,
    and denies the action.

    Called in the worker's loop: none may block. `may_publish` is called once for a connection, topic, QoS and RETAIN,
    as long as the rules do not change (`Authorising.rules`).
    """

    def may_take(self, client: Client, username: str | None) -> bool:
        """Taking over the session of its client id, with subscriptions and queued messages, which another user has or
        had (None: as in Client). If not, its CONNECT is refused, whether it would resume that session or end it.
        """

    def may_publish(self, client: Client, topic: bytes, qos: int, retain: bool) -> bool:
        """A PUBLISH, or the publication of a will: asked when CONNECT names the will, and again when it is due. A will
        whose user is not known any more (its worker has died, and no session was stored) is not published.
        """

    def may_subscribe(self, client: Client, topic_filter: bytes, qos: int, group: bytes | None) -> bool:
        """A subscription with the requested QoS. `group`: the ShareName without `$share/`, if it is shared."""

    def may_replay(self, client: Client, topic_filter: bytes) -> bool:
        """A subscription that begins in the archive, with all its messages; `may_subscribe` was asked before."""

    def may_receive(self, client: Client, topic: bytes) -> bool:
        """A retained message, or one of `$SYS`, that is older than the subscription that matches it."""
