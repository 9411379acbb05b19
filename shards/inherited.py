"""Resources made before the first fork that outlive every worker, so that a worker's death loses nothing in them:

    listeners        per worker and address: connections in the backlog of a dead worker wait for its successor
    hand-off pairs   per worker: connections passed to a worker that is down are taken by its successor
    shared rows      per worker: counters (written by the worker alone) and a heartbeat
    clock            of all: the highest message number, and the broker's time (`shards.clock`)
    owner sockets    per worker of a host in a cluster: its questions for the control process, whoever of both dies
    admin listeners  of the control process, if there is one

Each child gets its part of them, and closes the rest.
"""

from __future__ import annotations

import mmap
import socket
from typing import Any

from shards import handoff, listening, rows
from shards.clock import HostClock
from shards.listening import Listeners
from shards.worker_channel import ControlChannel, Message, WorkerChannel

__all__ = ["Inherited"]


class Inherited:
    """The resources of one broker. `row_bytes`: size of a counter row; `heartbeat`: its index among the row's u64."""

    def __init__(
        self,
        workers: int,
        listeners: Listeners,
        row_bytes: int,
        heartbeat: int,
        admin: list[socket.socket],
        clock: HostClock,
        runtime_dir: str,
        identity: Any = None,
    ) -> None:
        self._workers = workers
        self.listeners = listeners
        self._handoffs = [handoff.pair() for _ in range(workers)]
        self._owner_sockets = [] if identity is None else [handoff.pair() for _ in range(workers)]
        self.rows = rows.shared_rows(workers, row_bytes)
        self.clock = clock
        self._admin = admin
        self._runtime_dir = runtime_dir
        self._identity = identity
        beats = memoryview(mmap.mmap(-1, 16)).cast("Q")
        self.beat = beats[:1]
        """The supervisor's own heartbeat."""
        self.control_heartbeat = beats[1:]
        self.heartbeats = [row[heartbeat * 8 : heartbeat * 8 + 8].cast("Q") for row in self.rows]
        """Heartbeats of the workers."""

    def worker_channel(
        self, index: int, incarnations: list[int], control: socket.socket, settings: Any, began: float
    ) -> WorkerChannel:
        """Return what that worker gets at its fork; its own incarnation is among `incarnations`."""
        return WorkerChannel(
            index=index,
            workers=self._workers,
            incarnation=incarnations[index],
            incarnations=incarnations,
            listeners=self.listeners.of(index),
            row=self.rows[index],
            rows=self.rows,
            heartbeat=self.heartbeats[index],
            handoff_receive=self._handoffs[index][1],
            handoff_send=[send for send, _ in self._handoffs],
            control=control,
            runtime_dir=self._runtime_dir,
            settings=settings,
            clock=self.clock,
            identity=self._identity,
            owner_socket=self._owner_sockets[index][0] if self._owner_sockets else None,
            began=began,
        )

    def control_channel(
        self, control: socket.socket, settings: Any, began: float, supervisor: int, hosts: Message
    ) -> ControlChannel:
        """Return what the control process gets."""
        return ControlChannel(
            index=self._workers,
            workers=self._workers,
            listeners=self._admin,
            rows=self.rows,
            heartbeat=self.control_heartbeat,
            supervisor_heartbeat=self.beat,
            control=control,
            runtime_dir=self._runtime_dir,
            settings=settings,
            began=began,
            supervisor_pid=supervisor,
            identity=self._identity,
            owner_sockets=[control_end for _, control_end in self._owner_sockets],
            hosts=hosts,
        )

    def leave(self, channel: WorkerChannel | ControlChannel) -> None:
        """In a child: close everything that it has not been given."""
        for index in range(self._workers):
            if index != channel.index:
                self.listeners.close_of(index)  # else this process would keep a stopped sibling's backlog open
        for index, (_, receive) in enumerate(self._handoffs):
            if index != channel.index:
                receive.close()
        for index, (worker_end, control_end) in enumerate(self._owner_sockets):
            if isinstance(channel, WorkerChannel):
                control_end.close()
            if index != channel.index:
                worker_end.close()
        if isinstance(channel, WorkerChannel):
            for listener in self._admin:
                listener.close()
        else:
            for send, _ in self._handoffs:
                send.close()

    def close(self) -> None:
        """Close every socket."""
        self.listeners.close()
        listening.close([self._admin])
        for send, receive in (*self._handoffs, *self._owner_sockets):
            send.close()
            receive.close()
