"""The size from which sharing a body by reference (writev) is cheaper than copying it into every outbox.

    python -m tests.benchmarks.sharing [--runs 3] [--seconds 1.5] [--subscribers 100]

For each payload size the broker runs twice, in turn: with MQTTD_LIMITS__SHARE_LARGE_BYTES above it (copied) and at or
below it (shared). Measured is the broker CPU per delivered message of a fan-out, saturated, and at 200 messages/s,
where a send carries one message. limits.share_large_bytes should be the size from which sharing wins in both.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.benchmarks.ruler import ROOT, Figures, Ruler

PAYLOADS = (256, 512, 1024, 1536, 2048, 3072, 4096, 8192, 16384)
_SHARED_FROM = 64  # the minimum of the setting
_COPIED_UP_TO = 1 << 24
_VARIABLE = "MQTTD_LIMITS__SHARE_LARGE_BYTES"


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("RULER", str(ROOT.parent / "shared" / "ruler"))
    parser.add_argument("--ruler", default=default)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--subscribers", type=int, default=100)
    options = parser.parse_args()
    ruler = Ruler.at(Path(options.ruler))
    if ruler is None:
        print(f"no ruler at {options.ruler}", file=sys.stderr)
        return 1
    print(f"fan-out 1 -> {options.subscribers}, us of broker CPU per delivered message, medians of {options.runs}")
    print("| payload | saturated: copied | shared | 200/s: copied | shared |\n|---:|---:|---:|---:|---:|")
    for payload in PAYLOADS:
        cells = []
        for rate in ("", " --rate 200"):
            arguments = f"fanout --subs {options.subscribers} --qos 0 --payload {payload}{rate} {{S}}"
            runs: dict[int, list[Figures]] = {_COPIED_UP_TO: [], _SHARED_FROM: []}
            for _ in range(options.runs):
                for bound, figures in runs.items():
                    figures.append(ruler.mqload(f"mqttd/1 {_VARIABLE}={bound}", arguments, options.seconds, 0.5))
            cells += [f"{ruler.medians(figures)[0]['broker_us_per_msg']:.3f}" for figures in runs.values()]
        print(f"| {payload} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
