"""Names of features, as findings and as settings call them, and of the properties of a verdict."""

from __future__ import annotations

from beam_jobs.dataset.record import EXTRA_PREFIX

FINDINGS_KEY = "findings"  # property of a `DatasetVerdict`: how many there are
IMAGE_PREFIX = "image/"
CLASS = "image/class/text"
MISSING = "(missing)"  # the category of images that have no value
_NUMBERS = ("short_side", "aspect_ratio", "bytes", "brightness", "mean_red", "mean_green", "mean_blue")
FACTS = ("class", "format", *_NUMBERS)  # as they are called in settings


def is_feature(name: object) -> bool:
    """Returns whether a name in the settings can be one of a feature."""
    if not isinstance(name, str):
        return False
    known = {*FACTS, *map(full_name, FACTS)}
    return name in known or (name.startswith(EXTRA_PREFIX) and name != EXTRA_PREFIX)


def full_name(name: str) -> str:
    """Returns the whole name of a feature that the settings name: `brightness` is `image/brightness`."""
    if name == "class":
        return CLASS
    return IMAGE_PREFIX + name if name in FACTS else name


def short_name(name: str) -> str:
    """Returns what the settings call a feature."""
    return "class" if name == CLASS else name.removeprefix(IMAGE_PREFIX)
