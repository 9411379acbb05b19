"""The inbox of a client: messages that wait for `receive`, or for `on_message`, which is called in a greenlet of its
own, one per client and only while there are messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import gevent
from gevent.hub import Waiter

from pyx.loadgen.client import Message

__all__ = ["INBOX_MESSAGES_MAX", "Inbox"]

INBOX_MESSAGES_MAX: Final = 10_000
"""Messages that may wait for `on_message`; beyond, the connection is not read."""


class Inbox:
    """The inbox of one client. `messages_max`: messages that may wait for `receive`; `wake`: resumes a greenlet;
    `read`: called with whether the connection should be read.
    """

    def __init__(
        self, messages_max: int, wake: Callable[[Waiter[Any], object], None], read: Callable[[bool], None]
    ) -> None:
        self._wake, self._read = wake, read
        self._messages: deque[Message] = deque(maxlen=messages_max or None)
        self._receiver: Waiter[Message | None] | None = None
        self._on_message: Callable[[Message], None] | None = None
        self._dispatcher: gevent.Greenlet[..., Any] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def keeps(self) -> bool:
        """Whether messages are kept at all."""
        return self._on_message is not None or self._messages.maxlen is not None

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """See `MqttClient.on_message`."""
        return self._on_message

    @on_message.setter
    def on_message(self, called: Callable[[Message], None] | None) -> None:
        self._on_message = called
        if called is not None:
            self._messages = deque(self._messages)

    def receive(self, seconds: float) -> Message | None:
        """See `MqttClient.receive`."""
        if self._messages.maxlen is None:
            raise ValueError("messages are kept for receive() only with inbox_messages_max, and without on_message")
        if self._messages:
            return self._messages.popleft()
        self._receiver = Waiter()
        try:
            message: Message | None = gevent.with_timeout(seconds, self._receiver.get, timeout_value=None)
            return message
        finally:
            self._receiver = None

    def put(self, message: Message) -> None:
        """Add a received message."""
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            self._wake(receiver, message)
            return
        self._messages.append(message)
        if self._on_message is None:
            return
        if self._dispatcher is None:
            self._dispatcher = gevent.spawn(self._dispatch)
        if len(self._messages) >= INBOX_MESSAGES_MAX:
            self._read(False)

    def _dispatch(self) -> None:
        try:
            while self._messages and self._on_message is not None:
                self._on_message(self._messages.popleft())
                if len(self._messages) == INBOX_MESSAGES_MAX // 2:
                    self._read(True)
        finally:
            # also after an error in on_message, which gevent prints
            self._dispatcher = gevent.spawn(self._dispatch) if self._messages and self._on_message else None
