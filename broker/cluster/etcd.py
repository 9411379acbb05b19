"""Coordination by etcd 3.4 or newer, over grpc.aio with the messages of the package etcd3.

Only the control process imports this module: a process that has used gRPC must not fork.

One endpoint is used at a time. When a call fails there, later calls go to the next one; each has a connection that gRPC
keeps and restores. A call ends after CALL_SECONDS; reads are then tried at the other endpoints, transactions are not,
because they may have been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from broker.cluster.contract import (
    OPERATIONS_MAX,
    Compacted,
    CoordinationError,
    Delete,
    Denied,
    Entry,
    KeyChange,
    KeyChanges,
    KeyCondition,
    LeaseEnded,
    Outcome,
    Put,
    Unreachable,
    View,
)
from broker.cluster.etcd_messages import etcdrpc

__all__ = ["CALL_SECONDS", "Etcd", "EtcdAddress"]

CALL_SECONDS: Final = 2.0
"""Time for one call at one endpoint."""
_PAGE: Final = 1000
"""Keys read by one call."""
_WATCH_RETRY_SECONDS: Final = 0.1
_WATCH_RETRY_SECONDS_MAX: Final = 2.0

_CHANNEL: Final = (
    ("grpc.max_receive_message_length", -1),  # 4 MB by default: a page of large values, or a watch that was away
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2000),  # also the time for connecting
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 10_000),  # etcd refuses less than 5 s
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),  # 2 by default: then a silent peer of a watch is noticed after 80 s
)
_Code: Final = grpc.StatusCode
_REFUSED: Final = (
    _Code.FAILED_PRECONDITION,
    _Code.INVALID_ARGUMENT,
    _Code.OUT_OF_RANGE,
    _Code.PERMISSION_DENIED,
    _Code.RESOURCE_EXHAUSTED,
    _Code.UNAUTHENTICATED,
    _Code.UNIMPLEMENTED,
)
_OLD_RIGHTS: Final = "revision of auth store is old"


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """Where etcd is and who we are there. `endpoints`: each "host:port". Paths are of PEM files."""

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = ""
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


def _error(error: grpc.RpcError, endpoint: str) -> CoordinationError:
    """Return what a failed call means."""
    code, details = error.code(), error.details() or ""
    said = f"etcd at {endpoint}: {details or code.name}"
    if code is _Code.NOT_FOUND and "lease" in details:
        return LeaseEnded(said)
    if code is _Code.OUT_OF_RANGE and "compacted" in details:
        return Compacted(said)
    if "too many requests" in details:
        return Unreachable(said)
    return Denied(said) if code in _REFUSED else Unreachable(said)


def _entry(found: Any) -> Entry:
    return Entry(found.key, found.value, found.create_revision, found.mod_revision, found.lease)


def _end_of(prefix: bytes) -> bytes:
    """Return the first key behind all that begin with a prefix; zero: there is none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def _compare(condition: KeyCondition) -> Any:
    compare = etcdrpc.Compare
    return compare(key=condition.key, target=compare.MOD, result=compare.EQUAL, mod_revision=condition.changed)


def _operation(operation: Put | Delete) -> Any:
    if isinstance(operation, Put):
        put = etcdrpc.PutRequest(key=operation.key, value=operation.value, lease=operation.lease)
        return etcdrpc.RequestOp(request_put=put)
    return etcdrpc.RequestOp(request_delete_range=etcdrpc.DeleteRangeRequest(key=operation.key))


class _Endpoint:
    """The connection to one endpoint, and our token there."""

    def __init__(self, address: EtcdAddress, endpoint: str) -> None:
        self.name = endpoint
        self._address = address
        self.channel = grpc.aio.insecure_channel(endpoint, _CHANNEL) if address.ca is None else self._secured()
        self.kv = etcdrpc.KVStub(self.channel)
        self.leases = etcdrpc.LeaseStub(self.channel)
        self.watches = etcdrpc.WatchStub(self.channel)
        self._metadata: tuple[tuple[str, str], ...] | None = None if address.user else ()

    def _secured(self) -> Any:
        address = self._address
        ca, key, certificate = (
            None if path is None else path.read_bytes() for path in (address.ca, address.key, address.certificate)
        )
        return grpc.aio.secure_channel(self.name, grpc.ssl_channel_credentials(ca, key, certificate), _CHANNEL)

    async def call(self, work: Callable[[_Endpoint, tuple[tuple[str, str], ...]], Awaitable[Any]]) -> Any:
        """Return what `work(self, metadata)` returns, with a new token if etcd does not know the one we have any more:
        it forgets them when it restarts.
        """
        metadata = self._metadata
        try:
            if metadata is None:
                metadata = await self._authenticate()
            try:
                return await work(self, metadata)
            except grpc.RpcError as error:
                has_expired = error.code() is _Code.UNAUTHENTICATED or _OLD_RIGHTS in (error.details() or "")
                if not has_expired or not self._address.user:
                    raise
            return await work(self, await self._authenticate())  # the request was refused unread
        except grpc.RpcError as error:
            raise _error(error, self.name) from error

    def forget_token(self) -> None:
        """Ask for a new one before the next call."""
        if self._address.user:
            self._metadata = None

    async def _authenticate(self) -> tuple[tuple[str, str], ...]:
        request = etcdrpc.AuthenticateRequest(name=self._address.user, password=self._address.password)
        answer = await etcdrpc.AuthStub(self.channel).Authenticate(request, timeout=CALL_SECONDS)
        self._metadata = (("token", answer.token),)
        return self._metadata


class Etcd:
    """Implements `broker.cluster.contract.Coordination`. Used in one event loop."""

    def __init__(self, address: EtcdAddress) -> None:
        """Connect at the first call. Raises OSError for a file that cannot be read, ValueError for a certificate
        without an authority.
        """
        if address.ca is None and (address.certificate or address.key):
            raise ValueError("a certificate for etcd needs the authority of etcd's own (ca)")
        self._endpoints = [_Endpoint(address, each) for each in address.endpoints]
        self._at = 0

    async def close(self) -> None:
        """Implements Coordination."""
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    def _avoid(self, endpoint: _Endpoint) -> None:
        """Let later calls go to the next endpoint, if they would still go to this one."""
        if self._endpoints[self._at] is endpoint:
            self._at = (self._at + 1) % len(self._endpoints)

    async def _once(self, work: Callable[[_Endpoint, Any], Awaitable[Any]]) -> Any:
        endpoint = self._endpoints[self._at]
        try:
            return await endpoint.call(work)
        except Unreachable:
            self._avoid(endpoint)
            raise

    async def _anywhere(self, work: Callable[[_Endpoint, Any], Awaitable[Any]]) -> Any:
        """Try it at each endpoint: only what may be done twice."""
        for _ in self._endpoints[1:]:
            try:
                return await self._once(work)
            except Unreachable:
                continue
        return await self._once(work)

    # ------------------------------------------------------------ keys

    async def read(self, key: bytes) -> Entry | None:
        """Implements Coordination."""
        answer = await self._range(etcdrpc.RangeRequest(key=key))
        return _entry(answer.kvs[0]) if answer.kvs else None

    async def read_all(self, prefix: bytes) -> View:
        """Implements Coordination."""
        if not prefix:
            raise ValueError("a prefix has at least one byte")
        while True:
            try:
                return await self._read_pages(prefix)
            except Compacted:
                continue  # it was read for so long that its revision is not kept any more

    async def _read_pages(self, prefix: bytes) -> View:
        entries: list[Entry] = []
        begin, end, revision = prefix, _end_of(prefix), 0
        while True:
            answer = await self._range(etcdrpc.RangeRequest(key=begin, range_end=end, limit=_PAGE, revision=revision))
            revision = revision or answer.header.revision
            entries += map(_entry, answer.kvs)
            if not answer.more:
                return View(revision, entries)
            begin = entries[-1].key + b"\0"

    async def read_page(self, prefix: bytes, after: bytes, limit: int) -> View:
        """Implements Coordination."""
        if not prefix or limit < 1:
            raise ValueError("a page has a prefix of at least one byte, and at least one key")
        begin = after + b"\0" if after else prefix
        answer = await self._range(etcdrpc.RangeRequest(key=begin, range_end=_end_of(prefix), limit=limit))
        return View(answer.header.revision, [_entry(each) for each in answer.kvs])

    async def _range(self, request: Any) -> Any:
        return await self._anywhere(
            lambda endpoint, metadata: endpoint.kv.Range(request, timeout=CALL_SECONDS, metadata=metadata)
        )

    async def transact(self, conditions: Sequence[KeyCondition], operations: Sequence[Put | Delete]) -> Outcome:
        """Implements Coordination."""
        if len(conditions) > OPERATIONS_MAX or len(operations) > OPERATIONS_MAX:
            raise ValueError(f"a transaction has at most {OPERATIONS_MAX} conditions and as many operations")
        if len({each.key for each in operations}) < len(operations):
            raise ValueError("a transaction names each key in one operation at most")
        request = etcdrpc.TxnRequest(
            compare=map(_compare, conditions),
            success=map(_operation, operations),
            failure=[etcdrpc.RequestOp(request_range=etcdrpc.RangeRequest(key=each.key)) for each in conditions],
        )
        answer = await self._once(
            lambda endpoint, metadata: endpoint.kv.Txn(request, timeout=CALL_SECONDS, metadata=metadata)
        )
        if answer.succeeded:
            return Outcome(True, answer.header.revision)
        found = (each.response_range.kvs for each in answer.responses)
        return Outcome(False, answer.header.revision, [_entry(kvs[0]) if kvs else None for kvs in found])

    # ------------------------------------------------------------ leases

    async def grant(self, seconds: int) -> int:
        """Implements Coordination."""
        request = etcdrpc.LeaseGrantRequest(TTL=seconds)
        answer = await self._anywhere(
            lambda endpoint, metadata: endpoint.leases.LeaseGrant(request, timeout=CALL_SECONDS, metadata=metadata)
        )
        lease: int = answer.ID
        return lease

    async def keep_alive(self, lease: int) -> int:
        """Implements Coordination."""

        async def renew(endpoint: _Endpoint, metadata: Any) -> Any:
            call = endpoint.leases.LeaseKeepAlive(timeout=CALL_SECONDS, metadata=metadata)
            try:
                await call.write(etcdrpc.LeaseKeepAliveRequest(ID=lease))
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise Unreachable(f"etcd at {endpoint.name}: it ended the stream of a lease")
                return answer
            finally:
                call.cancel()

        seconds: int = (await self._anywhere(renew)).TTL
        if seconds <= 0:  # etcd answers so instead of failing
            raise LeaseEnded(f"lease {lease:x} has ended")
        return seconds

    async def revoke(self, lease: int) -> None:
        """Implements Coordination."""
        request = etcdrpc.LeaseRevokeRequest(ID=lease)
        try:
            await self._anywhere(
                lambda endpoint, metadata: endpoint.leases.LeaseRevoke(request, timeout=CALL_SECONDS, metadata=metadata)
            )
        except LeaseEnded:
            return

    # ------------------------------------------------------------ watches

    async def watch(self, prefix: bytes, revision: int) -> AsyncIterator[KeyChanges]:
        """Implements Coordination."""
        seconds = _WATCH_RETRY_SECONDS
        while True:
            endpoint = self._endpoints[self._at]
            try:
                async for changes in self._watch_at(endpoint, prefix, revision):
                    revision, seconds = changes.revision, _WATCH_RETRY_SECONDS
                    yield changes
            except Unreachable:
                self._avoid(endpoint)
            await asyncio.sleep(seconds)
            seconds = min(2 * seconds, _WATCH_RETRY_SECONDS_MAX)

    async def _watch_at(self, endpoint: _Endpoint, prefix: bytes, revision: int) -> AsyncIterator[KeyChanges]:
        create = etcdrpc.WatchCreateRequest(
            key=prefix, range_end=_end_of(prefix), start_revision=revision + 1, progress_notify=True
        )

        async def begin(endpoint: _Endpoint, metadata: Any) -> tuple[Any, Any]:
            # a member that lost its leader ends the stream, and does not stay silent
            call = endpoint.watches.Watch(metadata=(*metadata, ("hasleader", "true")))
            try:
                async with asyncio.timeout(CALL_SECONDS):
                    await call.write(etcdrpc.WatchRequest(create_request=create))
                    return call, await call.read()
            except BaseException as error:
                call.cancel()
                if isinstance(error, TimeoutError):
                    raise Unreachable(f"etcd at {endpoint.name}: no watch within {CALL_SECONDS} s") from error
                raise

        call, answer = await endpoint.call(begin)
        try:
            while answer is not grpc.aio.EOF:
                if answer.compact_revision:
                    raise Compacted(f"etcd keeps nothing before revision {answer.compact_revision}")
                if answer.created and answer.header.revision < revision:
                    raise Compacted(
                        f"etcd at {endpoint.name} is at revision {answer.header.revision}: it has lost data"
                    )
                if answer.canceled and ("auth token" in answer.cancel_reason or _OLD_RIGHTS in answer.cancel_reason):
                    endpoint.forget_token()
                    raise Unreachable(f"etcd at {endpoint.name}: {answer.cancel_reason}")
                if answer.canceled:
                    raise Denied(f"etcd at {endpoint.name} ended the watch: {answer.cancel_reason or 'no reason'}")
                if answer.events:
                    yield _changes(answer.events)
                elif not answer.created:
                    yield KeyChanges(answer.header.revision, ())
                answer = await call.read()
        except grpc.RpcError as error:
            raise _error(error, endpoint.name) from error
        finally:
            call.cancel()


def _changes(events: Sequence[Any]) -> KeyChanges:
    """Return the changes of one answer. Its own revision may be that of later ones."""
    changes = [KeyChange(each.kv.key, _entry(each.kv) if each.type == each.PUT else None) for each in events]
    return KeyChanges(events[-1].kv.mod_revision, changes)
