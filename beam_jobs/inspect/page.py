"""What is shown of a path as one HTML file that loads and runs nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from beam_jobs import visible
from beam_jobs.html_page import render_page
from beam_jobs.inspect.pictures import Picture
from beam_jobs.inspect.values import shown_name, shown_value
from beam_jobs.inspect.view import FILE_COLUMNS, View

SIDE_PX = 320  # long side of a picture

_TEMPLATES = Path(__file__).parent / "templates"
_ROOM_BYTES = 8 << 20  # of all pictures together, so that the page stays under 10 MB
_SHOWN_FEATURES = 40  # of a record
_SHOWN_RECORDS = 500


@dataclass(frozen=True, kw_only=True)
class Card:
    """One record on the page.

    Attributes:
      url: of its picture; empty for none.
      tiny: whether its pixels should stay visible when it is enlarged.
      remark: why there is no picture.
      values: name and shown value of its features.
      more: features that are left out.
    """

    url: str = ""
    tiny: bool = False
    remark: str = ""
    values: list[tuple[str, str]]
    more: int = 0


def render(view: View, seen: Iterable[Picture]) -> str:
    """Returns the page. Every name and value in it comes from outside and is escaped.

    Args:
      view: what is shown.
      seen: the picture of each record; taken only as far as there is room.
    """
    cards = _cards(view, seen)
    values = {
        "view": view,
        "cards": cards,
        "left_out": len(view.records) - len(cards),
        "file_columns": FILE_COLUMNS,
    }
    return render_page(_TEMPLATES, "inspect", values, {"line": visible.line})


def _cards(view: View, seen: Iterable[Picture]) -> list[Card]:
    cards: list[Card] = []
    left = _ROOM_BYTES
    for values, picture in zip(view.records[:_SHOWN_RECORDS], seen, strict=False):
        url = picture.url
        left -= len(url)
        if left < 0:
            break
        shown = [(shown_name(name), shown_value(found)) for name, found in sorted(values.items())]
        cards.append(
            Card(
                url=url,
                tiny=picture.image is not None and max(picture.image.size) <= SIDE_PX // 5,
                remark=picture.remark,
                values=shown[:_SHOWN_FEATURES],
                more=max(0, len(shown) - _SHOWN_FEATURES),
            )
        )
    return cards
