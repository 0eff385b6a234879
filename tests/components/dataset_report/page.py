"""The page, taken apart for tests: tags, text and pictures."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions

HOSTILE_CLASS = "<script>alert(1)<"  # with a folder "script>" below it, the key closes the tag
HOSTILE_NAME = "\"'><img src=x onerror=alert(2)>.png"


class Page(HTMLParser):
    """Every tag with its attributes, and the text outside of script and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.own: dict[str, str] = {"script": "", "style": ""}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._inside = tag if tag in self.own else ""
        self.text += " "

    def handle_endtag(self, tag):
        self._inside = ""
        self.text += " "

    def handle_data(self, data):
        if self._inside:
            self.own[self._inside] += data
        else:
            self.text += data

    def images(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == "img" and "src" in attributes]

    def words(self) -> str:
        """The text with a single space wherever there is one, or an element begins or ends."""
        return " ".join(self.text.split())


def pixels(url: str) -> Image.Image:
    """The picture of a `data:` URL."""
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2], validate=True))) as image:
        image.load()
        return image


def ingest(tmp_path: Path, files: dict[str, bytes], **options) -> Path:
    """A dataset of these files, which lie in `source` beside it."""
    for name, data in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    given = {"splits": {"train": 1}, "max_reject_ratio": 1, **options}
    run(IngestOptions(source=str(tmp_path / "source"), out=str(tmp_path / "made"), **given))
    return tmp_path / "made"
