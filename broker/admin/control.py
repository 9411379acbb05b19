"""The control process: answers operators, load balancers and Prometheus about a running broker, over HTTP.

    GET /health         200 while the heartbeats of the supervisor and of all workers move, else 503; JSON
    GET /ready          200 while every worker serves, else, also while the broker starts or stops, 503; JSON
    GET /metrics        the counter rows as Prometheus text
    GET /api/v1/bridges the connections of bridges, and their state; 503 while a worker does not answer; JSON
    GET /api/v1/hosts   the hosts of the cluster, with the clients and sessions of each; 503 while one does not answer;
                        JSON
    GET /api/v1/owner?client_id=ID
                        the host of the cluster that owns a client id; JSON
    GET /api/v1/stores  the size and contents of each worker's store; 503 while a worker does not answer; JSON

It reads what other processes write: the counter rows, the heartbeats in them, and the "state" messages of the
supervisor. Everything else it asks the workers for (`broker.admin.workers`). It holds nothing that anybody waits for,
so it may be killed at any time: connections wait for its successor in the backlog, which belongs to the supervisor.
Errors are application/problem+json [RFC 9457].
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import time
import traceback
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

import broker
from broker.admin import host_requests
from broker.admin.host_requests import HostRequest, HostStates, OnHost
from broker.admin.metrics import BrokerState, Rows, WorkerState
from broker.admin.requests import UNKNOWN, BridgeStates, Drain, NoAnswer, StoreStats
from broker.admin.workers import Workers
from broker.config.settings import ConfigError
from broker.logs import Log, StandardLibrary
from pyx.core import counters
from pyx.core.counters import Row
from shards import stacks
from shards.heartbeats import Heartbeats
from shards.signals import ignore_with_a_line
from shards.worker_channel import HEARTBEAT_SECONDS

if TYPE_CHECKING:
    from broker.admin.cluster_parts import ClusterParts
    from broker.admin.host_answers import HostAnswers
    from broker.cluster.host import ClusterHost
    from shards.worker_channel import ControlChannel

__all__ = ["Control", "run"]

_LOOK_SECONDS = HEARTBEAT_SECONDS / 2
_HEARTBEAT_SECONDS_MAX = HEARTBEAT_SECONDS + 3.0
"""A heartbeat unchanged for longer means that the process hangs: it changes every HEARTBEAT_SECONDS, and on a starved
machine later. A process that is restarted at once beats again in time."""
_STOP_SECONDS_MAX = 1.0
"""Time that requests in progress get when the broker stops."""

_CLIENT_ID_BYTES_MAX = 65_535

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def run(channel: ControlChannel) -> int:
    """Serve until told to stop; return the exit status."""
    return asyncio.run(_serve(channel))


async def _serve(channel: ControlChannel) -> int:
    control = Control(channel)
    await control.start()
    try:
        return await control.stopped
    finally:
        await control.close()


class Control:
    """The HTTP server and the data of its answers."""

    def __init__(self, channel: ControlChannel) -> None:
        self.channel = channel
        self.loop = asyncio.get_running_loop()
        self.stopped: asyncio.Future[int] = self.loop.create_future()
        self.log = Log.of(channel.settings).bind(process="control")
        logging.getLogger().handlers[:] = [StandardLibrary(self.log)]  # asyncio and aiohttp log there
        self._broker = "starting"
        self._asking = Workers(channel.tell)
        self._answered: set[asyncio.Task[None]] = set()
        """Requests that wait for other hosts; the supervisor bounds their number."""
        self._joins: asyncio.Task[None] | None = None
        self._asked: dict[int, asyncio.Task[dict[str, Any]]] = {}
        """By worker: a request for store statistics in progress, shared by all clients that ask meanwhile."""
        self._workers: list[dict[str, Any]] = [{"state": "starting", "pid": 0, "restarts": 0}] * channel.workers
        rows = self._rows = [Row(row) for row in channel.rows]
        self._cluster: ClusterHost | None = None
        self._answers: HostAnswers | None = None
        self._report_on_peers: Callable[[], dict[str, Any]] | None = None
        if channel.settings.cluster.is_on:
            parts = importlib.import_module("broker.admin.cluster_parts")  # only a clustered host loads it
            made: ClusterParts = parts.cluster_parts(channel, self._asking, rows, self._pids, self.log)
            self._cluster, self._answers, self._report_on_peers = made
        beats: list[Callable[[], int]] = [lambda: int(channel.supervisor_heartbeat[0])]
        beats += [lambda row=row: row.get(counters.HEARTBEAT) for row in rows]  # type: ignore[misc]
        self._heartbeats = Heartbeats(beats, time.monotonic())
        self._registry = CollectorRegistry()
        names = [each.name for each in channel.settings.listeners]
        self._registry.register(Rows(channel.rows, self._state, names))
        self._runner = web.AppRunner(
            self._application(), access_log=None, handle_signals=False, shutdown_timeout=_STOP_SECONDS_MAX
        )

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._problems])
        application.router.add_get("/health", self._get_health)
        application.router.add_get("/ready", self._get_ready)
        application.router.add_get("/metrics", self._get_metrics)
        application.router.add_get("/api/v1/bridges", self._get_bridges)
        application.router.add_get("/api/v1/hosts", self._get_hosts)
        application.router.add_get("/api/v1/owner", self._get_owner)
        application.router.add_get("/api/v1/stores", self._get_stores)
        application.on_response_prepare.append(_head)
        return application

    async def start(self) -> None:
        """Listen to the supervisor, then serve."""
        self.loop.add_signal_handler(signal.SIGTERM, self._stop)
        ignore_with_a_line(
            self.loop, frozenset({stacks.SIGNAL}), lambda name: self.log.warning("signal_ignored", signal=name)
        )
        self.loop.add_reader(self.channel.control.fileno(), self._on_control)
        self._on_control()
        self._look()
        if self._cluster is not None:
            self._joins = self.loop.create_task(self._cluster.run())
            self._joins.add_done_callback(self._has_left)
        await self._runner.setup()
        for listener in self.channel.listeners:
            await web.SockSite(self._runner, listener).start()
        self.channel.ready()

    async def close(self) -> None:
        """Finish the requests in progress, and close."""
        self.loop.remove_reader(self.channel.control.fileno())
        if self._joins is not None:
            self._joins.cancel()
            await asyncio.wait([self._joins])
        for task in list(self._answered):
            task.cancel()
        if self._answers is not None and self._cluster is not None:
            await self._answers.close()
            await self._cluster.close()
        await self._runner.cleanup()

    def _has_left(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            trace = "".join(traceback.format_exception(error))
            self.log.error("cluster_failed", traceback=trace)
            os._exit(1)  # the supervisor starts another control process, which joins again

    def _stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(0)

    def _look(self) -> None:
        self.channel.heartbeat[0] += 1
        self._heartbeats.ages(time.monotonic())
        self.loop.call_later(_LOOK_SECONDS, self._look)

    def _on_control(self) -> None:
        for message in self.channel.messages():
            match message:
                case {"event": "state", "broker": str(state), "workers": list(workers)}:
                    self._broker = state
                    self._workers = workers
                case {"event": "answered", "number": int(_)}:
                    self._asking.answered(message)
                case {"event": "ask", "number": int(number), "ask": ask}:
                    task = self.loop.create_task(self._answer(number, host_requests.decode(ask)))
                    self._answered.add(task)
                    task.add_done_callback(self._answered.discard)
                case {"event": "linked", "worker": int(worker)} if self._cluster is not None:
                    self._cluster.linked(worker, message["linked"], message["hosts"])
                case {"event": "reload", "number": int(number), "settings": settings}:
                    self.channel.tell("reloaded", number=number, reason=self._reload(settings))
                case {"event": "stop"}:
                    self._stop()
                case {"event": "closed"}:
                    os._exit(1)  # the supervisor is gone

    async def _answer(self, number: int, request: HostRequest | None) -> None:
        try:
            answer = await self._answer_to(request)
        except Exception:  # noqa: BLE001 (an internal error: this request fails, the others do not)
            self.log.error("host_question_failed", traceback=traceback.format_exc())
            answer = {"error": "the request has failed: the log of the broker has the details"}
        self.channel.tell("answer", number=number, answer=answer)

    async def _answer_to(self, request: HostRequest | None) -> dict[str, Any]:
        """Return the answer to a request of `broker.admin.host_requests`."""
        match request:
            case HostStates() if self._answers is not None:
                return {"hosts": await self._answers.states()}
            case OnHost() if self._answers is not None:
                return await self._answers.passed_on(request)
            case Drain(change):
                return self._drain(change)
        return UNKNOWN

    def _drain(self, change: str | None) -> dict[str, Any]:
        refused = "this host is in no cluster: there is no other one"
        if self._cluster is not None:
            refused = "" if change is None else self._cluster.drain(change == "begin") or ""
        if refused or self._cluster is None:
            return {"refused": refused}
        return {"drain": {"state": self._cluster.state.value}}

    def _reload(self, message: dict[str, Any]) -> str | None:
        try:
            new = self.channel.settings = self.channel.settings.reloaded(message)
        except ConfigError as error:  # the supervisor found no error: the password file has changed since
            return str(error)
        self.log.configure(new.log_level, new.limits.log_lines_per_second_max)
        if self._cluster is not None:
            self._cluster.reloaded(new.cluster)
        return None

    def _pids(self) -> list[int]:
        return [worker["pid"] or 0 for worker in self._workers]

    # ------------------------------------------------------------ answers

    def _state(self) -> BrokerState:
        now = time.monotonic()
        _, *ages = self._heartbeats.ages(now)
        return BrokerState(
            now - self.channel.began,
            [
                WorkerState(worker["state"] == "ready", worker["restarts"], age)
                for worker, age in zip(self._workers, ages, strict=True)
            ],
            self._cluster.links() if self._cluster is not None else None,
            self._cluster.leadership_counts() if self._cluster is not None else None,
        )

    def _report(self) -> tuple[dict[str, Any], bool]:
        """Return the common part of /health and /ready, and whether all heartbeats change."""
        now = time.monotonic()
        supervisor, *ages = self._heartbeats.ages(now)
        report: dict[str, Any] = {
            "broker": self._broker,
            "version": broker.__version__,
            "uptime_seconds": round(now - self.channel.began, 3),
            "supervisor": {"pid": self.channel.supervisor_pid, "heartbeat_age_seconds": round(supervisor, 3)},
            "workers": [
                {
                    "worker": index,
                    **worker,
                    "store": _store(row),
                    "records_set_aside": row.get(counters.RECORDS_SET_ASIDE),
                    "heartbeat_age_seconds": round(age, 3),
                }
                for index, (worker, row, age) in enumerate(zip(self._workers, self._rows, ages, strict=True))
            ],
        }
        if self._cluster is not None:
            report["cluster"] = self._cluster.report()
        if self._report_on_peers is not None:
            report["cluster"]["coordination"] = self._report_on_peers()
        return report, max(supervisor, *ages) <= _HEARTBEAT_SECONDS_MAX

    async def _get_health(self, _request: web.Request) -> web.Response:
        report, moves = self._report()
        return _answer({"status": "ok" if moves else "failing", **report}, moves)

    async def _get_ready(self, _request: web.Request) -> web.Response:
        report, _ = self._report()
        ready = self._broker == "serving" and all(worker["state"] == "ready" for worker in self._workers)
        ready = ready and (self._cluster is None or self._cluster.is_ready)
        return _answer({"status": "ready" if ready else "not ready", **report}, ready)

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_hosts(self, _request: web.Request) -> web.Response:
        """For a host that does not answer, the reason is included."""
        if self._answers is None:
            return _problem(404, "this host is in no cluster", {})
        hosts = await self._answers.states()
        return _answer({"hosts": hosts}, all("error" not in each for each in hosts))

    async def _get_owner(self, request: web.Request) -> web.Response:
        if self._cluster is None:
            return _problem(404, "this host is in no cluster", {})
        client_id = request.query.get("client_id", "")
        if not client_id or len(client_id.encode(errors="replace")) > _CLIENT_ID_BYTES_MAX:
            return _problem(400, f"client_id: 1 to {_CLIENT_ID_BYTES_MAX} bytes are needed", {})
        try:
            owner = await self._cluster.owner_of(client_id)
        except UnicodeEncodeError:
            return _problem(400, "client_id: it is no UTF-8", {})
        except ConnectionError as error:
            return _problem(503, f"the owner is not known: {error}", {})
        if owner is None:
            return _problem(404, "no host owns this client id", {})
        return _answer(owner, True)

    async def _get_bridges(self, _request: web.Request) -> web.Response:
        """For a worker that does not answer, the reason is included."""
        found: list[dict[str, Any]] = []
        workers = range(self.channel.workers) if self.channel.settings.bridges else ()
        asked = [self._asking.ask(worker, BridgeStates()) for worker in workers]
        for worker, answer in enumerate(await asyncio.gather(*asked, return_exceptions=True)):
            if isinstance(answer, NoAnswer):
                found.append({"worker": worker, "error": str(answer)})
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found += [{"worker": worker, **each} for each in answer["bridges"]]
        return _answer({"bridges": found}, all("error" not in each for each in found))

    async def _get_stores(self, _request: web.Request) -> web.Response:
        """For a worker that does not answer, the reason is included."""
        stores = await asyncio.gather(*(self._store_stats(worker) for worker in range(self.channel.workers)))
        return _answer({"stores": stores}, all("error" not in store for store in stores))

    async def _store_stats(self, worker: int) -> dict[str, Any]:
        task = self._asked.get(worker)
        if task is None or task.done():
            task = self._asked[worker] = self.loop.create_task(self._ask_store_stats(worker))
        return await asyncio.shield(task)

    async def _ask_store_stats(self, worker: int) -> dict[str, Any]:
        try:
            answer = await self._asking.ask(worker, StoreStats())
        except NoAnswer as error:
            return {"worker": worker, "error": str(error)}
        store: dict[str, Any] = answer["store"]
        return store

    @web.middleware
    async def _problems(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return _problem(error.status, f"{request.method} {request.path}", headers)
        except Exception:  # noqa: BLE001 (an internal error: this request fails, the others do not)
            self.log.error("admin_failed", method=request.method, path=request.path, traceback=traceback.format_exc())
            return _problem(500, f"{request.method} {request.path}: the log has the details", {})


def _store(row: Row) -> str:
    if row.get(counters.STORE_FAILED):
        return "failed"
    return "full" if row.get(counters.STORE_FULL) else "ok"


def _answer(body: dict[str, Any], well: bool) -> web.Response:
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return web.Response(status=status, body=orjson.dumps(body) + b"\n", content_type="application/json")


def _problem(status: int, detail: str, headers: dict[str, str]) -> web.Response:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return web.Response(
        status=status, body=orjson.dumps(body) + b"\n", content_type="application/problem+json", headers=headers
    )


async def _head(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "mqttd"
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Content-Type-Options"] = "nosniff"
