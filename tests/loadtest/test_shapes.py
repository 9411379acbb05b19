"""Shapes: the number of users at each moment."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.broker_process import ROOT

#: a separate process: locust patches the standard library when it is imported
PROGRAM = """
import json, argparse
from loadtest.shapes import SHAPES
options = argparse.Namespace(run_time=100, num_users=50, spawn_rate=None, shape_steps=4)
found = {}
for name, shape in SHAPES.items():
    assert shape.abstract, name
    made = shape(options)
    found[name] = []
    for second in range(0, 101, 10):
        made.get_run_time = lambda second=second: second
        found[name].append(made.tick())
made = SHAPES["ramp"](argparse.Namespace(run_time=None))
made.get_run_time = lambda: 0
assert made.tick() is None  # without -t there is no run
print(json.dumps(found))
"""


def test_each_shape_has_its_users_at_each_moment() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert [ticks.pop() for ticks in found.values()] == [None] * 4  # the end of the run
    assert all(rate == 50 for ticks in found.values() for _, rate in ticks)
    users = {name: [users for users, _ in ticks] for name, ticks in found.items()}
    assert users["ramp"] == [1, 6, 11, 17, 22, 28, 33, 39, 44, 50]
    assert users["steps"] == [12, 12, 12, 25, 25, 38, 38, 38, 50, 50]
    assert users["spike"] == [5, 5, 5, 5, 50, 50, 50, 5, 5, 5]
    assert users["soak"] == [1, 50, 50, 50, 50, 50, 50, 50, 50, 50]
