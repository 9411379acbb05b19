"""Topic Filters -> subscribers. Cython uses the structure (subscriptions.pxd); Python sees its sizes only."""

from typing import final

from pyx.matching.arrangements import Arrangements

@final
class Subscriptions:
    """The Topic Filters of one worker and their subscribers [MQTT-4.7]."""

    @property
    def generation(self) -> int:
        """Number that changes with the set of filters; never 0."""

    @property
    def count(self) -> int:
        """Number of local subscriptions."""

    @property
    def shared(self) -> int:
        """Number of local subscriptions in share groups."""

    @property
    def filters(self) -> int:
        """Number of filters in use, also by siblings only."""

    @property
    def wildcards(self) -> int:
        """Number of filters that contain + or #."""

    @property
    def arrangements(self) -> Arrangements:
        """The arrangements of the wildcards of these filters."""

    def __init__(self) -> None: ...
