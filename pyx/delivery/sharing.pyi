"""Share groups: each message goes to one member of a group [MQTT 5, 4.8.2]."""

from typing import final

@final
class Sharing:
    """The choice of workers and members."""
