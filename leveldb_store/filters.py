"""Comparison of Topic Filters [MQTT-4.7]: whether one covers another, or overlaps it. For valid ones without $share;
matching per message is in `pyx.protocol.topics`.
"""

from __future__ import annotations

__all__ = ["covers", "overlaps"]


def covers(wide: bytes, narrow: bytes) -> bool:
    """Return whether every topic that `narrow` matches is matched by `wide`."""
    wide_levels, narrow_levels = wide.split(b"/"), narrow.split(b"/")
    if wide_levels[0] in (b"#", b"+") and narrow_levels[0][:1] == b"$":  # [MQTT-4.7.2-1]
        return False
    for at, level in enumerate(wide_levels):
        if level == b"#":
            return True
        if at == len(narrow_levels):
            return False
        if narrow_levels[at] == b"#" or (level != b"+" and level != narrow_levels[at]):
            return False
    # `a/#` matches `a` as well
    return len(narrow_levels) == len(wide_levels)


def overlaps(one: bytes, other: bytes) -> bool:
    """Return whether some topic is matched by both."""
    first, second = one.split(b"/"), other.split(b"/")
    for levels, others in ((first, second), (second, first)):
        if levels[0] in (b"#", b"+") and others[0][:1] == b"$":  # [MQTT-4.7.2-1]
            return False
    for a, b in zip(first, second, strict=False):
        if b"#" in (a, b):
            return True
        if a != b and b"+" not in (a, b):
            return False
    longer, shorter = (first, second) if len(first) > len(second) else (second, first)
    return len(first) == len(second) or longer[len(shorter) :] == [b"#"]
