"""Ranks the pages in the search: what explains a subject comes before what only mentions it."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.pages import Page

_BOOSTS = {"training.md": 3.0, "ops.md": 3.0, "input.md": 2.0, "own-images.md": 2.0, "gates.md": 2.0, "peers.md": 0.3}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Sets the rank of a page."""
    if page.file.src_uri in _BOOSTS:
        page.meta["search"] = {"boost": _BOOSTS[page.file.src_uri]}
    return markdown
