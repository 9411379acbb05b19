"""The router of one worker."""

from typing import final

from pyx.core.counters import Row
from pyx.core.limits import Limits
from pyx.core.timers import TimerWheel
from pyx.delivery.answering import Answering
from pyx.delivery.back_pressure import BackPressure
from pyx.delivery.backlog import Backlog
from pyx.delivery.bounding import Bounding
from pyx.delivery.ending import Ending
from pyx.delivery.enrolling import Enrolling
from pyx.delivery.fanout import FanOut
from pyx.delivery.handing_on import HandingOn
from pyx.delivery.journal import Journal
from pyx.delivery.late_answers import LateAnswers
from pyx.delivery.moving import Moving
from pyx.delivery.peers import Peers
from pyx.delivery.publish_in_hand import PublishInHand
from pyx.delivery.restoring import Restoring
from pyx.delivery.retaining import Retaining
from pyx.delivery.router_state import RouterState
from pyx.delivery.session import Session
from pyx.delivery.sharing import Sharing
from pyx.delivery.siblings import Siblings
from pyx.delivery.subscribing import Subscribing
from pyx.delivery.sweeping import Sweeping
from pyx.delivery.windows import Windows
from pyx.matching.retained import Retained
from pyx.matching.subscriptions import Subscriptions
from pyx.protocol.message import Message

STRATEGIES: dict[str, int]
WAITS_FLAG: int
EVEN_FLAG: int
SPREAD_FLAG: int

@final
class Router:
    """The router of one worker."""

    @property
    def state(self) -> RouterState: ...
    @property
    def in_hand(self) -> PublishInHand: ...
    @property
    def journal(self) -> Journal: ...
    @property
    def peers(self) -> Peers: ...
    @property
    def answering(self) -> Answering: ...
    @property
    def windows(self) -> Windows: ...
    @property
    def restoring(self) -> Restoring: ...
    @property
    def moving(self) -> Moving: ...
    @property
    def late_answers(self) -> LateAnswers: ...
    @property
    def back_pressure(self) -> BackPressure: ...
    @property
    def bounding(self) -> Bounding: ...
    @property
    def sweeping(self) -> Sweeping: ...
    @property
    def backlog(self) -> Backlog: ...
    @property
    def retaining(self) -> Retaining: ...
    @property
    def fanout(self) -> FanOut: ...
    @property
    def enrolling(self) -> Enrolling: ...
    @property
    def sharing(self) -> Sharing: ...
    @property
    def handing_on(self) -> HandingOn: ...
    @property
    def siblings(self) -> Siblings: ...
    @property
    def ending(self) -> Ending: ...
    @property
    def subscribing(self) -> Subscribing: ...
    def __new__(
        cls,
        worker: int,
        workers: int,
        subscriptions: Subscriptions,
        limits: Limits,
        counters: Row,
        timers: TimerWheel,
        retained: Retained | None = None,
    ) -> Router: ...
    def abandon(self) -> None: ...
    def commit(self, at_once: bool = False) -> None: ...
    def persisted_counters(self, sessions: int) -> bytes: ...
    @property
    def is_appending(self) -> bool:
        """Whether a block of very many indexes is being appended: until its end nothing can be committed."""
    def finish_tick(self) -> None: ...
    def publish_message(self, m: Message, origin: Session | None = None) -> int: ...
    def publish_here(self, m: Message) -> None: ...

def expiry_offset(properties: bytes) -> int: ...
