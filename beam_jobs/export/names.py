"""File names for keys: safe in any archive and on any disk, and never the same for two keys.

A key is data. It may be absolute, climb with `..`, hold what a shell or a terminal takes for its own, or have dots,
at which WebDataset cuts a name. So a name is a pure function of one key, whatever else is in the dataset:

    cat/1.jpg       cat/1                         plain, and most keys are
    cat/1.png       cat/1_png                     plain, the ending kept so that it is not `cat/1` once more
    ../a b.jpg      a_b_jpg-e5a2a7a0a436168c      anything else: what is harmless of it, and a hash of the whole
"""

from __future__ import annotations

import hashlib
import re

MAX_CHARACTERS = 80  # with its ending it fits into the 100 of the oldest tar header

_PART = r"[A-Za-z0-9_][A-Za-z0-9_-]*"
_PLAIN = re.compile(rf"({_PART}(?:/{_PART})*)\.(jpg|jpeg|png|bmp|gif|webp|tif|tiff)")
# What the other rules make; a plain name must never look like it.
_MADE = re.compile(r".*(_(jpeg|png|bmp|gif|webp|tif|tiff)|-[0-9a-f]{16})")
# Devices of Windows, which cannot be unpacked there.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_DIGITS = 16


def safe_name(key: str) -> str:
    """Returns a relative path without dots, of at most `MAX_CHARACTERS` ASCII characters; two keys never share one."""
    found = _PLAIN.fullmatch(key)
    if found and not _made(found[1]) and not any(map(_DEVICES.fullmatch, found[1].split("/"))):
        name = found[1] if found[2] == "jpg" else f"{found[1]}_{found[2]}"
        if len(name) <= MAX_CHARACTERS:
            return name
    parts = (_UNSAFE.sub("_", part).strip("_-") for part in re.split(r"[/\\]", key))
    harmless = "_".join(filter(None, parts))[: MAX_CHARACTERS - _HASH_DIGITS - 1]
    digest = hashlib.sha256(key.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{harmless or 'image'}-{digest}"


def _made(stem: str) -> bool:
    return bool(_MADE.fullmatch(stem))
