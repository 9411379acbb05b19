# Everything that is done to this repository has one command here, and .ci/run calls exactly these.
#
#   make run      virtual environment, compile, start on 127.0.0.1:1883
#   make test     install what the tests need (Debian packages too), compile, run them: what a change can break
#   make test-all the tests that take long (by hand): more seeds, power cuts, histories of what `make test` has
#   make test-newest  the quick tests on the newest CPython of this machine (or NEWEST=), compiled with bounds checks
#   make check    ruff, mypy --strict, cython-lint, performance hints, import directions, tidiness
#   make asan     the tests without sockets, under AddressSanitizer and UndefinedBehaviorSanitizer
#   make fuzz     SECONDS=60 of mutated packets, and of whole sessions of several clients
#   make fuzz-asan  the same under both sanitizers
#   make soak     the longest runs (by hand): everything marked soak, and SOAK_FUZZ_SECONDS of fuzz-asan
#   make demo     SECONDS=60 of a broker with a fleet, snapshots of it, Spark's answers: mqttd-demo/report.html
#   make bench    the measurements (by hand); RULER=../shared/ruler has the comparison with other brokers
#
# PYTHON= chooses the interpreter (CPython 3.11 to 3.14), VENV= where the virtual environment is made.

SHELL   = /bin/bash
PYTHON ?= python3
VENV   ?= .venv
RULER  ?= ../shared/ruler
SECONDS ?= 60
SOAK_FUZZ_SECONDS ?= 1800
# processes of `make asan`; `make test` takes more than there are cores: tests/run.py
JOBS ?= $(shell nproc)
ARGS   ?=

BIN  = $(VENV)/bin
ASAN = build/asan
# cython-lint calls pycodestyle by its name
export PATH := $(abspath $(BIN)):$(PATH)
# tests start thousands of interpreters: without its bytecode each would compile all of mqttd
unexport PYTHONDONTWRITEBYTECODE

PACKAGES = $(wildcard broker shards zmq_mesh leveldb_store loadtest spark_etl)

.PHONY: run compile compile-tests compile-bench test test-all test-newest check asan asan-tree fuzz fuzz-asan soak bench demo clean debian debian-test

run: compile
	$(BIN)/python -m broker $(ARGS)

# -- what has to be there first

# Debian packages, installed only when something is missing: the second run needs no network.
debian:
	@PYTHON="$(PYTHON)" tests/packaging/debian-packages build

debian-test:
	@PYTHON="$(PYTHON)" tests/packaging/debian-packages test

$(VENV)/made: pyproject.toml | debian
	@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || \
	    { echo "mqttd needs CPython 3.11 to 3.14; $(PYTHON) is $$("$(PYTHON)" -V). Say PYTHON=python3.12"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*project["dependencies"], *project["optional-dependencies"]["test"], sep="\n")' > $(VENV)/requirements.txt
	$(BIN)/python -m pip install --quiet -r $(VENV)/requirements.txt
	touch $@

compile: $(VENV)/made
	$(BIN)/python setup.py --quiet build_ext --inplace

# with the adapters through which tests and benchmarks reach what only Cython can call. For tests the steps of each
# callback are counted (pyx/core/work.pxd); for benchmarks the modules are as they are released
compile-tests: $(VENV)/made
	MQTTD_TESTS=1 $(BIN)/python setup.py --quiet build_ext --inplace

compile-bench: $(VENV)/made
	MQTTD_TESTS=bench $(BIN)/python setup.py --quiet build_ext --inplace

# -- tests

# in several processes at a time, then what has to be alone: tests/run.py
test: debian-test compile-tests
	$(BIN)/python -m tests.run $(ARGS)

test-all: debian-test compile-tests
	$(BIN)/python -m tests.run --long $(ARGS)

# In an environment of its own; modules of several versions lie side by side. Nothing to do where no other one is there.
# Compiled as `debug`: gcc takes a quarter of the time, and indexes, asserts and unset attributes are checked.
NEWEST ?= $(shell PYTHON="$(PYTHON)" tests/packaging/newest-python)
test-newest:
ifeq ($(NEWEST),)
	@echo "no newer CPython than $$("$(PYTHON)" -V) is here that mqttd runs on"
else
	$(MAKE) PYTHON=$(NEWEST) VENV=.venv-newest MQTTD_PROFILE=debug debian-test compile-tests
	.venv-newest/bin/python -m tests.run tests/unit tests/contract $(ARGS)
endif

check: $(VENV)/made
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MQTTD_TESTS=1 $(BIN)/python setup.py --quiet build_ext --inplace
	$(BIN)/mypy --strict $(PACKAGES) tests
	$(BIN)/python -m mypy.stubtest --concise --allowlist tests/unit/project/stubtest_allowlist.txt --ignore-unused-allowlist \
	    $(subst /,.,$(basename $(wildcard pyx/*/*.pyi)))
	$(BIN)/cython-lint pyx
	$(BIN)/python setup.py --quiet hints
	$(BIN)/python -m pytest --quiet tests/unit/project/test_imports_one_way.py tests/unit/project/test_tidy.py

# A tree of its own, so that the modules of the release build stay where they are. pymalloc would hide what ASan is to
# find; the leaks that CPython makes at its end are not ours.
SANITIZED = LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libubsan.so)" \
    PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

asan-tree: $(VENV)/made
	MQTTD_TESTS=1 MQTTD_PROFILE=asan $(BIN)/python setup.py --quiet build --build-lib $(ASAN)
	find $(ASAN)/tests/unit -name '*.py' -delete && rm -rf $(ASAN)/tests/{fuzz,contract,conformance,integration,documents}
	cp tests/*.py $(ASAN)/tests/ && cd tests && find unit -name '*.py' -exec cp --parents -t ../$(ASAN)/tests {} +
	cp -r tests/{fuzz,contract,conformance,integration,documents} $(ASAN)/tests/
	cp -r pyproject.toml docs deploy $(ASAN)/

# The callbacks at the configured maxima take as long as all others; `make soak` has them.
ASAN_SOAK = tests/unit/pyx/delivery/test_bounds_of_callbacks.py

# what runs little or nothing of the compiled modules, or other processes that do
ASAN_LEFT_OUT = $(addprefix tests/unit/broker/,admin auth cli cluster config test_logs.py test_testing.py) tests/unit/loadtest

# Those marked `alone` start 64 workers: too much for a machine that runs each of them under sanitizers.
asan: asan-tree
	cd $(ASAN) && $(SANITIZED) $(abspath $(BIN))/python -m pytest -p no:cacheprovider \
	    -m "not whole_tree and not long and not soak and not alone" -n $(JOBS) --dist loadscope --no-loadscope-reorder \
	    $(addprefix --ignore=,$(ASAN_SOAK) $(ASAN_LEFT_OUT)) tests/unit tests/fuzz tests/contract $(ARGS)

fuzz: compile-tests
	$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(ARGS)

fuzz-asan: asan-tree
	cd $(ASAN) && FUZZ_CORPUS=$(CURDIR)/tests/fuzz/corpus $(SANITIZED) \
	    $(abspath $(BIN))/python -m tests.fuzz.run --seconds $(SECONDS) $(ARGS)

soak: debian-test compile-tests
	RULER="$(RULER)" $(BIN)/python -m pytest -m soak -o faulthandler_timeout=0 -rP $(ARGS)
	$(MAKE) fuzz-asan SECONDS=$(SOAK_FUZZ_SECONDS) ARGS=
	cd $(ASAN) && $(SANITIZED) $(abspath $(BIN))/python -m pytest -p no:cacheprovider -n $(JOBS) $(ASAN_SOAK)

bench: compile-bench
	$(BIN)/python -m tests.benchmarks.run --ruler "$(RULER)" $(ARGS)

# mqttd-demo must not be there, or be empty; Java 17 must be
demo: debian-test compile
	$(BIN)/python -m spark_etl demo --seconds $(SECONDS) $(ARGS)

clean:
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f pyx/*/*.so tests/unit/adapters/*.so tests/benchmarks/*.so
