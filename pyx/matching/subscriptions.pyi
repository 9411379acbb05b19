"""Topic Filters -> subscribers. The structure is used from Cython (subscriptions.pxd); Python sees how large it is."""

from typing import final

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
    def arrangement_count(self) -> int:
        """Arrangements of wildcards that these have: a topic is matched by at most one filter of each."""

    def brings_arrangement(self, text: bytes) -> bool:
        """Whether this valid Topic Filter (without $share) has wildcards, arranged as in no other one."""

    def __init__(self) -> None: ...
