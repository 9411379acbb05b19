"""Topic Names, Topic Filters and $share (MQTT 5, 4.7 and 4.8.2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyx.protocol import topics


@pytest.mark.mqtt(
    "5:3.3.2-2", "5:4.7.0-1", "5:4.7.3-1", "5:4.7.3-2", "311:3.3.2-2", "311:4.7.1-1", "311:4.7.3-1", "311:4.7.3-2"
)
@pytest.mark.parametrize(
    ("name", "valid"),
    [
        (b"a", True),
        (b"/", True),
        (b"//", True),
        (b"a/b", True),
        (b"$SYS/x", True),
        (b" ", True),
        ("größe/温度".encode(), True),
        (b"x" * 65_535, True),
        (b"", False),
        (b"x" * 65_536, False),
        (b"a/+", False),
        (b"a+b", False),
        (b"#", False),
        (b"a#", False),
        (b"a\0", False),
        (b"a/\xff", False),
        (b"\xed\xa0\x80", False),
    ],
)
def test_topic_names(name: bytes, valid: bool) -> None:
    """A Topic Name has at least one character, no wildcard and no U+0000."""
    assert topics.is_topic_name(name) is valid


@pytest.mark.mqtt(
    "5:4.7.1-1", "5:4.7.1-2", "5:4.7.3-1", "5:4.8.2-1", "5:4.8.2-2", "311:4.7.1-2", "311:4.7.1-3", "311:4.7.3-1"
)
@pytest.mark.parametrize(
    ("topic_filter", "valid"),
    [
        (b"a", True),
        (b"/", True),
        (b"#", True),
        (b"/#", True),
        (b"a/#", True),
        (b"+", True),
        (b"+/", True),
        (b"/+", True),
        (b"+/+/#", True),
        (b"a/+/b", True),
        (b"$SYS/#", True),
        (b"x" * 65_535, True),
        (b"", False),
        (b"x" * 65_536, False),
        (b"a#", False),
        (b"#/a", False),
        (b"##", False),
        (b"a/#/", False),
        (b"a+", False),
        (b"+a", False),
        (b"++", False),
        (b"a/b+/c", False),
        (b"a/\0", False),
        (b"\xc0\x80", False),
        (b"$share", True),
        (b"$shared/a/b", True),
        (b"$share/g/a", True),
        (b"$share/g//", True),
        (b"$share/g/+/b/#", True),
        (b"$share/", False),
        (b"$share/g", False),
        (b"$share/g/", False),
        (b"$share//a", False),
        (b"$share/g+/a", False),
        (b"$share/#/a", False),
        (b"$share/g/a#", False),
    ],
)
def test_topic_filters(topic_filter: bytes, valid: bool) -> None:
    """+ and # take whole levels, # the last one; $share has a name without wildcards and a filter after it."""
    assert topics.is_topic_filter(topic_filter) is valid


def model_of_filters(topic_filter: str) -> bool:
    """The rules of 4.7.1 and 4.8.2, level by level."""
    parts = topic_filter.split("/")
    if parts[0] == "$share" and len(parts) > 1:
        if len(parts) < 3 or not parts[1] or "+" in parts[1] or "#" in parts[1]:
            return False
        parts = parts[2:]
    if parts == [""]:
        return False
    wild = [part for part in parts if "+" in part or "#" in part]
    return all(part in ("+", "#") for part in wild) and "#" not in parts[:-1]


@given(st.lists(st.sampled_from(["$share", "a", "+", "#", "/", "/", "é"]), max_size=8).map("".join))
def test_filters_against_the_model(topic_filter: str) -> None:
    assert topics.is_topic_filter(topic_filter.encode()) == model_of_filters(topic_filter)


@given(st.text(alphabet="ab/+#é\0", max_size=20))
def test_names_against_the_model(name: str) -> None:
    assert topics.is_topic_name(name.encode()) == (name != "" and not set("+#\0") & set(name))
    assert topics.contains_wildcard(name.encode()) == ("+" in name or "#" in name)
    assert topics.levels(name.encode()) == len(name.split("/"))


@pytest.mark.mqtt("5:4.8.2-1", "5:4.8.2-2")
def test_parse_share() -> None:
    """The ShareName ends at the next separator; everything after it is the filter."""
    assert topics.parse_share(b"$share/g/a/b") == (b"g", b"a/b")
    assert topics.parse_share(b"$share/g//a") == (b"g", b"/a")
    assert topics.parse_share("$share/größe/#".encode()) == ("größe".encode(), b"#")
    for other in (
        b"a/b",
        b"$share",
        b"$share/",
        b"$share/g",
        b"$share/g/",
        b"$share//a",
        b"$share/+/a",
        b"$SHARE/g/a",
        b"",
    ):
        assert topics.parse_share(other) is None
