"""MQTT without sessions: packets, properties, reason codes, messages and the bytes of an outgoing PUBLISH."""
