"""What can go wrong between a host and etcd: restarts, a dead or a frozen endpoint, credentials, certificates."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from broker.cluster.contract import Compacted, CoordinationError, Denied, Put, Unreachable
from broker.cluster.etcd import CALL_SECONDS, Etcd, EtcdAddress
from broker.cluster.etcd_messages import etcdrpc
from tests.certificates import certificates
from tests.cluster.etcd_process import EtcdProcess, etcd_process


@pytest.fixture
def server() -> Iterator[EtcdProcess]:
    with etcd_process() as running:
        yield running


@contextlib.asynccontextmanager
async def connected(*endpoints: str, **options: object) -> AsyncIterator[Etcd]:
    one = Etcd(EtcdAddress(endpoints, **options))  # type: ignore[arg-type]
    try:
        yield one
    finally:
        await one.close()


async def put(one: Etcd, key: bytes, value: bytes) -> int:
    """Write a key, again and again until etcd takes it."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(Unreachable):
                return (await one.transact([], [Put(key, value)])).revision
            await asyncio.sleep(0.05)


def test_a_watch_outlives_a_restart_and_misses_nothing(server: EtcdProcess) -> None:
    async def run() -> None:
        async with connected(server.endpoint) as one, connected(server.endpoint) as other:
            at = await put(one, b"/w/0", b"")
            watch = one.watch(b"/w/", at)
            seen: list[bytes] = []

            async def see() -> None:
                async for changes in watch:
                    seen.extend(each.key for each in changes.changes)
                    if seen[-1:] == [b"/w/last"]:
                        return

            seeing = asyncio.create_task(see())
            expected = []
            for number in range(3):
                for key in (b"/w/%d" % number, b"/w/again"):
                    await put(other, key, b"")
                    expected.append(key)
                server.stop()
                with pytest.raises(Unreachable):
                    await other.transact([], [Put(b"/w/no", b"")])
                await asyncio.to_thread(server.start)
            await put(other, b"/w/last", b"")
            async with asyncio.timeout(60):
                await seeing
            assert seen == [*expected, b"/w/last"]

    asyncio.run(run())


def test_a_lease_outlives_a_restart_of_etcd(server: EtcdProcess) -> None:
    async def run() -> None:
        async with connected(server.endpoint) as one:
            lease = await one.grant(60)
            assert (await one.transact([], [Put(b"k", b"", lease)])).done
            server.stop()
            await asyncio.to_thread(server.start)
            async with asyncio.timeout(60):
                while True:
                    with contextlib.suppress(Unreachable):
                        assert await one.keep_alive(lease) == 60
                        break
                    await asyncio.sleep(0.05)
            assert await one.read(b"k") is not None

    asyncio.run(run())


def test_another_endpoint_is_used_when_one_is_dead(server: EtcdProcess) -> None:
    async def run() -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))  # nobody listens
            async with connected(f"127.0.0.1:{reserved.getsockname()[1]}", server.endpoint) as one:
                assert await one.read(b"k") is None  # a read is tried at each
            async with connected(f"127.0.0.1:{reserved.getsockname()[1]}", server.endpoint) as one:
                with pytest.raises(Unreachable):
                    await one.transact([], [Put(b"k", b"1")])  # a transaction is not
                assert (await one.transact([], [Put(b"k", b"1")])).done
            async with connected(f"127.0.0.1:{reserved.getsockname()[1]}", server.endpoint) as one:
                async with asyncio.timeout(30):
                    assert (await anext(one.watch(b"k", 1))).changes[0].key == b"k"

    asyncio.run(run())


def test_an_etcd_that_is_stopped_delays_nobody_for_long(server: EtcdProcess) -> None:
    async def run() -> None:
        async with connected(server.endpoint) as one:
            lease = await one.grant(60)
            server.freeze()
            try:
                for call in (
                    lambda: one.read(b"k"),
                    lambda: one.transact([], [Put(b"k", b"")]),
                    lambda: one.grant(60),
                    lambda: one.keep_alive(lease),
                ):
                    begun = time.monotonic()
                    with pytest.raises(Unreachable):
                        await call()
                    assert time.monotonic() - begun >= 0.9 * CALL_SECONDS
            finally:
                server.thaw()
            assert await one.keep_alive(lease) == 60

    asyncio.run(run())


# ------------------------------------------------------------ who we are


async def add_users(endpoint: str, rights: bytes = b"/mqttd/") -> None:
    """Switch authentication on: root, and a user mqttd who may do everything below a prefix."""
    import grpc

    async with grpc.aio.insecure_channel(endpoint) as channel:
        auth = etcdrpc.AuthStub(channel)
        for role in ("root", "mqttd"):
            await auth.RoleAdd(etcdrpc.AuthRoleAddRequest(name=role))
            await auth.UserAdd(etcdrpc.AuthUserAddRequest(name=role, password=f"{role}'s"))
            await auth.UserGrantRole(etcdrpc.AuthUserGrantRoleRequest(user=role, role=role))
        grant = etcdrpc.AuthRoleGrantPermissionRequest(name="mqttd")
        grant.perm.permType = grant.perm.READWRITE
        grant.perm.key, grant.perm.range_end = rights, rights[:-1] + bytes([rights[-1] + 1])
        await auth.RoleGrantPermission(grant)
        await auth.AuthEnable(etcdrpc.AuthEnableRequest())


def test_user_and_password_also_after_a_restart(server: EtcdProcess) -> None:
    async def run() -> None:
        await add_users(server.endpoint)
        async with connected(server.endpoint, user="mqttd", password="mqttd's") as one:
            at = await put(one, b"/mqttd/a", b"1")
            lease = await one.grant(60)
            server.stop()  # it forgets its tokens
            await asyncio.to_thread(server.start)
            await put(one, b"/mqttd/a", b"2")
            assert await one.keep_alive(lease) == 60
            async with asyncio.timeout(60):
                changes = await anext(one.watch(b"/mqttd/", at))
            assert [each.entry and each.entry.value for each in changes.changes] == [b"2"]

    asyncio.run(run())


def test_a_watch_outlives_a_restart_that_forgets_its_token(server: EtcdProcess) -> None:
    async def run() -> None:
        await add_users(server.endpoint)
        async with connected(server.endpoint, user="mqttd", password="mqttd's") as one:
            at = await put(one, b"/mqttd/a", b"1")
            watch = one.watch(b"/mqttd/", at)
            await put(one, b"/mqttd/a", b"2")
            async with asyncio.timeout(60):
                assert [each.key for each in (await anext(watch)).changes] == [b"/mqttd/a"]
            server.stop()
            await asyncio.to_thread(server.start)
            following = asyncio.ensure_future(anext(watch))  # before any call has renewed the token
            await asyncio.sleep(0.5)
            async with connected(server.endpoint, user="mqttd", password="mqttd's") as other:
                await put(other, b"/mqttd/b", b"3")
            async with asyncio.timeout(60):
                assert [each.key for each in (await following).changes] == [b"/mqttd/b"]

    asyncio.run(run())


def test_an_etcd_that_has_lost_its_data(server: EtcdProcess) -> None:
    """Its revisions begin anew: whoever watches has to read everything again."""

    async def run() -> None:
        async with connected(server.endpoint) as one:
            for _ in range(20):
                at = await put(one, b"k", b"")
            server.stop()
            shutil.rmtree(server.folder / "data")
            await asyncio.to_thread(server.start)
            await put(one, b"k", b"")
            with pytest.raises(Compacted, match="lost data"):
                async with asyncio.timeout(60):
                    await anext(one.watch(b"k", at))

    asyncio.run(run())


def test_a_certificate_without_an_authority(certificates: Path) -> None:
    with pytest.raises(ValueError, match="authority"):
        Etcd(EtcdAddress(("127.0.0.1:1",), certificate=certificates / "client.pem"))


def test_whoever_is_refused_is_told_so(server: EtcdProcess) -> None:
    async def refused(one: Etcd, key: bytes) -> None:
        for call in (
            lambda: one.read(key),
            lambda: one.transact([], [Put(key, b"")]),
            lambda: anext(one.watch(key, 1)),
        ):
            with pytest.raises(Denied, match=server.endpoint):
                async with asyncio.timeout(30):
                    await call()

    async def run() -> None:
        async with connected(server.endpoint, user="mqttd", password="mqttd's") as one:
            with pytest.raises(Denied, match="not enabled"):
                await one.read(b"/mqttd/a")
        await add_users(server.endpoint)
        async with connected(server.endpoint, user="mqttd", password="wrong") as one:
            await refused(one, b"/mqttd/a")
        async with connected(server.endpoint) as one:
            await refused(one, b"/mqttd/a")
        async with connected(server.endpoint, user="mqttd", password="mqttd's") as one:
            await refused(one, b"/others/a")
            assert await one.read(b"/mqttd/a") is None

    asyncio.run(run())


@pytest.fixture(scope="module", name="certificates")
def in_a_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates, as `tests.certificates` makes them."""
    folder = tmp_path_factory.mktemp("certificates")
    certificates(folder)
    return folder


def test_certificates_of_both_sides(certificates: Path) -> None:
    files = {name: str(certificates / name) for name in ("ca.pem", "server.pem", "server.key")}
    options = (
        *("--cert-file", files["server.pem"], "--key-file", files["server.key"]),
        *("--trusted-ca-file", files["ca.pem"], "--client-cert-auth"),
    )

    async def run(endpoint: str) -> None:
        ours = {"certificate": certificates / "client.pem", "key": certificates / "client.key"}
        async with connected(endpoint, ca=certificates / "ca.pem", **ours) as one:
            await put(one, b"k", b"1")
            assert (await one.read(b"k")) is not None
        for wrong in ({"ca": certificates / "other-ca.pem", **ours}, {"ca": certificates / "ca.pem"}, {}):
            async with connected(endpoint, **wrong) as one:
                with pytest.raises(CoordinationError, match=endpoint):
                    await one.read(b"k")
        with pytest.raises(OSError, match=r"missing\.pem"):
            Etcd(EtcdAddress((endpoint,), ca=certificates / "missing.pem"))

    with etcd_process(options, "https") as server:
        asyncio.run(run(server.endpoint))
