"""What rules are to the rest of the broker: what a client that is known may do.

Rules are asked for every publish, subscription, will, replay, and retained message that a client would be sent
(`broker.clients.authorising`). There are none yet: everybody may do everything.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

__all__ = ["Client", "Rules"]


class Client(NamedTuple):
    """Who wants something."""

    client_id: str
    username: str | None
    """As a back-end has found it to be; None: nobody has proved a name (there is no back-end, or it is anonymous)."""
    listener: str | None
    """The name of the listener that it has come by; None: it is not connected."""


class Rules(Protocol):
    """Each method says whether it may. What one raises means that it may not, and is a defect of ours.

    Called in the worker's loop: none may wait. `may_publish` is called once for a connection, topic, QoS and RETAIN,
    as long as the rules do not change (`Authorising.rules`).
    """

    def may_take(self, client: Client, username: str | None) -> bool:
        """The session of its client id, with its subscriptions and what waits, which another user has or had (None: as
        in Client). If not, its CONNECT is refused, whether it wants to resume that session or to end it.
        """

    def may_publish(self, client: Client, topic: bytes, qos: int, retain: bool) -> bool:
        """A PUBLISH, or the publication of a will: when CONNECT names it, and again when it is due. A will of which the
        user is not known any more (its worker has died, and no session was stored) is not published.
        """

    def may_subscribe(self, client: Client, topic_filter: bytes, qos: int, group: bytes | None) -> bool:
        """A subscription with the QoS that it asks for. `group`: the ShareName without `$share/`, if it is shared."""

    def may_replay(self, client: Client, topic_filter: bytes) -> bool:
        """A subscription that begins in the archive, and all that it finds there; `may_subscribe` was asked before."""

    def may_receive(self, client: Client, topic: bytes) -> bool:
        """A retained message, or one of `$SYS`, which was there before the subscription that matches it."""
