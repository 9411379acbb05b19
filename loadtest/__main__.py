"""python -m loadtest TOOL [options]: the load tools under one name.

    locust     users with behaviour, by locust: its options, and the scenarios that come with this package
    flood      as much load as a broker can take, with a check of every delivery
    compare    brokers in turn under the same loads
    plan       the capacity of this host

`python -m loadtest TOOL --help` has the options of each. `locust -f FILE` runs your own file.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

TOOLS: Final = ("flood", "compare", "plan")
LOCUSTFILE: Final = Path(__file__).with_name("locustfile.py")


def locust(arguments: Sequence[str]) -> int:
    """Run locust itself, with our locustfile unless another is named."""
    from locust.main import main as locust_main

    is_named = any(each.startswith(("-f", "--locustfile")) for each in arguments)
    if "--help" in arguments or "-h" in arguments:
        # locust shows help before it has read a file: our options must have been added already
        importlib.import_module("loadtest.user" if is_named else "loadtest.locustfile")
    sys.argv = ["locust", *([] if is_named else ["-f", str(LOCUSTFILE)]), *arguments]
    return int(locust_main() or 0)


def main(arguments: Sequence[str]) -> int:
    """Run the tool named first; return its exit status."""
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if arguments[:1] == ["locust"]:
        return locust(arguments[1:])
    if not arguments or arguments[0] not in TOOLS:
        said = f"no tool {arguments[0]}" if arguments else "no tool was named"
        print(f"loadtest: {said}: locust, {', '.join(TOOLS)}", file=sys.stderr)
        return 2
    tool: Callable[[Sequence[str]], int] = importlib.import_module(f"loadtest.{arguments[0]}").main
    return tool(arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
