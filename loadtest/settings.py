"""Contents of the CONNECT of a `loadtest.client`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pyx.protocol.packets import Will

__all__ = ["Settings"]


@dataclass(frozen=True)
class Settings:
    """The fields of a CONNECT; `MqttClient.connect` takes each as an argument."""

    client_id: str
    version: int = 5
    clean_start: bool = True
    session_expiry: int | None = None
    """Seconds; None: the session ends with its connection. Before MQTT 5 sessions last unless `clean_start`."""
    keep_alive: int = 60
    receive_maximum: int = 65_535
    will: Will | None = None
    username: str | None = None
    password: str | None = None
    properties: dict[str, Any] = field(default_factory=dict)
    """Further properties of the CONNECT, by the names of `pyx.protocol.properties`."""

    def packed(self) -> dict[str, Any]:
        """Return all properties of the CONNECT."""
        made = {"receive_maximum": self.receive_maximum, **self.properties}
        if self.session_expiry is not None:
            made["session_expiry_interval"] = self.session_expiry
        return made
