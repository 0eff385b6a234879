"""The blocks of `docs/elsewhere.md`, by section."""

from __future__ import annotations

import re

from tests.doc_pages import SHELL, blocks, fenced, text_of

PAGE = "elsewhere"
# Datasets of the tests have two shards.
_SHARD = ("data-00000-of-00001", "data-00000-of-00002")


def commands() -> list[list[str]]:
    """The arguments of every command of the page, in order."""
    shown = [block for block in blocks(PAGE) if block.language in SHELL]
    return [words[1:] for block in shown for words in block.commands]


def code(section: str) -> str:
    """The Python of a section, all of its blocks as one script.

    Raises:
      KeyError: the page has no such section, or it has no Python.
    """
    parts = re.split(r"^## (.+)\n", text_of(PAGE), flags=re.MULTILINE)
    text = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    found = "\n".join(block.code for block in fenced(PAGE, text) if block.language == "python")
    if not found:
        raise KeyError(f"{section} has no Python")
    return found.replace(*_SHARD)


def versions() -> dict[str, set[str]]:
    """Distribution -> versions, as the table of the page names them: `keras 3.12.4 or 3.15.1`."""
    found: dict[str, set[str]] = {}
    for row in re.findall(r"^\| [^|]+ \| ([a-z][^|]*\d) \|", text_of(PAGE), flags=re.MULTILINE):
        for name, *named in re.findall(r"([\w-]+) (\d[\w.]*)(?: or (\d[\w.]*))?", row):
            found.setdefault(name, set()).update(filter(None, named))
    return found
