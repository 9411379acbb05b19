"""Matching of a topic against many Topic Filters [MQTT-4.7], in plain Python, for rare use."""

from __future__ import annotations

__all__ = ["FilterTree"]


class FilterTree:
    """A node of the tree: the Topic Filters with a common beginning; the root has all."""

    __slots__ = ("after", "text")

    def __init__(self) -> None:
        self.after: dict[bytes, FilterTree] = {}
        self.text: bytes | None = None
        """The filter that ends here."""

    def add(self, text: bytes) -> None:
        """Add a Topic Filter."""
        node = self
        for level in text.split(b"/"):
            node = node.after.setdefault(level, FilterTree())
        node.text = text

    def match(self, topic: bytes) -> list[bytes]:
        """Return the filters that match."""
        ends: list[FilterTree | None] = []
        nodes = [self]
        wild = not topic.startswith(b"$")  # whether wildcards match at the first level [MQTT-4.7.2-1]
        for level in topic.split(b"/"):
            if wild:
                ends += (node.after.get(b"#") for node in nodes)
            steps = (level, b"+") if wild else (level,)
            nodes = [node.after[step] for node in nodes for step in steps if step in node.after]
            wild = True
        ends += nodes
        ends += (node.after.get(b"#") for node in nodes)
        return [end.text for end in ends if end is not None and end.text is not None]
