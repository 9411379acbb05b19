"""docs/reference/log-events.md and command-line.md agree with the sources, and are complete."""

from __future__ import annotations

import ast

import pytest

from broker.config.limits import Limits
from tests.documents import command_line, log_events
from tests.documents.log_events import Event, Sources, UnknownCall, problems, read_meanings, table

pytestmark = pytest.mark.whole_tree


def collected(source: str, file: str = "broker/a.py") -> dict[str, Event]:
    """Return the events of one file."""
    return Sources({file: ast.parse(source)}).events()


# ------------------------------------------------------------------------------------------ log events


def test_the_page_of_log_events_is_that_of_today() -> None:
    path = log_events.ROOT / log_events.PAGE
    assert log_events.with_table(path.read_text()) == path.read_text(), (
        f"run: python -m tests.documents.log_events --write {log_events.PAGE}"
    )


def test_every_event_has_one_meaning() -> None:
    assert list(problems(Sources.of_the_tree().events(), read_meanings())) == []
    meanings = [row["means"] for row in read_meanings().values()]
    assert all(meaning.endswith(".") and len(meaning) > 10 for meaning in meanings)


def test_events_that_the_limits_name_are_logged() -> None:
    extras = [field.json_schema_extra for field in Limits.model_fields.values()]
    counters = [str(extra["counter"]) for extra in extras if isinstance(extra, dict)]
    named = {counter.removeprefix("log ") for counter in counters if counter.startswith("log ")}
    assert named
    assert named <= set(read_meanings())


@pytest.mark.parametrize(
    ("source", "name", "levels", "fields"),
    [
        ("self.log.info('a', x=1, y=2)", "a", {"info"}, ["x", "y"]),
        ("self._node.log.warning('a')", "a", {"warning"}, []),
        ("log('error', 'a', x=1)", "a", {"error"}, ["x"]),
        ("self._log('debug', 'a')", "a", {"debug"}, []),
        ("log.write('info', 'a', x=1)\nlog.write('error', 'a', y=1)", "a", {"info", "error"}, ["x", "y"]),
        ("render('warning', 'a', {**bound, 'x': 1})", "a", {"warning"}, ["x"]),
        ("def f():\n    level = 'error' if x else 'info'\n    log.emit(level, 'a')", "a", {"info", "error"}, []),
        ("self._log('error', post.event('died'))", "control_died", {"error"}, []),
    ],
)
def test_calls_that_are_found(source: str, name: str, levels: set[str], fields: list[str]) -> None:
    event = collected(source)[name]
    assert (event.levels, event.fields, event.files) == (levels, fields, {"broker/a.py"})


def test_a_name_that_a_constructor_is_given_is_found() -> None:
    source = (
        "class P:\n    def __init__(self, text, event):\n        self._event = event\n"
        "    def f(self):\n        self._log.info(self._event, n=1)\n"
        "P('x', 'one')\nP('y', 'two')\n"
    )
    assert set(collected(source)) == {"one", "two"}


@pytest.mark.parametrize("source", ["self.log.info(name)", "log('error', name + 'x')", "self.log.info(f'{a}')"])
def test_a_name_that_cannot_be_read_is_an_error(source: str) -> None:
    with pytest.raises(UnknownCall):
        collected(source)


@pytest.mark.parametrize(
    ("meanings", "words"),
    [
        ({}, "a (broker/a.py) has no meaning"),
        ({"a": {"means": "x"}, "b": {"means": "y"}}, "nothing logs b"),
        ({"a": {"means": "x", "also": ["y"]}}, "a: its calls have no more fields"),
        ({"a": {"means": "x", "files": ["broker/b.py"]}}, "a is logged in ['broker/a.py']: do all mean the same?"),
    ],
)
def test_what_does_not_agree_is_said(meanings: dict[str, dict[str, object]], words: str) -> None:
    (said,) = problems(collected("log.info('a')"), meanings)
    assert said.startswith(words)


def test_a_name_in_two_files_must_say_so() -> None:
    events = Sources({name: ast.parse("log.info('a')") for name in ("broker/a.py", "shards/b.py")}).events()
    (said,) = problems(events, {"a": {"means": "x"}})
    assert said.startswith("a is logged in ['broker/a.py', 'shards/b.py']")
    assert not list(problems(events, {"a": {"means": "x", "files": ["broker/a.py", "shards/b.py"]}}))


def test_fields_from_elsewhere_must_be_named() -> None:
    events = collected("log.info('a', x=1, **fields)")
    (said,) = problems(events, {"a": {"means": "x"}})
    assert said.startswith("a: its calls have more fields")
    row = "| `a` | info | `x`, `y` | m. |"
    assert table(events, {"a": {"means": "m.", "also": ["x", "y"]}}).splitlines()[-1] == row


# ------------------------------------------------------------------------------------------ the command line


def test_the_page_of_the_command_line_is_that_of_today() -> None:
    path = command_line.ROOT / command_line.PAGE
    assert command_line.with_tables(path.read_text()) == path.read_text(), (
        f"run: python -m tests.documents.command_line --write {command_line.PAGE}"
    )


@pytest.mark.parametrize("command", command_line.STATUSES)
def test_the_statuses_are_those_of_the_code(command: str) -> None:
    assert set(command_line.STATUSES[command][1]) == command_line.statuses(command)


def test_commands_are_those_that_the_usage_names() -> None:
    named = {line.split()[1] for line in command_line.usage("").splitlines() if line.startswith("mqttd ")}
    assert named == set(command_line.STATUSES) - {""}


def test_no_error_is_left_out() -> None:
    known = {error for error in command_line.ERRORS if not error.endswith("._fail")}
    assert command_line.raised() == known
    assert all(map(command_line.texts, command_line.ERRORS))
