"""Integration of our scenarios with locust: classes that run together, their numbers, load shapes, failure conditions.

A scenario requested by name adds the classes of its `beside`: the consumers of a back end, the publisher of an update.
Those are not in the locustfile, so that users need not choose them. Locust's hooks are used:

    init_command_line_parser    options
    init                        classes, number of users without -u, the shape
    dispatcher_class            adds them for classes chosen on the web page, too; number of publishers, for --rate
    test_stop                   workers finish before their master does
    quitting                    --fail-if
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final, NoReturn, cast

import gevent
from locust import events
from locust.dispatch import UsersDispatcher
from locust.rpc import Message
from locust.runners import MasterRunner, WorkerNode, WorkerRunner

from loadtest import gates, verdict
from loadtest.options import ENVIRONMENT, at_least
from loadtest.scenarios.role import Role
from loadtest.shapes import SHAPES

_ANY: Final = at_least(0, float)
_FINISH_SECONDS_MAX: Final = 60.0
_LOOK_SECONDS: Final = 0.05


def conditions(text: str) -> str:
    """A `type` for argparse that validates conditions. It returns text: locust sends the options to its workers."""
    try:
        gates.gates(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--fail-if: ")) from None
    return text


def together(classes: Iterable[type[Role]]) -> list[type[Role]]:
    """Return these classes and those that run beside them, each once."""
    found: dict[type[Role], None] = {}
    for each in classes:
        found[each] = None
        found |= dict.fromkeys(together(each.beside))
    return list(found)


def publishers(classes: Sequence[type[Role]], users: int) -> int:
    """Return how many of so many users publish: --rate is shared among them."""
    fixed = [each for each in classes if each.fixed_count]
    weights = sum(each.weight for each in classes if not each.fixed_count)
    rest = max(0, users - sum(each.fixed_count for each in fixed))
    share = sum(each.weight for each in classes if not each.fixed_count and each.publishes)
    return sum(each.fixed_count for each in fixed if each.publishes) + round(rest * share / (weights or 1))


class Dispatcher(UsersDispatcher):
    """Locust's dispatcher, for the chosen classes and those beside them."""

    def __init__(self, environment: Any, worker_nodes: list[WorkerNode], user_classes: list[Any]):
        self._environment = environment
        user_classes[:] = together(user_classes)  # the environment's own list, which runners use to count
        for each in user_classes:
            each.host = environment.host or each.host
            each.configure(environment.parsed_options)  # as set on the web page
        super().__init__(worker_nodes, user_classes)

    def new_dispatch(self, target_user_count: int, spawn_rate: float, user_classes: list[Any] | None = None) -> None:
        """Take in the number of users. Options are sent to locust's workers."""
        super().new_dispatch(target_user_count, spawn_rate, user_classes)
        self._environment.parsed_options.publishers = publishers(
            cast(Sequence[type[Role]], self._user_classes), target_user_count
        )


def install(mix: Sequence[type[Role]], users: int) -> None:
    """Install the hooks. mix: the scenarios that run when none is named; users: their number without -u."""
    events.init_command_line_parser.add_listener(_add_options)
    events.init.add_listener(partial(_prepare, mix, users))
    events.test_stop.add_listener(_let_workers_finish)
    events.quitting.add_listener(_judge)


def _add_options(parser: Any) -> None:
    def add(name: str, **settings: Any) -> None:
        parser.add_argument(f"--{name}", env_var=ENVIRONMENT + name.replace("-", "_").upper(), **settings)

    add("shape", choices=["none", *SHAPES], default="none", help="load shape over the time of -t, up to -u users")
    add("shape-steps", type=at_least(1), default=5, metavar="N", help="levels of --shape steps (default: 5)")
    add("fail-if", type=conditions, default="", metavar="CONDITIONS", include_in_web_ui=False,
        help="exit status 1 when one is true: p99>20ms,lost>0,command_p99>50ms")  # fmt: skip
    add("members", type=at_least(1), default=4000, metavar="N", help="SharedBackend: devices (default: 4000)")
    add("consumers", type=at_least(1), default=3, metavar="N", help="SharedBackend: consumers (default: 3)")
    add("chunks", type=at_least(1), default=4, metavar="N", help="OverTheAirUpdate: chunks of a version (default: 4)")
    add("every", type=_ANY, metavar="S",
        help="seconds from one update, storm or restart to the next (default: the scenario's)")  # fmt: skip
    add("away", type=_ANY, default=1.0, metavar="S", help="Phones: seconds offline (default: 1)")
    add("backlog", type=at_least(1), default=10, metavar="N", help="Phones: messages while offline (default: 10)")
    add("pid", type=at_least(1), metavar="PID", help="RollingRestart: pid of mqttd's supervisor")
    add("metrics", metavar="URL", help="RollingRestart: mqttd's admin interface, instead of --pid")
    add("signal", choices=["TERM", "KILL"], default="TERM", help="RollingRestart: signal to a worker (default: TERM)")
    add("attacks", default="all", metavar="NAMES", help="HostileClients: separated by commas; -NAME excludes one")
    add("patience", type=_ANY, default=15.0, metavar="S",
        help="maximum time of an answer, a reconnection or a refusal (default: 15)")  # fmt: skip


def _prepare(mix: Sequence[type[Role]], users: int, environment: Any, **_: object) -> None:
    """Prepare before anything runs: on the master, on workers and alone."""
    options = environment.parsed_options
    # its time is that of before all imports, and -t counts from it
    gevent.get_hub().loop.update_now()
    if isinstance(environment.runner, WorkerRunner):
        # the classes are chosen by the master
        environment.user_classes = together(environment.available_user_classes.values())
        return
    environment.dispatcher_class = partial(Dispatcher, environment)
    if options.class_picker:
        _let_the_page_choose(users, environment)
        return
    if not options.user_classes:
        environment.user_classes = list(mix)
    if options.topic and len(environment.user_classes) > 1:
        _wrong("--topic is for one scenario: name it")
    chosen = together(environment.user_classes)
    for each in chosen:
        try:
            each.configure(options)
        except ValueError as error:
            _wrong(str(error))
    fixed = sum(each.fixed_count for each in chosen)
    if options.num_users is None:
        asked = sum(each.users for each in environment.user_classes) + fixed
        options.num_users = asked if options.user_classes else users
        options.spawn_rate = options.spawn_rate or min(100, options.num_users)
    if options.num_users <= fixed:
        _wrong(f"-u {options.num_users}: {fixed} users are beside those of the scenario, so {fixed + 1} at least")
    if options.shape != "none":
        if not options.run_time:
            _wrong("--shape needs -t: how long the run is")
        environment.shape_class = SHAPES[options.shape](options)
        environment.shape_class.runner = environment.runner


def _let_the_page_choose(users: int, environment: Any) -> None:
    options = environment.parsed_options
    if options.shape != "none":
        _wrong("--shape: with --class-picker it is chosen on the page, as Shape Class")
    options.num_users = options.num_users or users
    environment.available_shape_classes = {each.__name__: each(options) for each in SHAPES.values()}


def _let_workers_finish(environment: Any, **_: object) -> None:
    """Stop the users before a master quits: it gives workers half a second for their last figures, and users that wait
    for messages in transit take longer.
    """
    runner = environment.runner
    if not isinstance(runner, MasterRunner) or not environment.parsed_options.headless:
        return  # with "stop" on the page, the user waits for them
    workers = len(runner.clients)
    for each in runner.clients.all:
        runner.server.send_to_client(Message("stop", None, each.id))
    with gevent.Timeout(_FINISH_SECONDS_MAX, False):
        while runner.user_count or len(runner.clients.ready) < workers:
            gevent.sleep(_LOOK_SECONDS)


def _judge(environment: Any, **_: object) -> None:
    """Check the conditions at the end, except in a worker."""
    if isinstance(environment.runner, WorkerRunner):
        return
    failed = gates.failed(gates.gates(environment.parsed_options.fail_if), verdict.figures(environment.stats))
    for line in failed:
        print(f"locust: failed: {line}", file=sys.stderr)
    if failed:
        environment.process_exit_code = 1


def _wrong(line: str) -> NoReturn:
    print(f"locust: {line}", file=sys.stderr)
    sys.exit(2)
