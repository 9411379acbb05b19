"""Checks of a CONNECT that do not depend on who sends it, and the CONNACK properties that describe this broker.

Pure functions: a CONNECT and the settings in, a Reason Code or properties out. Credentials and sessions are handled in
`broker.clients.connecting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from broker.admin.sys_topics import OF_BRIDGES
from pyx.protocol.properties import unpack
from pyx.protocol.reasons import ReasonCode
from pyx.protocol.topics import levels

if TYPE_CHECKING:
    from broker.config.limits import Limits
    from broker.config.settings import Settings
    from pyx.protocol.packets import Connect, Will

_ANY_RECEIVE_MAXIMUM = 65535  # the default where CONNACK has none (MQTT 5, 3.2.2.3.3)
_WILL_PROPERTIES = 0  # number of will properties among the packet types, see pyx.protocol.properties
_SEPARATORS = frozenset("/+#")


class ConnectRefusal(NamedTuple):
    """The reason to refuse a CONNECT: `why` is its Reason String and is logged."""

    reason: ReasonCode
    why: str
    server_reference: str | None = None


def refusal(packet: Connect, settings: Settings) -> ConnectRefusal | None:
    """Return why these settings refuse it, or None."""
    protocol = settings.protocol
    if protocol.redirect is not None:  # [MQTT 5, 4.11]
        reason = ReasonCode.SERVER_MOVED if protocol.redirect_permanent else ReasonCode.USE_ANOTHER_SERVER
        return ConnectRefusal(reason, "clients go to another server", protocol.redirect)
    client_id = packet.client_id
    if not client_id:
        if packet.version == 3:  # MQTT 3.1, 3.1: between 1 and 23 characters
            return ConnectRefusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "empty client id")
        if packet.version == 4 and not packet.clean_start:  # [MQTT-3.1.3-8]
            return ConnectRefusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "empty client id without clean session")
    elif packet.version == 3 and len(client_id) > settings.limits.v31_client_id_characters_max:
        return ConnectRefusal(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, "client id beyond v31_client_id_characters_max")
    return _of_will(packet.will, settings) if packet.will is not None else None


def fits(topic: bytes, limits: Limits) -> bool:
    """Whether a topic is within topic_bytes_max and topic_levels_max."""
    return len(topic) <= limits.topic_bytes_max and levels(topic) <= limits.topic_levels_max


def is_servers_own(topic: bytes) -> bool:
    """Whether clients may not publish to a topic, but for requests (pyx.io.publishing)."""
    if topic.startswith(OF_BRIDGES) and topic != OF_BRIDGES:
        return False
    return topic.partition(b"/")[0] in (b"$SYS", b"$mqttd")


def _of_will(will: Will, settings: Settings) -> ConnectRefusal | None:
    """Refuse a will where a PUBLISH of the same content would be refused."""
    limits, protocol = settings.limits, settings.protocol
    if will.qos > protocol.maximum_qos:  # [MQTT-3.2.2-12]
        return ConnectRefusal(ReasonCode.QOS_NOT_SUPPORTED, f"Will QoS above {protocol.maximum_qos}")
    if will.retain and not protocol.retain_available:  # [MQTT-3.2.2-13]
        return ConnectRefusal(ReasonCode.RETAIN_NOT_SUPPORTED, "Will Retain, and nothing is retained here")
    if not fits(will.topic, limits):
        return ConnectRefusal(ReasonCode.TOPIC_NAME_INVALID, "Will Topic beyond topic_bytes_max or topic_levels_max")
    if is_servers_own(will.topic):
        return ConnectRefusal(ReasonCode.NOT_AUTHORIZED, "Will Topic of the server's own")
    if protocol.validate_payload_format and not _is_payload_as_indicated(will):
        return ConnectRefusal(ReasonCode.PAYLOAD_FORMAT_INVALID, "Will Payload is not UTF-8, as its indicator says")
    return None


def _is_payload_as_indicated(will: Will) -> bool:
    if not unpack(will.properties, _WILL_PROPERTIES).get("payload_format_indicator"):
        return True
    try:
        will.payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def offers(settings: Settings, packet: Connect, client_id: str) -> dict[str, Any]:
    """Return the CONNACK properties that state this broker's limits and features; defaults are left out."""
    limits, protocol = settings.limits, settings.protocol
    properties: dict[str, Any] = protocol.not_offered()
    if limits.receive_maximum != _ANY_RECEIVE_MAXIMUM:
        properties["receive_maximum"] = limits.receive_maximum
    properties["maximum_packet_size"] = limits.packet_bytes_max
    if limits.topic_alias_max:
        properties["topic_alias_maximum"] = limits.topic_alias_max
    # a client id with separators could match another client's topics or be a filter; and one longer than a topic may be
    # cannot be the beginning of one  [MQTT-3.1.2-28]
    if (
        protocol.response_information is not None
        and packet.properties.get("request_response_information")
        and not _SEPARATORS & set(client_id)
    ):
        response = protocol.response_information + client_id
        if len(response.encode()) <= limits.topic_bytes_max:
            properties["response_information"] = response
    return properties
