"""HTML as a small tree, to ask a report what it says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "hr", "input", "path", "use", "rect"}


@dataclass
class Node:
    """An element, its attributes and what is in it, in order."""

    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    parent: Node | None = None
    inside: list[Node | str] = field(default_factory=list)

    def all(self, *tags: str) -> list[Node]:
        """Every element under this one, in the order of the page; of the given tags if any are given."""
        return [node for node in self._walk() if not tags or node.tag in tags]

    def by_id(self, name: str) -> Node:
        (found,) = [node for node in self.all() if node.attributes.get("id") == name]
        return found

    def text(self) -> str:
        return "".join(part if isinstance(part, str) else part.text() for part in self.inside)

    def above(self) -> Iterator[Node]:
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    def rows(self) -> list[list[str]]:
        """The cells of the first table under this element, its header first."""
        (table, *_) = [self] if self.tag == "table" else self.all("table")
        return [[cell.text() for cell in row.all("th", "td")] for row in table.all("tr")]

    def _walk(self) -> Iterator[Node]:
        for part in self.inside:
            if isinstance(part, Node):
                yield part
                yield from part._walk()


class _Builder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.place = Node("document")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs}, self.place)
        self.place.inside.append(node)
        if tag not in VOID:
            self.place = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.place.inside.append(Node(tag, {name: value or "" for name, value in attrs}, self.place))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if self.place.tag != tag or self.place.parent is None:
            raise ValueError(f"</{tag}> closes <{self.place.tag}>")
        self.place = self.place.parent

    def handle_data(self, data: str) -> None:
        self.place.inside.append(data)


def parse(html: str) -> Node:
    """The tree of a page whose tags are all closed as they were opened; anything else is an error."""
    builder = _Builder()
    builder.feed(html)
    builder.close()
    if builder.place is not builder.root:
        raise ValueError(f"<{builder.place.tag}> is never closed")
    return builder.root
