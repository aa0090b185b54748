"""Checks the built documentation: its links lead to existing pages and anchors, and no page loads from other hosts.

``python -m tools.site build/site`` prints mistakes and, if there are any, exits with status 1. Sphinx checks links in
the sources only. This program checks the HTML that a browser gets, including navigation and generated reference pages.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose targets a browser loads without the reader following a link.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_LOADED_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest", "modulepreload"}
_STYLE = re.compile(r"url\(\s*['\"]?([^'\")]+)|@import\s+['\"]([^'\"]+)")


class Page(HTMLParser):
    """One HTML page: the targets of its links, the addresses that it loads, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the anchor, link or loaded address of one tag."""
        attributes = dict(attrs)
        if identifier := attributes.get("id"):
            self.anchors.add(identifier)
        if tag == "a" and (target := attributes.get("href")):
            self.links.append(target)
        if tag in _LOADED and (target := attributes.get(_LOADED[tag])):
            self.loads.append(target)
        if tag == "link" and set((attributes.get("rel") or "").split()) & _LOADED_LINKS:
            self.loads.append(attributes.get("href") or "")
        self.loads += _style(attributes.get("style") or "")


def _style(text: str) -> list[str]:
    return [first or second for first, second in _STYLE.findall(text)]


def main(folder: Path) -> int:
    """Print every mistake and return the exit status."""
    pages = {path: Page() for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        page.feed(path.read_text())
    mistakes = [*_links(pages), *_loads(folder, pages)]
    for mistake in mistakes:
        print(mistake)
    print(f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(mistakes)} mistakes")
    return 1 if mistakes or not pages else 0


def _links(pages: dict[Path, Page]) -> Iterator[str]:
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{path}: {link}: the linked file does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{path}: {link}: the linked page has no such anchor"


def _loads(folder: Path, pages: dict[Path, Page]) -> Iterator[str]:
    sheets = {path: _style(path.read_text()) for path in folder.rglob("*.css")}
    for path, loads in [*((path, page.loads) for path, page in pages.items()), *sheets.items()]:
        for load in loads:
            parts = urlsplit(load)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                yield f"{path} loads {load} from another host"
            elif parts.path and not (path.parent / unquote(parts.path)).is_file():
                yield f"{path} loads {load}, which does not exist"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
