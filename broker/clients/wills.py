"""Will Messages [MQTT 5, 3.1.2.5]: published for a client whose connection ended without a normal DISCONNECT."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyx.delivery.router import expiry_offset
from pyx.protocol.message import Message

if TYPE_CHECKING:
    from broker.worker.core import Node
    from pyx.protocol.packets import Will


class Wills:
    """Turns a will into a publish when it is due. When that is, connecting decides."""

    def __init__(self, node: Node) -> None:
        self._router = node.router

    def publish(self, will: Will, client_id: str) -> None:
        """Publish it now; its Message Expiry Interval counts from now on."""
        router = self._router
        expires = router.wall_ms + will.expiry_interval * 1000 if will.expiry_interval is not None else 0
        router.publish_message(
            Message.create(
                will.topic, will.payload, qos=will.qos, retain=will.retain, properties=will.properties,
                number=router.next_number(), expires=expires,
                expiry_offset=expiry_offset(will.properties) if expires else -1, publisher=client_id,
            )
        )  # fmt: skip
