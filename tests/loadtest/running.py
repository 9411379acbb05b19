"""Runner of flood as users start it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.broker_process import ROOT

SHORT = ["--seconds", "0.5", "--warmup", "0.1", "--drain", "30", "--quiet", "--json", "-"]
WRONG = ("lost", "reordered", "corrupt", "protocol_errors", "publishes_refused", "connections_lost", "duplicates")


def run(*arguments: str, module: str = "loadtest.flood") -> subprocess.CompletedProcess[str]:
    """Run it with options for a short run, which `arguments` may override."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments[:1], *SHORT, *arguments[1:]],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def flood(broker: int | str, *arguments: str, status: int = 0, module: str = "loadtest.flood") -> dict[str, Any]:
    """Run flood and return its JSON. `broker`: a port on 127.0.0.1, or a URL."""
    url = broker if isinstance(broker, str) else f"mqtt://127.0.0.1:{broker}"
    done = run(arguments[0], "--host", url, *arguments[1:], module=module)
    assert done.returncode == status, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def refused(*arguments: str) -> str:
    """Run flood with arguments that it must refuse; return its one line of error."""
    done = run(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1
    return done.stderr
