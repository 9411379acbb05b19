"""`$mqttd/owner`: a client asks which host of the cluster owns a client id, before it connects there.

    request     PUBLISH to $mqttd/owner with a Response Topic (MQTT 5, 4.10): {"client_id": ID}
    response    PUBLISH of QoS 1 to the Response Topic, with the Correlation Data of the request:
                {"client_id": ID, "node": NODE, "address": ADDRESS, "epoch": N}; node null: no host owns it; address
                null: its host does not say where clients reach it; or {"client_id": ID, "error": WHY}

A request without a Response Topic cannot be answered, and is ignored. A client asks for as much as it may publish: the
rules have to allow it the request's topic and the Response Topic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from broker.clients.admission import fits, is_servers_own
from pyx.core import counters as count
from pyx.protocol.message import Message
from pyx.protocol.properties import pack, unpack
from pyx.protocol.topics import is_topic_name

if TYPE_CHECKING:
    from broker.clients.authorising import Authorising
    from broker.context.context import Context
    from pyx.delivery.session import Session

__all__ = ["ClientRequests", "KnownOwner", "OwnerFinder"]

ASKED_MAX: Final = 1000
"""Requests of a worker that are not answered yet."""
_PUBLISH: Final = 3
CLIENT_ID_BYTES_MAX: Final = 1024
"""Longer client ids cannot be asked for."""


class KnownOwner(NamedTuple):
    """Who owns a client id. node "": no host. client_address "": it does not say."""

    node: str
    client_address: str
    epoch: int


OwnerFinder = Callable[[str, Callable[["KnownOwner | None"], None]], None]
"""find(client id, then): calls `then` once with the owner; None: it cannot be found out now."""


class ClientRequests:
    """The requests of one worker's clients. find: set where the host is in a cluster."""

    def __init__(self, context: Context, authorising: Authorising) -> None:
        self._context = context
        self._authorising = authorising
        self._asked = 0
        self.find: OwnerFinder | None = None

    def asked_for_owner(self, session: Session, payload: bytes, properties: bytes) -> None:
        """Implements `pyx.delivery.handler.Handler`."""
        self._context.counters.add(count.OWNER_REQUESTS)
        request = unpack(properties, _PUBLISH) if properties else {}
        topic: str = request.get("response_topic", "")
        if not self._may_be_answered(session, topic):
            self._context.counters.add(count.OWNER_REQUESTS_REFUSED)
            self._context.log.info("request_not_answered", client=session.client_id, topic=topic.encode())
            return
        answer = partial(self._answer, topic.encode(), request.get("correlation_data"))
        client_id = _client_id(payload)
        if client_id is None:
            self._refuse(answer, error=f'the payload is not {{"client_id": ID}} with 1 to {CLIENT_ID_BYTES_MAX} bytes')
        elif self.find is None:
            self._refuse(answer, client_id=client_id, error="this broker is in no cluster")
        elif self._asked >= ASKED_MAX:
            self._refuse(answer, client_id=client_id, error="too many requests are not answered yet")
        else:
            self._asked += 1
            self.find(client_id, partial(self._found, answer, client_id))

    def _may_be_answered(self, session: Session, text: str) -> bool:
        topic = text.encode()
        is_right = is_topic_name(topic) and not is_servers_own(topic) and fits(topic, self._context.limits)
        return is_right and self._authorising.may_publish(session, topic, 1, retain=False)

    def _found(self, answer: Callable[[dict[str, Any]], None], client_id: str, owner: KnownOwner | None) -> None:
        self._asked -= 1
        if owner is None:
            self._refuse(answer, client_id=client_id, error="it cannot be found out now")
        else:
            answer(
                {
                    "client_id": client_id,
                    "node": owner.node or None,
                    "address": owner.client_address or None,
                    "epoch": owner.epoch if owner.node else None,
                }
            )

    def _refuse(self, answer: Callable[[dict[str, Any]], None], **content: str) -> None:
        self._context.counters.add(count.OWNER_REQUESTS_REFUSED)
        answer(content)

    def _answer(self, topic: bytes, correlation_data: bytes | None, content: dict[str, Any]) -> None:
        properties: dict[str, Any] = {"content_type": "application/json", "payload_format_indicator": 1}
        if correlation_data is not None:
            properties["correlation_data"] = correlation_data
        router = self._context.router
        router.publish_message(
            Message.create(
                topic,
                orjson.dumps(content),
                qos=1,
                properties=pack(properties, _PUBLISH),
                number=router.state.next_number(),
            )
        )


def _client_id(payload: bytes) -> str | None:
    """Return the client id of a request; None: it has none."""
    try:
        read = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    client_id = read.get("client_id") if isinstance(read, dict) else None
    if not isinstance(client_id, str) or not 0 < len(client_id.encode()) <= CLIENT_ID_BYTES_MAX:
        return None
    return client_id
