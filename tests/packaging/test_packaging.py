"""The shipped packages: sdist and wheel, an installation in a clean environment, and one without a compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from leveldb_store.format.schema import StoredMessage
from tests.made_snapshot import archive_of, number_at, snapshot_of

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("pyx", "broker", "shards", "zmq_mesh", "leveldb_store", "loadtest", "spark_etl")
PACKAGES = [name for name in FOLDERS if (ROOT / name).is_dir()]
FILES = ["setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md"]
SECONDS_MAX = 600.0


def install(environment: Path, wanted: str | Path, cwd: Path) -> None:
    """Install what a user would get by pip, with the pip of this environment: the other one would have to be installed
    first. Modules that are never imported are not compiled.
    """
    ours: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python"]
    run(*ours, "install", "--quiet", "--no-compile", wanted, cwd=cwd)


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command; a failure shows its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MQTTD_", "PYTHON"))}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}\n{done.stderr}"[
        -8000:
    ]
    return done


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with tests, without build products."""
    copy = tmp_path_factory.mktemp("tree")
    for name in FILES:
        shutil.copy2(ROOT / name, copy / name)  # with its old timestamp: compiled files are newer
    for name in [*PACKAGES, "tests"]:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
    return copy


@pytest.fixture(scope="module", params=["modules of this tree", "compiled"])
def built(tree: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """sdist and wheel; the wheel is made from the sdist, which proves the sdist complete. The compiled one is not
    optimised, which would take much longer; all other tests use a release build.
    """
    out = tree / f"dist {request.param}"
    build: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out]
    if request.param == "compiled":
        run(*build, cwd=tree, MQTTD_PROFILE="debug")
        (sdist,) = out.glob("*.tar.gz")
    else:
        run(*build, "--sdist", cwd=tree)
        (sdist,) = out.glob("*.tar.gz")
        with tarfile.open(sdist) as archive:
            archive.extractall(out, filter="data")
        unpacked = out / sdist.name.removesuffix(".tar.gz")
        take_modules(unpacked / "build")
        run(*build, "--wheel", unpacked, cwd=out, MQTTD_TESTS="1")
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def take_modules(build: Path) -> None:
    """Copy the modules compiled for this tree: newer than the sources there too, they are not compiled again."""
    shutil.copytree(ROOT / "build" / "cython-release", build / "cython-release")
    library = build / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    for source in (ROOT / "pyx").rglob("*.pyx"):  # there may also be modules of other sources or for other versions
        module = source.with_suffix(sysconfig.get_config_var("EXT_SUFFIX"))
        there = library / module.relative_to(ROOT)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module, there)


@pytest.mark.long
def test_sdist(built: tuple[Path, Path]) -> None:
    """The sdist has every source of the wheel, and no tests."""
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.suffix in (".py", ".pyx", ".pxd", ".pyi", ".properties") or path.name == "py.typed"
    }
    assert sorted(wanted - names) == []
    assert [name for name in names if name.startswith("tests") or name.endswith((".so", ".c"))] == []


@pytest.mark.long
def test_wheel(built: tuple[Path, Path]) -> None:
    """The wheel has modules, types and licence; no tests, no Cython sources."""
    with zipfile.ZipFile(built[1]) as archive:
        names = archive.namelist()
    for package in PACKAGES:
        assert f"{package}/__init__.py" in names
        assert f"{package}/py.typed" in names
    modules = {name.partition(".")[0] for name in names if name.endswith(".so")}
    assert modules == {str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "pyx").rglob("*.pyx")}
    assert {name for name in names if name.endswith(".pyi")} == {
        str(path.relative_to(ROOT)) for path in (ROOT / "pyx").rglob("*.pyi")
    }
    assert any(name.endswith("licenses/LICENSE") for name in names)
    wanted = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert sorted(wanted - set(names)) == []
    assert "spark_etl/log4j2.properties" in names
    (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    assert about.startswith("mqttd_broker-"), "mqttd is another project's name on the package index"
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    assert [name for name in names if name.endswith((".pyx", ".pxd", ".c"))] == []


@pytest.fixture(scope="module")
def programs(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a clean environment in which the wheel is installed, with its dependencies."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory / "venv", with_pip=False)
    install(directory / "venv", built[1], directory)
    return directory / "venv" / "bin"


@pytest.mark.long
def test_installation_in_a_clean_environment(programs: Path, tmp_path: Path) -> None:
    """pip install of the wheel gives a working ``mqttd``."""
    assert "0.1.0" in run(programs / "mqttd", "--version", cwd=tmp_path).stdout
    assert "--workers" in run(programs / "mqttd", "--help", cwd=tmp_path).stdout
    started = subprocess.Popen(
        [programs / "mqttd", "--workers", "1", "--port", "0"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert started.stdout is not None
    said = []
    for line in started.stdout:
        said.append(line)
        if line.startswith("mqttd ready"):
            break
    started.terminate()
    said.append(started.communicate(timeout=30)[0])
    assert started.returncode == 0, "".join(said)
    assert any(line.startswith("mqttd ready 127.0.0.1:") for line in said), "".join(said)
    assert (tmp_path / "mqttd-data" / "store.json").exists(), "what it is told lasts, without being asked to"


SUITE = """
import socket

def test_the_fixture(mqttd):
    with socket.create_connection((mqttd.host, mqttd.port), 20) as client:
        client.sendall(bytes.fromhex("10 0d 0004 4d515454 04 02 0000 0001 61"))
        assert client.recv(4) == bytes.fromhex("20 02 00 00")
"""


@pytest.mark.long
def test_the_pytest_plugin_of_an_installation(programs: Path, tmp_path: Path) -> None:
    """With pytest in the same environment the fixture needs no configuration; without pytest nothing needs it."""
    run(programs / "python", "-c", "import broker.testing", cwd=tmp_path)  # pytest is not there yet
    (pytest_wanted,) = [line for line in requirements("test") if line.startswith("pytest>")]
    install(programs.parent, pytest_wanted, tmp_path)
    (tmp_path / "test_with_mqttd.py").write_text(SUITE)
    done = run(programs / "pytest", "-W", "error", "--strict-markers", tmp_path, cwd=tmp_path)
    assert "plugins: mqttd-broker-" in done.stdout
    assert "1 passed" in done.stdout


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, from pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as opened:
        found: list[str] = tomllib.load(opened)["project"]["optional-dependencies"][extra]
    return found


@pytest.mark.long
def test_without_a_compiler(tree: Path, tmp_path: Path) -> None:
    """Without a compiler the pure parts install, and ``mqttd`` says in one line why it cannot start."""
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    run(*pip, "--target", target, tree, cwd=tmp_path, CC="there-is-no-compiler")
    assert not list(target.rglob("*.so"))
    for package in PACKAGES:
        assert (target / package / "__init__.py").exists()
    done = subprocess.run(
        [sys.executable, "-m", "broker", "--port", "0"],
        cwd=target,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "mqttd" in done.stderr
    # analysts need no more: spark_etl works with the packages that pip installs
    messages = (StoredMessage(b"t", b"x", number_at(1_790_000_000 + each), publisher="p") for each in range(50))
    snapshot_of(tmp_path / "snapshot", [archive_of(messages)])
    job: list[str | Path] = [
        "-m",
        "spark_etl",
        "parquet",
        "--snapshots",
        tmp_path / "snapshot",
        "--out",
        tmp_path / "out",
    ]
    told = run(sys.executable, "-P", *job, "--master", "local[2]", cwd=tmp_path, PYTHONPATH=str(target)).stdout
    assert told.startswith("commit 1: 50 messages")
    assert list((tmp_path / "out" / "messages").glob("date=2026-09-21/tenant=default/*.parquet"))


def test_no_page_tells_pip_of_another_project() -> None:
    """`mqttd` on the package index is another project: every pip command for ours says mqttd-broker."""
    with (ROOT / "pyproject.toml").open("rb") as opened:
        project = tomllib.load(opened)["project"]
    assert project["name"] == "mqttd-broker"
    assert project["scripts"] == {"mqttd": "broker.cli.main:main"}
    kinds = {".md", ".py", ".toml", ".service", ".yml", ".cfg", ""}
    folders = [ROOT / name for name in ("docs", "deploy", "tests", *PACKAGES)]
    pages = [path for folder in folders for path in folder.rglob("*") if path.is_file() and path.suffix in kinds]
    another = re.compile(r"""mqttd\[|pip install (?:-\S+ )*['"]?mqttd(?![-_\w])""")
    wrong = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in [*pages, *ROOT.glob("*.md"), ROOT / "Makefile"]
        if path != Path(__file__)
        for line in path.read_text(errors="replace").splitlines()
        if another.search(line)
    ]
    assert not wrong


@pytest.mark.parametrize("target", ["test", "test-all", "soak", "bench"])
def test_what_runs_tests_compiles_their_adapters(target: str) -> None:
    """On a fresh clone: a tree in which `make test` has run has them already."""
    dry = run("make", "--dry-run", "VENV=none", target, cwd=ROOT).stdout.splitlines()
    steps = [line for line in dry if " -m pytest " in line or " -m tests." in line or "MQTTD_TESTS=" in line]
    assert "setup.py --quiet build_ext --inplace" in steps[0]
    assert len(steps) > 1
