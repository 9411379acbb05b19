"""Settings for the choices that the standard leaves to a server: features offered, checks made, redirection.

A v5 client learns from CONNACK which features are not offered, and breaks the protocol if it uses one all the same. A
client of 3.1 or 3.1.1 cannot be told; docs/reference/protocol.md has the consequences.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Protocol(BaseModel):
    """Features of MQTT that are offered. Changes apply to later requests: existing subscriptions and sessions stay."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    maximum_qos: int = Field(
        default=2,
        ge=0,
        le=2,
        description="Highest QoS; a SUBSCRIBE is granted at most this, a PUBLISH above: DISCONNECT 0x9B (v3: closed), "
        "a will above: CONNACK 0x9B (v3: closed).",
    )
    retain_available: bool = Field(
        default=True,
        description="Whether messages may be retained. If not, PUBLISH with RETAIN: DISCONNECT 0x9A, a will with it: "
        "CONNACK 0x9A (v3: closed), and retained messages from before are not sent.",
    )
    wildcard_subscription_available: bool = Field(
        default=True,
        description="Whether Topic Filters may have wildcards. If not: DISCONNECT 0xA2 (v3: SUBACK 0x80).",
    )
    shared_subscription_available: bool = Field(
        default=True, description="Whether there are Shared Subscriptions. If not: DISCONNECT 0x9E (v3: SUBACK 0x80)."
    )
    subscription_identifier_available: bool = Field(
        default=True, description="Whether subscriptions may have identifiers. If not: DISCONNECT 0xA1."
    )
    validate_payload_format: bool = Field(
        default=False,
        description="Whether a payload with a Payload Format Indicator of UTF-8 is checked: if invalid, PUBACK or "
        "PUBREC 0x99, at QoS 0 discarded; a will: CONNACK 0x99.",
    )
    lenient: bool = Field(
        default=False,
        description="Whether to tolerate harmless errors for which the standard requires closing the connection: an "
        "empty or malformed Topic Filter in SUBSCRIBE gets 0x8F (v3: 0x80) and in UNSUBSCRIBE 0x8F; a PUBACK, PUBREC "
        "or PUBCOMP without a matching packet is ignored. If not: DISCONNECT 0x81, 0x82 (v3: closed).",
    )
    response_information: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Beginning of the topics on which a v5 client gets responses. On request it is sent this and its "
        "client id as Response Information, unless that id contains /, + or #, or both together are longer than "
        "topic_bytes_max.",
    )
    redirect: str | None = Field(
        default=None,
        min_length=1,
        max_length=1024,
        description="Server Reference: other servers, separated by spaces (host or host:port). While it is set no "
        "CONNECT is accepted: 0x9C with it (v3: 3); open connections stay until the broker stops, and get "
        "0x9C then, too.",
    )
    redirect_permanent: bool = Field(
        default=False, description="Whether the redirect is permanent: 0x9D instead of 0x9C."
    )

    def not_offered(self) -> dict[str, int]:
        """Return the CONNACK properties of unavailable features (MQTT 5, 3.2.2.3); available ones are the default."""
        said: dict[str, int] = {}
        if self.maximum_qos < 2:
            said["maximum_qos"] = self.maximum_qos
        for name in (
            "retain_available",
            "wildcard_subscription_available",
            "subscription_identifier_available",
            "shared_subscription_available",
        ):
            if not getattr(self, name):
                said[name] = 0
        return said
