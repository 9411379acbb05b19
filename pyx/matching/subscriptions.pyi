"""Topic Filters -> subscribers. The structure is used from Cython (subscriptions.pxd); Python sees how large it is."""

from typing import final

from pyx.matching.arrangements import Arrangements

@final
class Subscriptions:
    """The filters of one worker and who wants them [MQTT-4.7]."""

    @property
    def generation(self) -> int:
        """Changes whenever the set of filters does; never 0."""

    @property
    def count(self) -> int:
        """Local subscriptions."""

    @property
    def shared(self) -> int:
        """Those of them in share groups."""

    @property
    def filters(self) -> int:
        """Filters that anybody wants, siblings included."""

    @property
    def wildcards(self) -> int:
        """Those of the filters that contain + or #."""

    @property
    def arrangements(self) -> Arrangements:
        """Of their wildcards."""

    def __init__(self) -> None: ...
