"""Invariants of a world: while it runs (after ticks), and when it is at rest.

Each checker raises Violation. Exemptions are explained in the code that makes them: a message may be missing only by a
documented consequence (a full queue, a killed worker with volatile memory).

"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING

from leveldb_store.reachability import unreachable
from pyx.core import counters as count
from tests.simulation.history import Delivery, Publish, Violation, matches

if TYPE_CHECKING:
    from broker.worker.core import Node
    from tests.simulation.clients import Client
    from tests.simulation.workers import Worker
    from tests.simulation.world import World

REPLAY_SLICE = 256
"""Messages that a replay puts into a session's queue at once."""
DROPS = [value for name, value in vars(count).items() if name.startswith("DROPPED_")]


# ------------------------------------------------------------------------------------------------ while it runs


def check_worker(worker: Worker) -> None:
    """Check limits and counters of one worker, between two ticks."""
    check_limits(worker)
    check_counters(worker)
    check_homes(worker)


def check_limits(worker: Worker) -> None:
    """Check that every queue is within its limit."""
    node, world = worker.node, worker.world
    limits = world.settings.limits
    for session in node.sessions:
        who = f"session {session.client_id} of worker {worker.index}"
        if session.unacknowledged > limits.inflight_max:
            raise Violation(f"{who}: {session.unacknowledged} in flight, inflight_max {limits.inflight_max}")
        if session.queued > limits.queue_messages_max + (REPLAY_SLICE if session.replays else 0):
            raise Violation(f"{who}: {session.queued} queued, queue_messages_max {limits.queue_messages_max}")
        messages, nbytes = node.router.bounding.backlog(session)
        # a log is swept when it has grown by a sixteenth of the limit; a tick may add one batch more
        most = limits.queue_messages_max * 17 // 16 + 1 + world.tick_messages_max
        if messages > most * max(1, session.subscriptions if session.subscriptions <= 64 else 1):
            raise Violation(f"{who}: backlog of {messages} messages, queue_messages_max {limits.queue_messages_max}")
        if nbytes > limits.queue_bytes_max * 2:
            raise Violation(f"{who}: backlog of {nbytes} bytes, queue_bytes_max {limits.queue_bytes_max}")
    for conn, line in worker.lines.items():
        of = f"{line.client.name}#{line.number}"
        # the size of one packet is known only afterwards
        if conn.pending > limits.outbox_bytes_max + world.tick_bytes_max:
            raise Violation(f"{of}: {conn.pending} bytes, outbox_bytes_max {limits.outbox_bytes_max}")
        if conn.version == 5 and conn.acks_pending > limits.receive_maximum + 8:
            raise Violation(f"{of}: {conn.acks_pending} acks wait, receive_maximum {limits.receive_maximum}")
    for peer, link in worker.mesh.links.items():
        if link.outbox_bytes > 2 * world.link_limits.peer_outbox_bytes_max + world.tick_bytes_max:
            raise Violation(f"link {worker.index} -> {peer}: outbox of {link.outbox_bytes} bytes")
        if not world.survives and link.handoff_bytes > world.link_limits.handoff_log_bytes_max:
            raise Violation(f"link {worker.index} -> {peer}: hand-off log of {link.handoff_bytes} bytes")


def check_counters(worker: Worker) -> None:
    """Check matched = delivered + expired + dropped + waiting (expired is one of the reasons for a drop)."""
    row = worker.node.counters
    sessions = list(worker.node.sessions)
    waiting = sum(session.unacknowledged + session.queued for session in sessions)
    waiting += sum(conn.pending_qos0 for conn in worker.lines)
    waiting += worker.node.router.ending.shares_left
    delivered = row.get(count.DELIVERED_QOS0) + row.get(count.DELIVERED_QOS1) + row.get(count.DELIVERED_QOS2)
    dropped = sum(row.get(each) for each in DROPS)
    matched = row.get(count.MATCHED)
    if matched != delivered + dropped + waiting:
        raise Violation(
            f"worker {worker.index}: matched {matched} = delivered {delivered} + dropped {dropped} + waiting {waiting}"
            f" + {matched - delivered - dropped - waiting}: "
            + " ".join(f"{name}={value}" for name, value in row.as_dict().items() if value and "drop" in name)
        )
    if worker.world.survives and row.get(count.DROPPED_PEER_LOST):
        raise Violation(f"worker {worker.index}: peer_lost although hand-off logs survive")


def check_homes(worker: Worker) -> None:
    """Check that each client id has one session, at its home, with at most one open connection."""
    open_ids: set[str] = set()
    for conn in worker.lines:
        if conn.state == 2:
            assert conn.session is not None
            client_id = conn.session.client_id
            if client_id in open_ids:
                raise Violation(f"worker {worker.index}: two open connections of {client_id}")
            open_ids.add(client_id)
    for session in worker.node.sessions:
        if worker.world.clients[session.client_id].home != worker.index:
            raise Violation(f"worker {worker.index} has a session of {session.client_id}, whose home is another")


# ------------------------------------------------------------------------------------------------ at rest


def check_history(world: World) -> None:
    """Check everything that must hold at rest."""
    per_session: dict[tuple[str, int, int], list[Delivery]] = defaultdict(list)
    received: dict[str, set[int]] = defaultdict(set)
    shared: dict[int, list[Delivery]] = defaultdict(list)
    for delivery in world.history.deliveries:
        received[delivery.client.name].add(delivery.publish.number)
        if delivery.retain:
            continue
        if delivery.publish.topic.startswith("s/"):
            shared[delivery.publish.number].append(delivery)
        elif not delivery.refused:
            per_session[delivery.client.name, delivery.session, delivery.publish.number].append(delivery)
    for copies in per_session.values():
        check_copies(world, copies)
    check_order(world)
    check_echoes(world)
    for client in world.clients.values():
        check_nothing_lost(world, client, received[client.name])
    check_shared(world, shared)
    check_taken_over(world)
    check_reachable(world)


def check_reachable(world: World) -> None:
    """Check that each record on a disk belongs to something that exists."""
    for worker in world.workers:
        disk = worker.disk
        for stray in unreachable(disk.scan, disk.records.get):
            raise Violation(f"the store of worker {worker.index}: {stray.kind}: {stray.key!r}")


def ends(world: World) -> dict[int, float]:
    """Return by message number the time by which it was certainly numbered: it was acknowledged then, or its
    publisher's next message on the same connection was.
    """
    found: dict[int, float] = {}
    by_client: dict[str, list[Publish]] = defaultdict(list)
    for publish in world.history.publishes:
        if publish.started is not None and not publish.will:
            by_client[publish.publisher.name].append(publish)
    for publishes in by_client.values():
        ended: float | None = None
        line = -1
        for publish in sorted(publishes, key=lambda each: each.turn, reverse=True):
            if publish.line != line:
                ended, line = None, publish.line
            if publish.acknowledged is not None:
                ended = publish.acknowledged if ended is None else min(ended, publish.acknowledged)
            if ended is not None:
                found[publish.number] = ended
    return found


def check_numbers(world: World) -> None:
    """Check that a publish that begins after another's ack has the higher number, on whichever workers they arrived."""
    if not world.archives:
        return
    numbers: dict[int, list[int]] = defaultdict(list)
    for worker in world.workers:
        assert worker.disk.kept_archive is not None
        for message in worker.disk.kept_archive.messages:
            numbers[world.history.by_payload[bytes(message.payload)].number].append(message.number)
    acknowledged = sorted(
        (each for each in world.history.publishes if each.acknowledged is not None and each.number in numbers),
        key=lambda each: each.acknowledged or 0.0,
    )
    begun = sorted(
        (each for each in world.history.publishes if each.started is not None and each.number in numbers),
        key=lambda each: each.started or 0.0,
    )
    at = highest = 0
    before: Publish | None = None
    for publish in begun:
        assert publish.started is not None
        while at < len(acknowledged) and (acknowledged[at].acknowledged or 0.0) < publish.started:
            # the ack answers the last copy of a message sent again at QoS 1; an earlier one may arrive later
            if acknowledged[at].sends == 1 and numbers[acknowledged[at].number][0] > highest:
                before, highest = acknowledged[at], numbers[acknowledged[at].number][0]
            at += 1
        if publish.sends == 1 and min(numbers[publish.number]) < highest:
            raise Violation(f"{publish} has number {numbers[publish.number]}, {before} before it {highest}")


LAG_SECONDS = 0.5
"""Longest time from sending a QoS 1 message to its record on the disk: LAG_MS, the timer, a tick, the disk."""


def forgotten(world: World, copies: list[Delivery]) -> int:
    """Return how many copies may have arrived without DUP: a former copy was of QoS 1, and the worker was killed before
    the disk recorded that it was sent; or it was of QoS 0, and sent before the message was stored (`crashed_between`).
    The message is sent again at the current QoS, which may be higher by now. Each copy from before the kill may be
    repeated, if it was published as often.
    """
    home = copies[0].client.home
    last = max((copy.at for copy in copies if copy.qos > 0), default=0.0)
    return sum(
        any(index == home and former.at - LAG_SECONDS <= at <= last for at, index in world.kills)
        if former.qos
        else crashed_between(world, former, copy)
        for former, copy in itertools.pairwise(copies)
        if world.survives and former.qos < 2
    )


def crashed_between(world: World, former: Delivery, copy: Delivery) -> bool:
    """Return whether one of the two workers was killed when the former copy had been sent and perhaps nothing else: a
    copy without a promise of a lasting session (of QoS 0, or for a session that ended with that worker) is sent before
    the commit.
    """
    homes = (former.client.home, former.publish.publisher.home)
    return world.survives and any(
        index in homes and former.at - LAG_SECONDS <= at <= copy.at for at, index in world.kills
    )


def sent_before_crash(world: World, former: Delivery, copy: Delivery) -> bool:
    """Return whether the later copy was sent by a worker that was then killed, which explains the other copy."""
    return any(
        index == copy.client.home and copy.opened_at <= at <= former.at <= at + LAG_SECONDS for at, index in world.kills
    )


def check_copies(world: World, copies: list[Delivery]) -> None:
    """Check QoS 0 at most once, QoS 2 exactly once; QoS 1 again only as redelivery or if it was published again."""
    first = copies[0]
    publish = first.publish
    if len(copies) == 1:
        return
    fresh = sum(not copy.dup for copy in copies)
    many = (
        f"{first.client.name} got {publish} {len(copies)} times: {[(copy.at, copy.qos, copy.dup) for copy in copies]}"
    )
    if publish.qos == 0 or sum(copy.qos == 2 for copy in copies) > 1:
        raise Violation(many)
    if publish.qos == 2 and all(copy.qos == 0 for copy in copies):
        if not all(crashed_between(world, former, copy) for former, copy in itertools.pairwise(copies)):
            raise Violation(many)
        return
    if fresh > (max(1, publish.sends) if publish.qos == 1 else 1) + forgotten(world, copies):
        raise Violation(f"{many}: {fresh} without DUP, sent {publish.sends} times")


def check_order(world: World) -> None:
    """Check per publisher, topic and QoS that a session gets first copies in the order of publication.

    A QoS 1 message that was sent again may be late: its first transmission may precede the subscription.
    """
    last: dict[tuple[str, int, str, str, int, int], int] = {}
    seen: set[tuple[str, int, int]] = set()
    for delivery in world.history.deliveries:
        publish = delivery.publish
        one = (delivery.client.name, delivery.session, publish.number)
        if delivery.retain or publish.will or publish.topic.startswith("s/") or one in seen:
            continue
        seen.add(one)
        who = (delivery.client.name, delivery.session, publish.publisher.name, publish.topic, publish.qos, delivery.qos)
        if publish.qos == 1 and publish.sends > 1:
            continue
        if last.get(who, 0) > publish.number:
            raise Violation(f"{delivery.client.name} got {publish} after #{last[who]} at {delivery.at}")
        last[who] = publish.number


def check_echoes(world: World) -> None:
    """Check No Local [MQTT-3.8.3-3], and that no will is published whose client was back in time [MQTT-3.1.3-9]."""
    for delivery in world.history.deliveries:
        client, publish = delivery.client, delivery.publish
        if publish.taken_back:
            raise Violation(f"{client.name} got will {publish} at {delivery.at}, whose client was back in time")
        plain = not (publish.will or delivery.retain or publish.topic.startswith("s/"))
        if plain and client.plan.no_local and publish.publisher is client:
            raise Violation(f"{client.name} got {publish} of its own in spite of No Local")


def waited_at_a_higher_qos(client: Client, publish: Publish) -> bool:
    """Return whether the one copy was queued for a subscription of QoS 1 or 2 that has since ended or been lowered to
    QoS 0: its unsent messages are dropped with it, although another subscription of QoS 0 matched as well.
    """
    return publish.qos > 0 and any(
        period.qos > 0
        and period.end is not None
        and period.start <= (publish.acknowledged or 0.0)
        and period.end >= (publish.started or 0.0)
        and matches(period.filter, publish.topic)
        for period in client.periods
        if not period.group
    )


def check_nothing_lost(world: World, client: Client, received: set[int]) -> None:
    """Check that each message acknowledged, and begun after the SUBACK, arrived: ack is custody, SUBACK is interest."""
    if client.uncertain:
        return
    periods = [period for period in client.periods if period.end is None and not period.group]
    missing: list[Publish] = []
    for publish in world.history.publishes:
        if publish.number in received or publish.topic.startswith("s/") or publish.started is None:
            continue
        if publish.will or publish.expiry is not None or (client.plan.no_local and publish.publisher is client):
            continue
        if client.home in publish.lost_for:
            continue  # its share was in the memory of a worker that was killed while the subscriber's was away
        held = [p for p in periods if p.start <= publish.started and matches(p.filter, publish.topic)]
        if not held or world.cut_off(client, publish, max(p.start for p in held)):
            continue
        if publish.qos == 0 or all(p.qos == 0 for p in held):
            if not world.calm(client, publish) or waited_at_a_higher_qos(client, publish):
                continue
        elif publish.acknowledged is None or publish.reason >= 0x80:
            continue
        missing.append(publish)
    if len(missing) > world.history.queue_drops.get(client.name, 0):
        shown = ", ".join(f"{each} (began {each.started}, acknowledged {each.acknowledged})" for each in missing[:5])
        raise Violation(
            f"{client.name} (home {client.home}) misses {len(missing)}: {shown}; subscribed "
            + ", ".join(f"{p.text} q{p.qos} since {p.start}" for p in periods if matches(p.filter, missing[0].topic))
        )


def check_shared(world: World, shared: dict[int, list[Delivery]]) -> None:
    """Check that each message goes to one member of its group, and none is lost while a member stays in the group."""
    for number, every in shared.items():
        check_one_member(world, world.history.publishes[number - 1], every)
    if world.small_queues:
        return  # a message for which no member has room is dropped, and counted for none of them
    missing: list[Publish] = []
    for publish in world.history.publishes:
        if (
            not publish.topic.startswith("s/") or publish.qos == 0 or publish.expiry is not None
            or publish.number in shared or publish.started is None
            or publish.acknowledged is None or publish.reason >= 0x80 or publish.lost_for or publish.share_lost
            or not somebody_stayed(world, publish)
        ):  # fmt: skip
            continue
        if publish.qos == 1:
            raise Violation(f"no member got {publish}, begun {publish.started}, acknowledged {publish.acknowledged}")
        missing.append(publish)
    # QoS 2 in flight is lost with its session [MQTT-4.8.2-5], or with a worker that died unacknowledged
    booked = world.losses_booked + sum(booked_losses(worker.node) for worker in world.workers)
    if len(missing) > booked:
        raise Violation(f"no member got {len(missing)} of QoS 2, {booked} are booked as lost: {missing[0]}")


def check_one_member(world: World, publish: Publish, every: list[Delivery]) -> None:
    """Check QoS 2 and 0: one delivery. QoS 1: to another session only when the former one has ended, or for a copy that
    the publisher sent again.
    """
    copies = [copy for copy in every if not copy.refused]
    copies = [
        copy
        for at, copy in enumerate(copies)
        if at == len(copies) - 1
        or (copy.client.plan.expiry and copy.qos == 2)
        or not (crashed_between(world, copy, copies[at + 1]) or sent_before_crash(world, copy, copies[at + 1]))
    ]
    went = f"{publish} went to {[(copy.client.name, copy.session, copy.qos, copy.dup, copy.at) for copy in copies]}"
    if len(copies) > 1 and (publish.qos == 0 or all(copy.qos == 2 for copy in copies)):
        raise Violation(went)
    alive = {
        (copy.client.name, copy.session)
        for copy in copies
        if copy.session == copy.client.session_number and not copy.client.uncertain
    }
    if len(alive) > (max(1, publish.sends) if publish.qos == 1 else 1):
        raise Violation(went)


def somebody_stayed(world: World, publish: Publish) -> bool:
    """Return whether a member was in the group since before the message, and its worker was known by then."""
    name = publish.topic.split("/")[1]
    assert publish.started is not None
    return any(
        period.group == name and period.end is None and period.qos and period.start <= publish.started
        and not client.uncertain and not world.cut_off(client, publish, period.start, shared=True)
        for client in world.clients.values() for period in client.periods
    )  # fmt: skip


def booked_losses(node: Node) -> int:
    """Return the number of copies that ended with a session, or with a worker to which they had been sent."""
    row = node.counters
    return row.get(count.DROPPED_SESSION_ENDED) + row.get(count.DROPPED_PEER_LOST)


def check_taken_over(world: World) -> None:
    """Check that a connection whose client id was taken over is closed."""
    for client in world.clients.values():
        for line, successor_accepted in client.left:
            if successor_accepted and not line.down_ended:
                raise Violation(f"{client.name}: connection {line.number} is open although it was taken over")
