"""SUBSCRIBE and UNSUBSCRIBE: one reason code per Topic Filter, interest to the siblings, then the retained messages.

A SUBACK leaves when every live sibling routes by the new interest, so that a publish that begins after it, on any
worker, reaches the subscriber. Retained messages follow the SUBACK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyx.codec import encode_suback, encode_unsuback
from pyx.reasons import ReasonCode
from pyx.topics import is_topic_filter, levels, parse_share

if TYPE_CHECKING:
    from broker.node import Node
    from pyx.connection import Connection
    from pyx.packets import Subscribe, Unsubscribe
    from pyx.session import Session

_RETAIN_HANDLING = 0x30
_NEVER_RETAINED = 0x20
_ONLY_IF_NEW = 0x10


class Subscribing:
    """Decisions on subscriptions."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._router = node.router

    def subscribe(self, conn: Connection, session: Session, packet: Subscribe) -> None:
        """Add or replace each subscription, in order [MQTT-3.8.4-5]; then SUBACK, then retained messages."""
        router = self._router
        codes: list[int] = []
        wanted: list[bytes] = []  # filters whose retained messages are to be sent
        identifier = packet.identifier
        for item in packet.filters:
            text, options = item.filter, item.options
            group = None
            if text.startswith(b"$share/"):
                share = parse_share(text)
                if share is None:
                    codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                    continue
                group, text = share
            refused = self._check(session, text)
            if refused:
                codes.append(refused)
                continue
            new = router.subscribe(session, text, options, identifier, group)
            codes.append(options & 3)
            handling = options & _RETAIN_HANDLING
            if group is None and handling != _NEVER_RETAINED and (new or handling != _ONLY_IF_NEW):
                wanted.append(text)
        number = self._node.interest_number()
        suback = encode_suback(conn.version, packet.packet_id, codes)
        if wanted:
            retaining = self._node.retaining
            router.answer_packet(conn, suback, number, lambda: retaining.send(session, wanted))
        else:
            router.answer_packet(conn, suback, number)

    def _check(self, session: Session, text: bytes) -> int:
        limits = self._node.settings.limits
        if not is_topic_filter(text) or len(text) > limits.topic_bytes_max or levels(text) > limits.topic_levels_max:
            return ReasonCode.TOPIC_FILTER_INVALID
        if session.subscriptions >= limits.filters_per_session_max:
            return ReasonCode.QUOTA_EXCEEDED
        return 0

    def unsubscribe(self, conn: Connection, session: Session, packet: Unsubscribe) -> None:
        """Remove each subscription; one that was not there is no error [MQTT-3.10.4-5].

        That of a share group is answered when the siblings know it: what comes after goes to other members.
        """
        router = self._router
        codes: list[int] = []
        shared = False
        for text in packet.filters:
            group = None
            if text.startswith(b"$share/"):
                share = parse_share(text)
                if share is None:
                    codes.append(ReasonCode.TOPIC_FILTER_INVALID)
                    continue
                group, text = share
                shared = True
            found = router.unsubscribe(session, text, group)
            codes.append(ReasonCode.SUCCESS if found else ReasonCode.NO_SUBSCRIPTION_EXISTED)
        unsuback = encode_unsuback(conn.version, packet.packet_id, codes)
        router.answer_packet(conn, unsuback, self._node.interest_number() if shared else 0)
