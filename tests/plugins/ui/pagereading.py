"""Reads a page as a strict browser does, without running anything."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """The elements of a page in order, each with its attributes and the text right in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(html)
        self.close()
        assert not self._open, [self.elements[number][0] for number in self._open]

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data):
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def named(self, tag: str) -> list[tuple[str, dict[str, str | None], list[str]]]:
        """Return the elements of that name."""
        return [one for one in self.elements if one[0] == tag]

    def texts(self, tag: str) -> list[str]:
        """Return the texts right in the elements of that name."""
        return ["".join(text).strip() for _, _, text in self.named(tag)]

    def by_id(self, name: str) -> str:
        """Return the text right in the element of that id."""
        (found,) = [text for _, attributes, text in self.elements if attributes.get("id") == name]
        return "".join(found).strip()
