"""What changed between two published datasets: images, labels, splits, classes, sizes and options.

Everything comes from `dataset.json` and `images.parquet`, column by column: no shard is opened, and no row is looked
at on its own but for those that are listed. Images are matched by their key; those that are left, by their content, so
that a file that moved to the folder of another class is one image with another label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import divergence, manifest, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset

_MISSING = "(not set)"


@dataclass(frozen=True, kw_only=True)
class ClassChange:
    """A class that has another number of images in a split.

    Attributes:
      label: its name.
      old: images in the first dataset.
      new: in the second.
      share: change of its share of the split, -1 to 1.
    """

    label: str
    old: int
    new: int
    share: float


@dataclass(frozen=True, kw_only=True)
class FactChange:
    """How the distribution of one number of the images of a split changed.

    Attributes:
      name: `height`, `width`, `bytes` or `brightness`.
      jensen_shannon: divergence with logarithms of base 2, 0 for equal distributions and 1 for disjoint ones.
      old: least, middle and greatest value of the first dataset.
      new: of the second.
    """

    name: str
    jensen_shannon: float
    old: tuple[float, float, float]
    new: tuple[float, float, float]


def compare_options(old: Manifest, new: Manifest) -> dict[str, tuple[Any, Any]]:
    """Returns dotted name -> both values, of the options that differ."""
    sides = [dict(_flat({**one.options, "label_kind": one.label_kind})) for one in (old, new)]
    names = sorted({*sides[0], *sides[1]})
    pairs = {name: (sides[0].get(name, _MISSING), sides[1].get(name, _MISSING)) for name in names}
    return {name: values for name, values in pairs.items() if _text(values[0]) != _text(values[1])}


def compare_labels(old: Manifest, new: Manifest) -> dict[str, tuple[str, ...]]:
    """Returns the class names that are `added` and `removed`, and those of both whose index is `renumbered`."""
    before, after = ({name: place for place, name in enumerate(one.labels)} for one in (old, new))
    found = {
        "added": tuple(name for name in after if name not in before),
        "removed": tuple(name for name in before if name not in after),
        "renumbered": tuple(name for name, place in before.items() if after.get(name, place) != place),
    }
    return {name: names for name, names in found.items() if names}


def compare_classes(old: Manifest, new: Manifest) -> dict[str, list[ClassChange]]:
    """Returns of each split the classes whose number of images changed, the greatest change of their share first."""
    found = {}
    for split in dict.fromkeys([*old.splits, *new.splits]):
        before, after = (dict(one.splits[split].classes) if split in one.splits else {} for one in (old, new))
        sizes = [max(1, sum(side.values())) for side in (before, after)]
        changes = [
            ClassChange(
                label=name,
                old=before.get(name, 0),
                new=after.get(name, 0),
                share=after.get(name, 0) / sizes[1] - before.get(name, 0) / sizes[0],
            )
            for name in dict.fromkeys([*before, *after])
            if before.get(name, 0) != after.get(name, 0)
        ]
        if changes:
            found[split] = sorted(changes, key=lambda one: (-abs(one.share), -abs(one.new - one.old), one.label))
    return found


def compare_facts(old: pa.Table, new: pa.Table, manifests: tuple[Manifest, Manifest]) -> dict[str, list[FactChange]]:
    """Returns of each split that both datasets have how far the numbers of its images lie apart.

    Args:
      old: written rows of `images.parquet` of the first.
      new: of the second.
      manifests: of both; brightness is compared where both measured it.
    """
    moments = all(one.channels is not None for one in manifests)
    found = {}
    for split in manifests[0].splits:
        sides = [side.filter(pc.equal(side["split"], split)) for side in (old, new)]
        if all(len(side) for side in sides):
            found[split] = [
                _fact(name, one, other)
                for (name, one), (_, other) in zip(*(_numbers(side, moments) for side in sides), strict=True)
            ]
    return found


def _fact(name: str, one: np.ndarray, other: np.ndarray) -> FactChange:
    return FactChange(name=name, jensen_shannon=divergence.of_samples(one, other), old=_spread(one), new=_spread(other))


def _numbers(images: pa.Table, moments: bool) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("height", "width", "bytes"):
        yield name, images[name].to_numpy().astype(np.float64)
    if moments:
        flat = images["mean_rgb"].combine_chunks().flatten().to_numpy()
        if len(flat) == 3 * len(images):
            yield "brightness", flat.astype(np.float64).reshape(-1, 3).mean(axis=1)


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def shown_value(values: Sequence[Any]) -> tuple[str, ...]:
    """Returns values of options as text."""
    return tuple(value if isinstance(value, str) else _text(value) for value in values)


_COLUMNS = (
    *("key", "label", "split", "extra", "annotations", "height", "width", "bytes", "sha256", "source_sha256"),
    *("mean_rgb", "shard"),
)
# What `tables` writes of an image with any number of labels; `labels` is the first of the sorted names.
_LABELS = r'^\{"labels": (?P<labels>null|\[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\])'
_TYPES = {name: schemas.IMAGES.field(name).type for name in _COLUMNS}
_LARGE = {pa.string(): pa.large_string()}
_SHOWN = ("key", "split", "label")
# How images that only one side has by their key are matched, one way after the other.
_BY_CONTENT = (("source_sha256", "label"), ("source_sha256",), ("sha256",))


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The images of one kind of change.

    Attributes:
      count: how many there are.
      images: the first of them by their key; of both sides, each value of the second is named `new_...`.
    """

    count: int = 0
    images: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What changed from one dataset to another.

    Attributes:
      digests: of both.
      written: images of both.
      added: only the second has them, by key and by content.
      removed: only the first has them.
      renamed: the same content under another key.
      relabelled: another label.
      changed: the same key, other bytes are stored.
      stored_otherwise: those of `changed` whose source has the same bytes: other options made other bytes of them.
      moved: another split.
      annotated: other boxes, masks, weights or columns.
      classes: of each split, the classes that have another number of images.
      facts: of each split that both have, how far height, width, bytes and brightness lie apart.
      options: dotted name -> both values, of options that differ.
      labels: class names that only the second, or only the first has, and those that have another index.
    """

    digests: tuple[str, str]
    written: tuple[int, int]
    added: Changes = Changes()
    removed: Changes = Changes()
    renamed: Changes = Changes()
    relabelled: Changes = Changes()
    changed: Changes = Changes()
    stored_otherwise: int = 0
    moved: Changes = Changes()
    annotated: Changes = Changes()
    classes: Mapping[str, Sequence[ClassChange]] = field(default_factory=dict)
    facts: Mapping[str, Sequence[FactChange]] = field(default_factory=dict)
    options: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same bytes and were made with the same options."""
        return self.digests[0] == self.digests[1] and not self.options

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"equal": self.is_equal, **asdict(self)}


def diff(old: str, new: str, limit: int = 10) -> Difference:
    """Compares two published datasets, local or remote.

    Args:
      old: directory of the first.
      new: directory of the second.
      limit: images to list of each kind of change; 0 for all of them.

    Raises:
      SourceError: one of them is not a published dataset.
      CorruptDataset: a file of one is damaged.
    """
    manifests = manifest.load(old), manifest.load(new)
    difference = Difference(
        digests=(manifests[0].digest, manifests[1].digest),
        written=(manifests[0].counts.written, manifests[1].counts.written),
        options=compare_options(*manifests),
    )
    if difference.digests[0] == difference.digests[1]:
        return difference  # the very same shards and labels
    sides = [_read(directory, one) for directory, one in zip((old, new), manifests, strict=True)]
    return replace(
        difference,
        **_image_changes(sides[0], sides[1], limit),
        classes=compare_classes(*manifests),
        labels=compare_labels(*manifests),
        facts=compare_facts(sides[0], sides[1], manifests),
    )


def _read(directory: str, dataset: Manifest) -> pa.Table:
    """Returns the images that were written; `label` is that of the image, several as a list in JSON."""
    path = storage.join(directory, manifest.IMAGES_NAME)
    images = schemas.read_published(path, _COLUMNS)
    # Text with long offsets: boxes of a million images can be more than the 2 GB that short ones reach.
    wanted = pa.schema([(name, _LARGE.get(kind, kind)) for name, kind in _TYPES.items()])
    if set(images.column_names) != set(_COLUMNS):
        missing = ", ".join(sorted(set(_COLUMNS) - set(images.column_names)))
        raise CorruptDataset(f"{path} cannot be used: it has no column {missing}; write the dataset again")
    try:
        images = images.select(_COLUMNS).cast(wanted)
    except pa.ArrowException as error:
        raise CorruptDataset(f"{path} cannot be used: {error}; write the dataset again") from error
    images = images.filter(pc.greater_equal(images["shard"], 0))
    if dataset.label_kind != "multi":
        return images
    found = pc.struct_field(pc.extract_regex(images["annotations"], _LABELS), [0])
    return images.set_column(images.column_names.index("label"), "label", pc.fill_null(found, ""))


def _image_changes(old: pa.Table, new: pa.Table, limit: int) -> dict[str, Any]:
    by_key = _match(old, new, ("key",), np.arange(len(old)), np.arange(len(new)))
    pairs = [by_key]
    for columns in _BY_CONTENT:
        taken = np.concatenate(pairs, axis=1)
        rest = (np.setdiff1d(np.arange(len(side)), places) for side, places in zip((old, new), taken, strict=True))
        pairs.append(_match(old, new, columns, *rest))
    both = np.concatenate(pairs, axis=1)
    removed, added = (np.setdiff1d(np.arange(len(side)), places) for side, places in zip((old, new), both, strict=True))
    other_bytes = _differ(old, new, by_key, "sha256")
    same_source = ~_differ(old, new, by_key[:, other_bytes], "source_sha256")
    annotated = _annotations_differ(old, new, both) | _differ(old, new, both, "extra")
    return {
        "added": _listed(new, added, limit),
        "removed": _listed(old, removed, limit),
        "renamed": _listed_pairs(old, new, both[:, by_key.shape[1] :], limit),
        "relabelled": _listed_pairs(old, new, both[:, _differ(old, new, both, "label")], limit),
        "changed": _listed_pairs(old, new, by_key[:, other_bytes], limit),
        "stored_otherwise": int(same_source.sum()),
        "moved": _listed_pairs(old, new, both[:, _differ(old, new, both, "split")], limit),
        "annotated": _listed_pairs(old, new, both[:, annotated], limit),
    }


def _match(old: pa.Table, new: pa.Table, columns: Sequence[str], some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Returns pairs of rows that are equal in some columns, each row in one pair at most.

    Of several equal rows, the first is paired with the first, the second with the second.

    Args:
      old: one table.
      new: the other.
      columns: what must be equal.
      some: rows of the first to choose from, int64.
      others: rows of the other.

    Returns:
      int64[2, pairs].
    """
    codes = np.zeros(len(some) + len(others), np.int64)
    for name in columns:
        values = _codes(old[name].take(pa.array(some)), new[name].take(pa.array(others)))
        codes = np.unique(codes * (values.max(initial=0) + 1) + values, return_inverse=True)[1]
    first, second = _ranked(codes[: len(some)]), _ranked(codes[len(some) :])
    most = max(first[1].max(initial=0), second[1].max(initial=0)) + 1
    _, left, right = np.intersect1d(
        first[0] * most + first[1], second[0] * most + second[1], assume_unique=True, return_indices=True
    )
    return np.stack([some[left], others[right]]).astype(np.int64)


def _ranked(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns codes, and of each row how many equal ones stand before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(codes) else np.empty(0, np.int64)
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    return codes, ranks


def _codes(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    """Returns a number for each value of two columns of text, one after the other; equal for equal values."""
    both = pc.fill_null(pa.chunked_array([*one.chunks, *other.chunks], pa.large_string()), "")
    encoded = both.dictionary_encode()  # one dictionary for all chunks
    return np.concatenate([np.empty(0, np.int64), *(chunk.indices.to_numpy() for chunk in encoded.chunks)]).astype(
        np.int64
    )


def _differ(old: pa.Table, new: pa.Table, pairs: np.ndarray, column: str) -> np.ndarray:
    """Returns bool[pairs]: whether the rows of a pair have different values in a column of text."""
    one, other = (side[column].take(pa.array(rows)) for side, rows in zip((old, new), pairs, strict=True))
    return _unequal(one, other)


def _annotations_differ(old: pa.Table, new: pa.Table, pairs: np.ndarray) -> np.ndarray:
    """Returns bool[pairs]: whether boxes, masks or weights differ; labels are another matter."""
    one, other = (
        pc.replace_substring_regex(side["annotations"].take(pa.array(rows)), _LABELS.replace("?P<labels>", ""), "")
        for side, rows in zip((old, new), pairs, strict=True)
    )
    return _unequal(one, other)


def _unequal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> np.ndarray:
    codes = _codes(one, other)
    return codes[: len(one)] != codes[len(one) :]


def _listed(side: pa.Table, rows: np.ndarray, limit: int) -> Changes:
    found = side.select(_SHOWN).take(pa.array(_first(side, rows, limit)))
    return Changes(count=len(rows), images=tuple(found.to_pylist()))


def _listed_pairs(old: pa.Table, new: pa.Table, pairs: np.ndarray, limit: int) -> Changes:
    kept = _first(old, np.arange(pairs.shape[1]), limit, pairs[0])
    before = old.select(_SHOWN).take(pa.array(pairs[0][kept])).to_pylist()
    after = new.select(_SHOWN).take(pa.array(pairs[1][kept])).to_pylist()
    images = (
        {**one, **{f"new_{name}": value for name, value in other.items()}}
        for one, other in zip(before, after, strict=True)
    )
    return Changes(count=pairs.shape[1], images=tuple(images))


def _first(side: pa.Table, items: np.ndarray, limit: int, rows: np.ndarray | None = None) -> np.ndarray:
    """Returns the items that are listed, in the order of the keys of their rows."""
    keys = side["key"].take(pa.array(items if rows is None else rows)).combine_chunks()
    order = pc.sort_indices(keys).to_numpy().astype(np.int64)
    return items[order[: limit or len(order)]]
