"""The build of mqttd: the table of extension modules and the profiles they are compiled in.

What is where: names, versions and dependencies stand in pyproject.toml; this file only knows how a ``.pyx`` becomes a
module. Every ``.pyx`` below ``pyx/`` is one extension module (a new file needs no line here), and where ``MQTTD_TESTS``
is set so is every ``.pyx`` of tests/unit/adapters and tests/benchmarks.

``MQTTD_PROFILE`` chooses how they are compiled; each profile keeps its own objects, so that one does not make another
compile again (the modules themselves land in the same place with ``--inplace``: see ``make asan``). Release and
asan tell debuggers lines and functions only (``-g1``): with names of variables gcc takes twice as long:

=========  ===========================================================================================================
release    ``-O3``, checks and asserts off, and never ``-march=native``: the wheel must run on any x86-64 or arm64
debug      ``-O0 -g``, bounds checks, initialised checks and asserts on, ``MQTTD_DEBUG`` defined for the C code
coverage   line tracing, for coverage.py with its Cython plugin and ``core = "ctrace"``
asan       debug checks under AddressSanitizer and UndefinedBehaviorSanitizer
=========  ===========================================================================================================

With ``MQTTD_TESTS=1`` the steps of the data path are counted, too (``MQTTD_COUNT_WORK``, pyx/core/work.pxd), as in no
release; ``MQTTD_TESTS=bench`` builds the adapters beside modules as they are released. Each has its own directory.

Where no compiler is found the extension modules are left out with one line and the pure parts still install: an
analyst's laptop reads stores and never runs the broker. A compiler that is there and fails is an error like any other.
``MQTTD_EXTENSIONS=none`` leaves them out on purpose.

Cython's "performance hint" means a hot function that talks to Python where nobody meant it to. They are repeated at the
end of the build; ``python setup.py hints`` compiles everything anew to C only, and fails when there is one.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from setuptools import Command, Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = os.path.dirname(os.path.abspath(__file__))

DIRECTIVES: dict[str, Any] = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "initializedcheck": False,
}
CHECKED = {"boundscheck": True, "initializedcheck": True}

#: profile -> (directives over the common ones, compiler flags, linker flags, macros). ``-Og``: what sanitizers add to
#: each access takes gcc three times as long to optimise
PROFILES: dict[str, tuple[dict[str, Any], list[str], list[str], list[tuple[str, str | None]]]] = {
    "release": ({}, ["-O3", "-g1"], [], [("CYTHON_WITHOUT_ASSERTIONS", "1")]),
    "debug": (CHECKED, ["-O0", "-g", "-UNDEBUG"], [], [("MQTTD_DEBUG", "1")]),
    "coverage": ({"linetrace": True}, ["-O0", "-g"], [], [("CYTHON_TRACE", "1"), ("CYTHON_TRACE_NOGIL", "1")]),
    "asan": (
        CHECKED,
        ["-Og", "-g1", "-UNDEBUG", "-fno-omit-frame-pointer", "-fsanitize=address,undefined"],
        ["-fsanitize=address,undefined"],
        [("MQTTD_DEBUG", "1")],
    ),
}

PROFILE = os.environ.get("MQTTD_PROFILE", "release")
if PROFILE not in PROFILES:
    sys.exit(f"MQTTD_PROFILE={PROFILE}: the profiles are {', '.join(PROFILES)}")

TESTS = os.environ.get("MQTTD_TESTS", "")
if TESTS not in ("", "1", "bench"):
    sys.exit(f"MQTTD_TESTS={TESTS}: 1 or bench")
IS_COUNTED = TESTS == "1"
#: of everything that is compiled C
FLAVOUR = f"{PROFILE}{'-counted' if IS_COUNTED else ''}-{sysconfig.get_config_var('SOABI')}"

#: of the C files, which differ by directives only
CYTHON_DIR = os.path.join("build", "cython-checked" if PROFILES[PROFILE][0] is CHECKED else f"cython-{PROFILE}")
JOBS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def extensions() -> list[Extension]:
    """One extension module for each .pyx, named by its path."""
    if os.environ.get("MQTTD_EXTENSIONS") == "none":
        return []
    patterns = ["pyx/**/*.pyx"]
    if TESTS:
        patterns += ["tests/unit/adapters/*.pyx", "tests/benchmarks/*.pyx"]
    _, compile_args, link_args, macros = PROFILES[PROFILE]
    if IS_COUNTED:
        macros = [*macros, ("MQTTD_COUNT_WORK", "1")]
    return [
        Extension(
            os.path.splitext(path)[0].replace(os.sep, "."),
            [path],
            extra_compile_args=compile_args,
            extra_link_args=link_args,
            define_macros=macros,
            depends=["setup.py"],
        )
        for pattern in patterns
        for path in sorted(glob.glob(pattern, root_dir=ROOT, recursive=True))
    ]


@contextmanager
def stderr_collected(lines: list[str]) -> Iterator[None]:
    """Collect what is written to file descriptor 2, also by Cython's child processes, and write it out at the end."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            text = log.read().decode(errors="replace")
            sys.stderr.write(text)
            lines += text.splitlines()


def c_sources(modules: list[Extension], build_dir: str, force: bool = False) -> tuple[list[Extension], list[str]]:
    """Translate .pyx to C (only what changed, unless ``force``); return the C extensions and the performance hints."""
    from Cython.Build import cythonize

    stamp = os.path.join(build_dir, "made-by-setup.py")
    force = force or not os.path.exists(stamp) or os.path.getmtime(stamp) < os.path.getmtime(__file__)
    said: list[str] = []
    with stderr_collected(said):
        made = cythonize(
            modules,
            build_dir=build_dir,
            force=force,
            nthreads=min(JOBS, len(modules)) if JOBS > 1 and len(modules) > 1 else 0,
            compiler_directives={**DIRECTIVES, **PROFILES[PROFILE][0]},
            include_path=["."],
        )
    os.makedirs(build_dir, exist_ok=True)
    with open(stamp, "w", encoding="utf-8"):
        pass
    return list(made), [line for line in said if "performance hint" in line]


def say(line: str) -> None:
    """One line for the reader of the build log."""
    print(f"mqttd: {line}", file=sys.stderr, flush=True)


def compiler_missing() -> str | None:
    """Why no C extension can be built here, or None. Tried with a real file: a compiler without Python.h is no help."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    if shutil.which(compiler[0]) is None:
        return f"no C compiler ({compiler[0]})"
    with tempfile.TemporaryDirectory() as scratch:
        source = os.path.join(scratch, "probe.c")
        with open(source, "w", encoding="utf-8") as probe:
            probe.write("#include <Python.h>\n#include <sys/epoll.h>\n")
        include = f"-I{sysconfig.get_path('include')}"
        tried = subprocess.run(
            [*compiler, include, "-fsyntax-only", source], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    if tried.returncode == 0:
        return None
    return next((line.strip() for line in tried.stderr.splitlines() if "error" in line), "the C compiler fails")


class BuildExtensions(build_ext):
    """Translate in parallel, compile in parallel, leave the extension modules out where there is no compiler."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or JOBS
        self.build_temp = os.path.join("build", f"objects-{FLAVOUR}")
        if self.inplace:  # built there, then copied: a directory for each profile, or one would pass for another
            self.build_lib = os.path.join("build", f"lib-{FLAVOUR}")

    def copy_extensions_to_source(self) -> None:
        """Also one that is older than what lies there: that may be of another profile."""
        self.force = True
        super().copy_extensions_to_source()

    def run(self) -> None:
        if self.extensions:
            why = compiler_missing()
            if why is not None and "build_ext" not in sys.argv:
                say(f"extension modules are left out, mqttd itself will not start here: {why}")
                self.extensions = []
                return
            self.extensions, hints = c_sources(self.extensions, CYTHON_DIR)
            for extension in self.extensions:
                extension._needs_stub = False
            super().run()
            for hint in hints:
                say(hint)
            if hints:
                say(f"{len(hints)} performance hints, see above")
        else:
            super().run()


class Hints(Command):
    """Translate everything to C once more and fail when Cython has a performance hint."""

    description = "fail when Cython has a performance hint"
    user_options: ClassVar[list[tuple[str, str | None, str]]] = []

    def initialize_options(self) -> None:
        """No options."""

    def finalize_options(self) -> None:
        """No options."""

    def run(self) -> None:
        _, hints = c_sources(extensions(), os.path.join("build", "cython-hints"), force=True)
        if hints:
            sys.exit(f"mqttd: {len(hints)} performance hints, see above")


if __name__ == "__main__":  # not in the processes of Cython, which import this file from CPython 3.14 on
    setup(ext_modules=extensions(), cmdclass={"build_ext": BuildExtensions, "hints": Hints})
