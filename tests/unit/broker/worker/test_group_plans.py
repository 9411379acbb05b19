"""When a worker makes the plan of a group, by counts that do not change."""

from __future__ import annotations

import pytest

from broker.worker import group_plans
from broker.worker.group_plans import PAUSE_SECONDS, STABLE_SECONDS, UNSTABLE_SECONDS_MAX, GroupPlan, GroupPlans

WORKERS, OTHERS = (6, 4), (0,)


def look(
    plans: GroupPlans, now: float, workers: tuple[int, ...] = WORKERS, others: tuple[int, ...] = OTHERS, number: int = 1
) -> GroupPlan | None:
    """Walk over one group."""
    plans.begin_walk("a", ["b"])
    plan = plans.look(number, b"g/t", workers, others, now)
    plans.end_walk(now)
    return plan


def test_when_counts_have_not_changed_for_a_while() -> None:
    plans = GroupPlans(0)
    assert look(plans, 100.0) is None
    assert look(plans, 99.9 + STABLE_SECONDS) is None
    plan = look(plans, 100.0 + STABLE_SECONDS)
    assert plan is not None
    assert (plan.parts, plan.keeps, plan.left, plan.label) == ({"b": 3}, 5, 3, b"g/t")
    assert plan.begins == 100.0 + STABLE_SECONDS + PAUSE_SECONDS


@pytest.mark.parametrize("counts", [(7, 4), (5, 5)])
def test_a_change_begins_the_time_anew(counts: tuple[int, ...]) -> None:
    plans = GroupPlans(1)
    look(plans, 100.0)
    assert look(plans, 104.0, counts) is None
    assert look(plans, 106.0, counts) is None
    plan = look(plans, 104.0 + STABLE_SECONDS, counts)
    assert plan is not None


def test_changes_do_not_hold_it_up_for_ever() -> None:
    plans = GroupPlans(0)
    now = 0.0
    while now < UNSTABLE_SECONDS_MAX:
        assert look(plans, now, (6 + int(now) % 2, 4)) is None
        now += 1.0
    assert look(plans, now, (7, 4)) is not None


def test_a_group_that_is_even_meanwhile_is_forgotten() -> None:
    plans = GroupPlans(0)
    look(plans, 100.0)
    plans.begin_walk("a", ["b"])
    plans.end_walk(101.0)
    assert look(plans, 106.0) is None


def test_other_hosts_begin_the_time_anew() -> None:
    plans = GroupPlans(0)
    look(plans, 100.0)
    plans.begin_walk("a", ["c"])
    assert plans.look(1, b"g/t", WORKERS, OTHERS, 106.0) is None
    plan = plans.look(1, b"g/t", WORKERS, OTHERS, 106.0 + STABLE_SECONDS)
    assert plan is not None
    assert plan.parts == {"c": 3}


def test_a_worker_that_has_nothing_to_send_waits() -> None:
    """Another worker of its host sends the one member that is too many."""
    first, second = GroupPlans(0), GroupPlans(1)
    made = []
    for now in range(20):
        made += [at for at, plans in enumerate((first, second)) if look(plans, now, (1, 2), (1,)) is not None]
    assert set(made) == {1}


def test_what_is_left_is_tried_again_after_a_while() -> None:
    plans = GroupPlans(0)
    look(plans, 0.0)
    plan = look(plans, STABLE_SECONDS)
    assert plan is not None
    plans.ended(plan, 20.0)
    planned = [now for now in range(20, 120) if look(plans, float(now)) is not None]
    assert planned[0] == 80
    done = look(plans, 300.0) or look(plans, 306.0)
    assert done is not None
    done.parts.clear()
    plans.ended(done, 310.0)
    look(plans, 311.0)
    assert look(plans, 317.0) is not None


@pytest.mark.parametrize("most", [0, 1, 5])
def test_so_many_groups_at_a_time(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(group_plans, "GROUPS_MAX", most)
    plans = GroupPlans(0)
    made = []
    for now in (0.0, STABLE_SECONDS):
        plans.begin_walk("a", ["b"])
        made = [number for number in range(most + 1) if plans.look(number, b"g/t", WORKERS, OTHERS, now) is not None]
        plans.end_walk(now)
    assert made == list(range(most))
