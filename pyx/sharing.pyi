"""Share groups: each message goes to one member of a group [MQTT 5, 4.8.2]."""

STRATEGIES: dict[str, int]
WAITS_FLAG: int
