"""Coordination by the peers of a cluster: `GroupMember` with sockets, a clock, and a file.

Whatever is asked for, the leader is asked for it, and waited for as for etcd. Keys are read here once the leader has
said up to which revision; watches follow what is applied here.

Where the quorum may be no majority (`GroupRules.waits_for_all`), what a side of a cut network has agreed on may not
have happened when the network is whole. So a lease counts only for the process that was granted it, until its peer
takes over the keys of another side: after that it has ended, and the host claims everything anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Compacted,
    Delete,
    Denied,
    Entry,
    KeyChanges,
    KeyCondition,
    LeaseEnded,
    Outcome,
    Put,
    Unreachable,
    View,
)
from broker.cluster.peers.leading import GroupRules, Reply
from broker.cluster.peers.member import GroupMember
from broker.cluster.peers.messages import ASK_BYTES_MAX, Ask, PeerAnswer, PeerQuestion, size_of
from broker.cluster.peers.running import PeerProcess

if TYPE_CHECKING:
    from broker.cluster.peers.addresses import PeerAddresses
    from broker.cluster.peers.kept_file import KeptFile
    from broker.cluster.peers.transport import PeerTransport
    from broker.logs import Log

__all__ = ["CALL_SECONDS", "PeerCoordination"]

CALL_SECONDS: Final = 2.0
"""Time for one call."""
_AGAIN_SECONDS: Final = 0.05
_BEHIND_SECONDS: Final = 5.0
"""A watch waits for so long for a revision that is not known here."""


class PeerCoordination:
    """Implements `broker.cluster.contract.Coordination`. Used in one event loop; it begins with the first call.

    node: of this host. is_fresh: it has had no lease since its start. file: None: nothing is kept on disk.
    """

    def __init__(
        self,
        node: str,
        is_fresh: bool,
        rules: GroupRules,
        transport: PeerTransport,
        addresses: PeerAddresses,
        file: KeptFile | None,
        log: Log,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
        chance: random.Random | None = None,
    ) -> None:
        chance = random.SystemRandom() if chance is None else chance
        self._rules = rules
        self._process = PeerProcess(
            node, is_fresh, rules, transport, addresses, file, log, clock, wall, chance, self._on_answer
        )
        self._number = 0
        self._asked: dict[int, asyncio.Future[PeerAnswer]] = {}
        self._granted: set[int] = set()
        self._discards = 0

    @property
    def member(self) -> GroupMember:
        """The peer that this host is."""
        return self._process.member

    def begin(self) -> None:
        """Look for the others, if it is not done yet."""
        self._process.begin()

    def report(self) -> dict[str, Any]:
        """Return the peers as this one sees them, for operators."""
        return self._process.report()

    async def close(self) -> None:
        """Implements Coordination."""
        await self._process.close()
        for answer in self._asked.values():
            answer.cancel()

    # ------------------------------------------------------------ asking the leader

    async def _decide(self, question: PeerQuestion, is_repeatable: bool) -> PeerAnswer:
        """Return the answer of the leader. Raises Unreachable, and Denied."""
        self._process.begin()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CALL_SECONDS
        while (left := deadline - loop.time()) > 0:
            answer = await self._ask_once(question, min(left, CALL_SECONDS / 2) if is_repeatable else left)
            if answer.outcome == "elsewhere":
                await asyncio.sleep(_AGAIN_SECONDS)
            elif answer.outcome == "denied":
                raise Denied("peers: the answer is too large")
            elif answer.outcome != "unknown":
                return answer
            elif not is_repeatable:
                raise Unreachable("peers: the one that keeps the keys did not answer, or does not keep them any more")
        raise Unreachable(f"peers: {self.member.reason()}" if not self.member.leader else "peers: no answer in time")

    async def _ask_once(self, question: PeerQuestion, seconds: float) -> PeerAnswer:
        member = self.member
        answer: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()
        self._number = number = self._number + 1
        if member.leads:
            member.ask(question, _settler(answer))
            self._process.flush_soon()
        elif member.leader_address:
            self._asked[number] = answer
            self._process.send(member.leader_address, Ask(number, question))
        else:
            return PeerAnswer(0, "elsewhere")
        try:
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            return PeerAnswer(0, "unknown")
        finally:
            self._asked.pop(number, None)

    def _on_answer(self, answer: PeerAnswer) -> None:
        asked = self._asked.get(answer.number)
        if asked is not None and not asked.done():
            asked.set_result(answer)

    async def _read_up_to_now(self) -> None:
        """Wait until what is here is as new as what the leader had when this was called."""
        member = self.member
        while True:
            discards = member.replica.discards
            answer = await self._decide(PeerQuestion("read"), True)
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    while member.replica.keys.at.revision < answer.value and member.replica.discards == discards:
                        await self._process.changed()
            except TimeoutError:
                raise Unreachable("peers: this one has not got the keys yet") from None
            if member.replica.discards == discards:
                return

    # ------------------------------------------------------------ keys

    async def read(self, key: bytes) -> Entry | None:
        """Implements Coordination."""
        await self._read_up_to_now()
        return self.member.replica.keys.entries.get(key)

    async def read_all(self, prefix: bytes) -> View:
        """Implements Coordination."""
        if not prefix:
            raise ValueError("a prefix has at least one byte")
        await self._read_up_to_now()
        keys = self.member.replica.keys
        return View(keys.at.revision, keys.with_prefix(prefix))

    async def read_page(self, prefix: bytes, after: bytes, limit: int) -> View:
        """Implements Coordination."""
        if not prefix or limit < 1:
            raise ValueError("a page has a prefix of at least one byte, and at least one key")
        await self._read_up_to_now()
        keys = self.member.replica.keys
        return View(keys.at.revision, keys.first_with_prefix(prefix, after, limit))

    async def transact(self, conditions: Sequence[KeyCondition], operations: Sequence[Put | Delete]) -> Outcome:
        """Implements Coordination."""
        if len(conditions) > OPERATIONS_MAX or len(operations) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} conditions and as many operations")
        if len({each.key for each in operations}) < len(operations):
            raise ValueError("a transaction names each key in one operation at most")
        question = PeerQuestion("transact", 0, conditions, operations)
        if (size := size_of(question)) > ASK_BYTES_MAX:
            raise Denied(f"peers: a transaction of {size} bytes; {ASK_BYTES_MAX} are allowed")
        for each in operations:
            if isinstance(each, Put) and each.lease:
                self._check(each.lease)
        answer = await self._decide(question, False)
        if answer.outcome == "lease_ended":
            raise LeaseEnded("a lease to bind to has ended")
        return Outcome(answer.outcome == "done", answer.value, answer.found)

    # ------------------------------------------------------------ leases

    def _check(self, lease: int) -> None:
        """Raise LeaseEnded if a lease does not count for this process."""
        if not self._rules.waits_for_all:
            return
        if self._discards != self.member.replica.discards:
            self._discards = self.member.replica.discards
            self._granted.clear()
        if lease not in self._granted:
            raise LeaseEnded(f"lease {lease:x} is of another process, or of a side of the network whose keys are gone")

    async def grant(self, seconds: int) -> int:
        """Implements Coordination."""
        discards = self.member.replica.discards
        lease = (await self._decide(PeerQuestion("grant", seconds), True)).value
        if discards == self._discards == self.member.replica.discards or not self._granted:
            self._discards = self.member.replica.discards
            self._granted.add(lease)
        return lease

    async def keep_alive(self, lease: int) -> int:
        """Implements Coordination."""
        try:
            self._check(lease)
            answer = await self._decide(PeerQuestion("renew", lease), True)
            self._check(lease)
        except LeaseEnded:
            await self.revoke(lease)  # it may be known on the side whose keys have stayed
            raise
        if answer.outcome == "lease_ended":
            raise LeaseEnded(f"lease {lease:x} has ended")
        return answer.value

    async def revoke(self, lease: int) -> None:
        """Implements Coordination."""
        self._granted.discard(lease)
        await self._decide(PeerQuestion("revoke", lease), True)

    # ------------------------------------------------------------ watches

    async def watch(self, prefix: bytes, revision: int) -> AsyncIterator[KeyChanges]:
        """Implements Coordination."""
        self._process.begin()
        replica = self.member.replica
        discards = replica.discards
        try:
            async with asyncio.timeout(_BEHIND_SECONDS):
                while replica.keys.at.revision < revision:
                    await self._process.changed()
        except TimeoutError:
            raise Compacted(f"revision {revision} is not known") from None
        while True:
            if replica.discards != discards:
                raise Compacted("the keys of another side of the network were taken over")
            at, changes = replica.changes_behind(revision)
            found = [each for each in changes if each.key.startswith(prefix)]
            revision = at
            if found:
                yield KeyChanges(at, found)
            else:
                await self._process.changed()


def _settler(answer: asyncio.Future[PeerAnswer]) -> Reply:
    def settle(said: PeerAnswer) -> None:
        if not answer.done():
            answer.set_result(said)

    return settle
