"""A peer in an event loop: what it hears and sends, its time, the addresses of the others, and its file."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from broker.cluster.peers.kept_file import KeptFile, KeptFileDamaged
from broker.cluster.peers.leading import GroupRules
from broker.cluster.peers.member import GroupMember
from broker.cluster.peers.messages import (
    MESSAGE_BYTES_MAX,
    Ask,
    MalformedPeerMessage,
    PeerAnswer,
    PeerMessage,
    decode,
    encode,
)

if TYPE_CHECKING:
    from broker.cluster.peers.addresses import PeerAddresses
    from broker.cluster.peers.transport import PeerTransport
    from broker.logs import Log

__all__ = ["PeerProcess"]

_RETRY_SECONDS: Final = 5.0
_SAID_SECONDS: Final = 60.0
"""What may be said again and again is said so often."""


class PeerProcess:
    """Runs a `GroupMember`; implements its events and its transport's. answered: takes the answers of leaders."""

    def __init__(
        self,
        node: str,
        is_fresh: bool,
        rules: GroupRules,
        transport: PeerTransport,
        addresses: PeerAddresses,
        file: KeptFile | None,
        log: Log,
        clock: Callable[[], float],
        wall: Callable[[], float],
        chance: random.Random,
        answered: Callable[[PeerAnswer], None],
    ) -> None:
        run = f"{chance.getrandbits(128):032x}"
        self.member = GroupMember(run, node, is_fresh, rules, self, clock, wall, chance)
        self.malformed = 0
        """Messages that could not be read."""
        self.refused = 0
        """Connections of others that were not let in."""
        self._beat = rules.timing.beat
        self._transport = transport
        self._addresses = addresses
        self._file = file
        self._log = log
        self._clock = clock
        self._answered = answered
        self._waiting: asyncio.Future[None] | None = None
        self._flushes = False
        self._tasks: list[asyncio.Task[None]] = []
        self._to_write = asyncio.Event()
        self._said: dict[tuple[str, str], float] = {}
        self._listens = False
        self._leader: str | None = None

    def begin(self) -> None:
        """Begin, if it has not. Raises what has ended it, if that was a defect."""
        if self._tasks and self._tasks[0].done():
            self._tasks[0].result()
        if not self._tasks:
            self._tasks = [asyncio.get_running_loop().create_task(self._run())]

    async def close(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._transport.close()

    def report(self) -> dict[str, Any]:
        """Return the peers as this one sees them."""
        peers = [
            {"address": address, "node": node or None, "reached": is_there}
            for address, node, is_there in self.member.peers()
        ]
        return {
            "peers": peers,
            "quorum": self.member.rules.quorum,
            "leader": self._leader,
            "keys": len(self.member.replica.keys.entries),
            "messages_malformed": self.malformed,
            "connections_refused": self.refused,
        }

    # ------------------------------------------------------------ tasks

    async def _run(self) -> None:
        await self._read_file()
        await self._listen()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look())
            group.create_task(self._tick())
            group.create_task(self._write())

    async def _read_file(self) -> None:
        if self._file is None:
            return
        try:
            found = await asyncio.to_thread(self._file.read)
        except KeptFileDamaged as error:
            self._log.error("peers_file_damaged", reason=str(error), kept_as=str(self._file.set_aside()))
        except OSError as error:
            self._log.error("peers_file_failed", reason=str(error))
        else:
            if found is not None:
                self.member.start_with(*found)

    async def _listen(self) -> None:
        while not self._listens:
            try:
                self._transport.listen(self)
                self._listens = True
            except OSError as error:
                self._say("error", "peers_listen_failed", reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _look(self) -> None:
        """Keep the addresses of the peers."""
        source, member = self._addresses, self.member
        is_resolved = True
        while True:
            try:
                found = await source.look()
            except OSError as error:
                if is_resolved:
                    self._log.error("peers_not_resolved", reason=str(error))
                is_resolved = False
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            if not is_resolved:
                self._log.info("peers_resolved", peers=len(found))
            is_resolved = True
            # whoever is heard is a peer, also while its name is being changed
            there = {address for address, _, is_there in member.peers() if is_there} if source.seconds else set()
            member.listed(found | there)
            self._transport.connect(member.addresses)
            if not source.seconds:
                return
            unlisted, until = member.unlisted, self._clock() + source.seconds
            while self._clock() < until:
                await asyncio.sleep(_RETRY_SECONDS)
                if member.unlisted != unlisted or not member.leader:
                    break

    async def _tick(self) -> None:
        while True:
            self.member.tick()
            self.member.flush()
            await asyncio.sleep(self._beat)

    async def _write(self) -> None:
        """Write what is kept when it has changed."""
        while True:
            await self._to_write.wait()
            self._to_write.clear()
            keys = self.member.replica.keys
            position = keys.kept_at
            if self._file is not None:
                try:
                    await asyncio.to_thread(self._file.write, position, list(keys.kept.values()))
                except OSError as error:
                    self._say("error", "peers_file_failed", reason=str(error))
                    self._to_write.set()
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            self.member.has_written(position.revision)
            self.flush_soon()

    # ------------------------------------------------------------ what the member tells

    def send(self, address: str, message: PeerMessage) -> None:
        """Implements GroupEvents."""
        packet = encode(replace(self.member.head, to=address), message)
        if len(packet) > MESSAGE_BYTES_MAX:
            if not isinstance(message, PeerAnswer):
                raise AssertionError(f"a message of {len(packet)} bytes: {type(message).__name__}")
            self.send(address, PeerAnswer(message.number, "denied"))
            return
        self._transport.send(address, packet)

    def applied(self) -> None:
        """Implements GroupEvents."""
        if self.member.replica.keys.kept_at.revision > self.member.written:
            if self._file is None:
                self.member.written = self.member.replica.keys.kept_at.revision
            else:
                self._to_write.set()
        self._wake()

    def leader_changed(self, node: str) -> None:
        """Implements GroupEvents."""
        if (node or None) != self._leader:
            self._leader = node or None
            if node:
                self._log.info("peers_led", host=node)
            else:
                self._log.warning("peers_not_led", reason=self.member.reason())
        self._wake()

    def founded(self, peers: int, kept: int) -> None:
        """Implements GroupEvents."""
        self._log.warning("peers_founded", peers=peers, keys=kept)

    def address_shared(self, address: str) -> None:
        """Implements GroupEvents."""
        self._log.error("peer_address_shared", address=address)

    async def changed(self) -> None:
        """Wait for the next change of keys or of the leader."""
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._waiting)

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def flush_soon(self) -> None:
        """Send what has gathered, once for all that happens in this round of the loop."""
        if not self._flushes:
            self._flushes = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes = False
        self.member.flush()

    # ------------------------------------------------------------ what the transport tells

    def arrived(self, packet: bytes) -> None:
        """Implements TransportEvents."""
        try:
            head, message = decode(packet)
        except MalformedPeerMessage as error:
            self.malformed += 1
            self._say("warning", "peer_message_malformed", reason=str(error))
            return
        if isinstance(message, Ask):
            number, address = message.number, head.address

            def reply(answer: PeerAnswer) -> None:
                self.send(address, PeerAnswer(number, answer.outcome, answer.value, answer.found))

            self.member.ask(message.question, reply)
        elif isinstance(message, PeerAnswer):
            self._answered(message)
        else:
            self.member.receive(head, message)
        self.flush_soon()

    def not_let_in(self, address: str) -> None:
        """Implements TransportEvents."""
        if address:
            self._say("error", "peer_does_not_let_in", address=address)
        else:
            self.refused += 1
            self._say("warning", "peers_stranger_refused")

    def _say(self, level: str, event: str, **fields: str) -> None:
        """Log what may happen again and again, at most once in _SAID_SECONDS."""
        now = self._clock()
        at = event, fields.get("address", "")
        if now - self._said.get(at, -_SAID_SECONDS) >= _SAID_SECONDS:
            self._said[at] = now
            {"error": self._log.error, "warning": self._log.warning}[level](event, **fields)
