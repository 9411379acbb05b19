"""Retained messages: set, cleared and expired by the owners of their topics, and queued for new subscriptions."""

from typing import final

from pyx.delivery.session import Session
from pyx.matching.retained import Retained
from pyx.protocol.message import Message

@final
class Retaining:
    """The retained messages of the topics that this worker owns."""

    @property
    def retained(self) -> Retained | None: ...
    def restore_retained(self, m: Message) -> None: ...
    def queue_retained(self, s: Session, messages: list[Message], text: bytes, asked: int) -> None: ...
    def expire_retained(self, m: Message) -> None: ...
