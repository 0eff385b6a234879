"""What the features of foreign records probably are, from their names and from what was seen of their values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from beam_jobs import record, storage, tfds_info
from beam_jobs.inspect.summary import MOST_DISTINCT, FeatureSummary, FileSummary

FEEDLINE, TFDS, TFX, BY_HAND = "Feedline", "TFDS", "TFX", "tfrecord by hand"

_OURS = {record.ENCODED, record.FORMAT, record.FILENAME, record.SHA256, record.BYTES, record.ASPECT_RATIO}
_TFDS_NAME = re.compile(r"[\w.-]+-[\w.-]+\.tfrecord-\d{5}-of-\d{5}$")
_TFX_NAME = re.compile(r"(?:^|/)Split-[^/]+/[^/]+\.gz$")
_LABEL = re.compile(
    r"(?:^|[/_.-])(?:fine_|coarse_)?(?:labels?|class(?:es)?|targets?|category|categories|y)(?:$|[/_.-])"
)
_FORMAT = re.compile(r"(?:^|[/_.-])(?:format|encoding)$")  # of a file, whatever comes before
_KEY = re.compile(r"(?:^|[/_.-])(?:file_?name|key|id|uri|url|path|name)$")
_MASK = re.compile(r"mask|segmentation|annotation|alpha")
_EDGE = re.compile(r"(?P<box>.*?)(?P<edge>[xy]_?(?:min|max))$")
_BOX = re.compile(r"(?:^|[/_.-])(?:bbox(?:es)?|box(?:es)?|rect)$")
# Last word of a name -> what it counts.
_SIDES = {
    **dict.fromkeys(("height", "rows", "h"), "height"),
    **dict.fromkeys(("width", "cols", "columns", "w"), "width"),
    **dict.fromkeys(("channels", "depth", "c"), "channels"),
}
_SIZE = re.compile(rf"(?:^|[/_.-])({'|'.join(_SIDES)})$")
_PIXELS = 64  # numbers, from which they are more likely pixels than measurements
_OBJECTS = ("object", "bbox", "box")


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What records probably are.

    Attributes:
      looks_like: who wrote them, and how one can tell.
      roles: feature -> what it looks like; those without an entry look like nothing in particular.
      image: feature that holds the encoded image, or its bare pixels; empty for none.
      sides: `height`, `width` and perhaps `channels` -> feature that holds it.
      labels: features that look like the class, the likeliest first.
      text: features that hold text other than class names and keys.
      boxes: features, or what the names of four have in common, that look like boxes.
    """

    looks_like: str
    roles: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    sides: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    boxes: tuple[str, ...] = ()


def guess(summary: FileSummary) -> Guess:
    """Returns what the records of a summary probably are."""
    features = summary.features
    sides = dict(_sides(features))
    encoded = _encoded(features)
    pixels = [] if encoded else _bare_pixels(summary.sample, sides)
    images = encoded or pixels
    boxes = dict(_boxes(features))
    free = {name: one for name, one in features.items() if name not in (*images, *boxes, *sides.values())}
    labels = _labels(free)
    keys = [name for name, one in free.items() if _is_text(one) and _is_key(name, one) and name not in labels]
    text = [name for name, one in free.items() if _is_text(one) and name not in (*labels, *keys)]
    roles = {name: _numbers(one) for name, one in features.items() if one.low is not None}
    roles |= {name: _text_role(features[name]) for name in text} | dict.fromkeys(keys, "key") | boxes
    roles |= {name: _label_role(features[name]) for name in labels}
    roles |= {name: _image_role(name, features[name], images[0]) for name in encoded}
    roles |= dict.fromkeys(pixels, "image, bare pixels")
    return Guess(
        looks_like=_looks_like(summary),
        roles=roles,
        image=images[0] if images else "",
        sides=sides,
        labels=tuple(labels),
        text=tuple(text),
        boxes=tuple(dict.fromkeys(map(_box_name, boxes))),
    )


def _encoded(features: Mapping[str, FeatureSummary]) -> list[str]:
    found = [name for name, one in features.items() if one.kind == "bytes" and 2 * _files(one) >= one.records > 0]
    return sorted(
        found, key=lambda name: (name != record.ENCODED, bool(_MASK.search(name)), -features[name].value_bytes)
    )


def _files(one: FeatureSummary) -> int:
    return sum(one.formats.values())


def _sides(features: Mapping[str, FeatureSummary]) -> Iterator[tuple[str, str]]:
    for name, one in sorted(features.items(), reverse=True):
        found = _SIZE.search(name)
        if found and one.kind == "int64" and one.most == 1 and not _MASK.search(name):
            yield _SIDES[found[1]], name


def _bare_pixels(sample: Mapping[str, list], sides: Mapping[str, str]) -> list[str]:
    """Returns the features whose bytes are as many as the image has pixels, by the record that was looked at."""
    return [
        name
        for name, values in sample.items()
        if len(values) == 1 and isinstance(values[0], bytes) and channels_of(values[0], sample, sides)
    ]


def channels_of(pixels: bytes, values: Mapping[str, list], sides: Mapping[str, str]) -> int:
    """Returns how many bytes a pixel has, 1, 3 or 4; 0 when the sizes of a record do not fit its bytes."""
    height, width = (values.get(sides.get(side, ""), [0])[0] for side in ("height", "width"))
    if not (isinstance(height, int) and isinstance(width, int) and height > 0 and width > 0):
        return 0
    return next((count for count in (3, 1, 4) if len(pixels) == height * width * count), 0)


def _labels(features: Mapping[str, FeatureSummary]) -> list[str]:
    named = [
        name
        for name, one in features.items()
        if _LABEL.search(name) and not _FORMAT.search(name) and _may_be_label(one)
    ]
    # Of an object, and names instead of numbers, come after the class of the image.
    named.sort(key=lambda name: (any(part in name for part in _OBJECTS), features[name].kind == "bytes", name))
    if named:
        return named
    return sorted(
        name
        for name, one in features.items()
        if one.kind == "int64" and one.least == one.most == 1 and one.low == 0 and 1 < one.distinct <= MOST_DISTINCT
        if not _KEY.search(name) and 2 * one.distinct <= one.records
    )


def _may_be_label(one: FeatureSummary) -> bool:
    return (one.kind == "int64" and one.low is not None) or _is_text(one)


def _is_text(one: FeatureSummary) -> bool:
    filled = one.records - one.empty  # an image without a label has an empty list of names
    return one.kind == "bytes" and 10 * one.texts >= 9 * filled > 0


def _is_key(name: str, one: FeatureSummary) -> bool:
    return bool(_KEY.search(name)) and one.distinct >= min(one.records, MOST_DISTINCT)


def _boxes(features: Mapping[str, FeatureSummary]) -> Iterator[tuple[str, str]]:
    edges: dict[str, list[str]] = {}
    for name, one in features.items():
        found = _EDGE.search(name)
        if found and one.kind in ("int64", "float", "none"):
            edges.setdefault(found["box"], []).append(name)
        elif _BOX.search(name) and one.kind in ("int64", "float") and one.least % 4 == one.most % 4 == 0:
            yield name, f"boxes, {_unit([one])}"
    for names in edges.values():
        if len(names) == 4:
            role = f"boxes, {_unit([features[name] for name in names])}"
            yield from ((name, role) for name in names)


def _unit(edges: Sequence[FeatureSummary]) -> str:
    highs = [one.high for one in edges if one.high is not None]
    if not highs:
        return "none seen"
    return "shares of the sides" if max(highs) <= 1 else "pixels"


def _box_name(name: str) -> str:
    found = _EDGE.search(name)
    return found["box"].rstrip("/_.") or name if found else name


def _numbers(one: FeatureSummary) -> str:
    spread = f"{one.low:.6g}" if one.low == one.high else f"{one.low:.6g} to {one.high:.6g}"
    return f"{spread}, perhaps pixels" if one.least == one.most >= _PIXELS else spread


def _label_role(one: FeatureSummary) -> str:
    role = "class name" if one.kind == "bytes" else f"label, {_numbers(one)}"
    return f"{role}, {_distinct(one)}" if one.most == 1 else role  # only first values are told apart


def _text_role(one: FeatureSummary) -> str:
    return f"text, {_distinct(one)}" if 2 * one.distinct <= one.records else "text"


def _distinct(one: FeatureSummary) -> str:
    count = f"over {MOST_DISTINCT:,}" if one.distinct > MOST_DISTINCT else f"{one.distinct:,}"
    return f"{count} {'value' if one.distinct == 1 else 'values'}"


def _image_role(name: str, one: FeatureSummary, image: str) -> str:
    kind = "image" if name == image else "mask" if _MASK.search(name) else "another image"
    if len(one.formats) == 1:
        return f"{kind}, {next(iter(one.formats))}"
    return f"{kind}, " + " ".join(f"{name} {count:,}" for name, count in sorted(one.formats.items()))


def _looks_like(summary: FileSummary) -> str:
    paths = [file.path for file in summary.files]
    if not summary.features:
        return "nothing known: no record is a tf.train.Example" if summary.records else "nothing: there is no record"
    if summary.features.keys() >= _OURS:
        return f"{FEEDLINE}: the records have its features"
    if paths and _lies_beside(paths[0], tfds_info.FEATURES_NAME):
        return f"{TFDS}: {tfds_info.FEATURES_NAME} lies beside the files"
    if paths and all(map(_TFDS_NAME.search, paths)):
        return f"{TFDS}, by the names of the files"
    if paths and all(map(_TFX_NAME.search, paths)):
        return f"{TFX}: Examples, by the names of the directories"
    customary = record.ENCODED in summary.features
    return f"{BY_HAND}, with the customary keys of images" if customary else BY_HAND


def _lies_beside(path: str, name: str) -> bool:
    directory, separator, _ = path.rpartition("/")
    try:
        return storage.exists(f"{directory}{separator}{name}")
    except OSError:  # a store that lets the file be read need not say what else there is
        return False
