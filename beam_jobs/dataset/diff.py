"""What changed between two published datasets: images, labels, splits, classes, sizes and options.

All values come from `dataset.json` and `images.parquet`, which is read by column; no shard is opened. Images are
matched by key, and the remaining ones by content: a file that moved to the folder of another class is one image with
another label.
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
    """A class whose number of images in a split changed.

    Attributes:
      label: class name.
      old: number of images in the first dataset.
      new: number of images in the second dataset.
      share: change of the share of the class in the split, -1 to 1.
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
      old: minimum, median and maximum in the first dataset.
      new: minimum, median and maximum in the second dataset.
    """

    name: str
    jensen_shannon: float
    old: tuple[float, float, float]
    new: tuple[float, float, float]


def compare_options(old: Manifest, new: Manifest) -> dict[str, tuple[Any, Any]]:
    """Returns dotted name -> old and new value of the options that differ."""
    sides = [dict(_flatten({**dataset.options, "label_kind": dataset.label_kind})) for dataset in (old, new)]
    names = sorted({*sides[0], *sides[1]})
    pairs = {name: (sides[0].get(name, _MISSING), sides[1].get(name, _MISSING)) for name in names}
    return {name: values for name, values in pairs.items() if _json_text(values[0]) != _json_text(values[1])}


def compare_labels(old: Manifest, new: Manifest) -> dict[str, tuple[str, ...]]:
    """Returns the `added` and `removed` class names, and the names of both whose index is `renumbered`."""
    before, after = ({name: index for index, name in enumerate(dataset.labels)} for dataset in (old, new))
    changes = {
        "added": tuple(name for name in after if name not in before),
        "removed": tuple(name for name in before if name not in after),
        "renumbered": tuple(name for name, index in before.items() if after.get(name, index) != index),
    }
    return {name: names for name, names in changes.items() if names}


def compare_classes(old: Manifest, new: Manifest) -> dict[str, list[ClassChange]]:
    """Returns split -> classes whose number of images changed, the greatest change of share first."""
    changes_by_split = {}
    for split in dict.fromkeys([*old.splits, *new.splits]):
        before, after = (dict(side.splits[split].classes) if split in side.splits else {} for side in (old, new))
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
            changes_by_split[split] = sorted(changes, key=lambda c: (-abs(c.share), -abs(c.new - c.old), c.label))
    return changes_by_split


def compare_facts(old: pa.Table, new: pa.Table, manifests: tuple[Manifest, Manifest]) -> dict[str, list[FactChange]]:
    """Returns split -> changed distributions of image sizes and brightness, for the splits that both datasets have.

    Args:
      old: rows of `images.parquet` of the written images of the first dataset.
      new: the same rows of the second dataset.
      manifests: first and second manifest; brightness is compared where both measured it.
    """
    channel_statistics = all(dataset.channels is not None for dataset in manifests)
    changes_by_split = {}
    for split in manifests[0].splits:
        sides = [side.filter(pc.equal(side["split"], split)) for side in (old, new)]
        if all(len(side) for side in sides):
            changes_by_split[split] = [
                _compare_samples(name, before, after)
                for (name, before), (_, after) in zip(
                    *(_numeric_facts(side, channel_statistics) for side in sides), strict=True
                )
            ]
    return changes_by_split


def _compare_samples(name: str, old: np.ndarray, new: np.ndarray) -> FactChange:
    distance = divergence.sample_divergence(old, new)
    return FactChange(name=name, jensen_shannon=distance, old=_min_median_max(old), new=_min_median_max(new))


def _numeric_facts(images: pa.Table, channel_statistics: bool) -> Iterator[tuple[str, np.ndarray]]:
    for name in ("height", "width", "bytes"):
        yield name, images[name].to_numpy().astype(np.float64)
    if channel_statistics:
        flat = images["mean_rgb"].combine_chunks().flatten().to_numpy()
        if len(flat) == 3 * len(images):
            yield "brightness", flat.astype(np.float64).reshape(-1, 3).mean(axis=1)


def _min_median_max(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _json_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=list)


def option_texts(values: Sequence[Any]) -> tuple[str, ...]:
    """Returns values of options as text."""
    return tuple(value if isinstance(value, str) else _json_text(value) for value in values)


_COLUMNS = (
    *("key", "label", "split", "extra", "annotations", "height", "width", "bytes", "sha256", "source_sha256"),
    *("mean_rgb", "shard"),
)
# What `tables` writes of an image with any number of labels; `labels` is the first of the sorted names.
_LABEL_RE = r'^\{"labels": (?P<labels>null|\[(?:"(?:[^"\\]|\\.)*"(?:, )?)*\])'
_TYPES = {name: schemas.IMAGES.field(name).type for name in _COLUMNS}
_LARGE_TYPES = {pa.string(): pa.large_string()}
_LISTED_COLUMNS = ("key", "split", "label")
# Columns that match images whose key only one dataset has, tried in this order.
_CONTENT_COLUMNS = (("source_sha256", "label"), ("source_sha256",), ("sha256",))


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The images of one kind of change.

    Attributes:
      count: number of images.
      images: first images in the order of their keys; names of values of the second dataset begin with `new_`.
    """

    count: int = 0
    images: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What changed from one dataset to another.

    Attributes:
      digests: digests of the first and the second dataset.
      written: numbers of written images of both.
      added: images that only the second dataset has, by key and by content.
      removed: images that only the first dataset has.
      renamed: images with the same content under another key.
      relabelled: images with another label.
      changed: images with the same key and other stored bytes.
      stored_otherwise: number of `changed` images whose source bytes are equal; only the options changed their bytes.
      moved: images in another split.
      annotated: images with other boxes, masks, weights or columns.
      classes: split -> classes whose number of images changed.
      facts: split of both datasets -> changes of height, width, bytes and brightness.
      options: dotted name -> old and new value of the options that differ.
      labels: `added`, `removed` and `renumbered` class names.
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
        """Whether both datasets have the same bytes and the same options."""
        return self.digests[0] == self.digests[1] and not self.options

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {"equal": self.is_equal, **asdict(self)}


def diff(old: str, new: str, limit: int = 10) -> Difference:
    """Compares two published datasets, local or remote.

    Args:
      old: directory of the first dataset.
      new: directory of the second dataset.
      limit: number of images to list for each kind of change; 0 for all images.

    Raises:
      SourceError: a directory is not a published dataset.
      CorruptDataset: a file of a dataset is damaged.
    """
    manifests = manifest.load(old), manifest.load(new)
    difference = Difference(
        digests=(manifests[0].digest, manifests[1].digest),
        written=(manifests[0].counts.written, manifests[1].counts.written),
        options=compare_options(*manifests),
    )
    if difference.digests[0] == difference.digests[1]:
        return difference  # the very same shards and labels
    sides = [_read_images(directory, one) for directory, one in zip((old, new), manifests, strict=True)]
    return replace(
        difference,
        **_image_changes(sides[0], sides[1], limit),
        classes=compare_classes(*manifests),
        labels=compare_labels(*manifests),
        facts=compare_facts(sides[0], sides[1], manifests),
    )


def _read_images(directory: str, dataset: Manifest) -> pa.Table:
    """Returns the written images; `label` of an image with several labels is a JSON list."""
    path = storage.join(directory, manifest.IMAGES_NAME)
    images = schemas.read_published(path, _COLUMNS)
    # Text with 64-bit offsets: the boxes of a million images can exceed the 2 GB that 32-bit offsets reach.
    schema = pa.schema([(name, _LARGE_TYPES.get(kind, kind)) for name, kind in _TYPES.items()])
    if set(images.column_names) != set(_COLUMNS):
        missing = ", ".join(sorted(set(_COLUMNS) - set(images.column_names)))
        raise CorruptDataset(f"{path} cannot be used: it has no column {missing}; write the dataset again")
    try:
        images = images.select(_COLUMNS).cast(schema)
    except pa.ArrowException as error:
        raise CorruptDataset(f"{path} cannot be used: {error}; write the dataset again") from error
    images = images.filter(pc.greater_equal(images["shard"], 0))
    if dataset.label_kind != "multi":
        return images
    labels = pc.struct_field(pc.extract_regex(images["annotations"], _LABEL_RE), [0])
    return images.set_column(images.column_names.index("label"), "label", pc.fill_null(labels, ""))


def _image_changes(old: pa.Table, new: pa.Table, limit: int) -> dict[str, Any]:
    key_pairs = _match(old, new, ("key",), np.arange(len(old)), np.arange(len(new)))
    pairs = [key_pairs]
    for columns in _CONTENT_COLUMNS:
        matched = np.concatenate(pairs, axis=1)
        unmatched = (np.setdiff1d(np.arange(len(side)), rows) for side, rows in zip((old, new), matched, strict=True))
        pairs.append(_match(old, new, columns, *unmatched))
    both = np.concatenate(pairs, axis=1)
    removed, added = (np.setdiff1d(np.arange(len(side)), rows) for side, rows in zip((old, new), both, strict=True))
    other_bytes = _differ(old, new, key_pairs, "sha256")
    same_source = ~_differ(old, new, key_pairs[:, other_bytes], "source_sha256")
    annotated = _annotations_differ(old, new, both) | _differ(old, new, both, "extra")
    return {
        "added": _list_images(new, added, limit),
        "removed": _list_images(old, removed, limit),
        "renamed": _list_pairs(old, new, both[:, key_pairs.shape[1] :], limit),
        "relabelled": _list_pairs(old, new, both[:, _differ(old, new, both, "label")], limit),
        "changed": _list_pairs(old, new, key_pairs[:, other_bytes], limit),
        "stored_otherwise": int(same_source.sum()),
        "moved": _list_pairs(old, new, both[:, _differ(old, new, both, "split")], limit),
        "annotated": _list_pairs(old, new, both[:, annotated], limit),
    }


def _match(
    old: pa.Table, new: pa.Table, columns: Sequence[str], old_rows: np.ndarray, new_rows: np.ndarray
) -> np.ndarray:
    """Returns pairs of rows that are equal in the columns; a row is in one pair at most.

    Equal rows are paired in their order: the first with the first, the second with the second.

    Args:
      old: first table.
      new: second table.
      columns: names of the columns that must be equal.
      old_rows: int64[n], row numbers of the first table to match.
      new_rows: int64[m], row numbers of the second table.

    Returns:
      int64[2, pairs].
    """
    codes = np.zeros(len(old_rows) + len(new_rows), np.int64)
    for name in columns:
        values = _text_codes(old[name].take(pa.array(old_rows)), new[name].take(pa.array(new_rows)))
        codes = np.unique(codes * (values.max(initial=0) + 1) + values, return_inverse=True)[1]
    first, second = _rank_codes(codes[: len(old_rows)]), _rank_codes(codes[len(old_rows) :])
    ranks = max(first[1].max(initial=0), second[1].max(initial=0)) + 1
    _, left, right = np.intersect1d(
        first[0] * ranks + first[1], second[0] * ranks + second[1], assume_unique=True, return_indices=True
    )
    return np.stack([old_rows[left], new_rows[right]]).astype(np.int64)


def _rank_codes(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the codes, and for each the number of equal codes before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(codes) else np.empty(0, np.int64)
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.repeat(starts, np.diff(np.append(starts, len(codes))))
    return codes, ranks


def _text_codes(old: pa.ChunkedArray, new: pa.ChunkedArray) -> np.ndarray:
    """Returns a number for each value of the first and then of the second column; equal values have equal numbers."""
    both = pc.fill_null(pa.chunked_array([*old.chunks, *new.chunks], pa.large_string()), "")
    codes = (chunk.indices.to_numpy() for chunk in both.dictionary_encode().chunks)  # one dictionary for all chunks
    return np.concatenate([np.empty(0, np.int64), *codes]).astype(np.int64)


def _differ(old: pa.Table, new: pa.Table, pairs: np.ndarray, column: str) -> np.ndarray:
    """Returns bool[pairs]: whether the rows of a pair have different values in a column of text."""
    return _unequal(*(side[column].take(pa.array(rows)) for side, rows in zip((old, new), pairs, strict=True)))


def _annotations_differ(old: pa.Table, new: pa.Table, pairs: np.ndarray) -> np.ndarray:
    """Returns bool[pairs]: whether boxes, masks or weights differ; labels are not compared."""
    before, after = (
        pc.replace_substring_regex(side["annotations"].take(pa.array(rows)), _LABEL_RE.replace("?P<labels>", ""), "")
        for side, rows in zip((old, new), pairs, strict=True)
    )
    return _unequal(before, after)


def _unequal(old: pa.ChunkedArray, new: pa.ChunkedArray) -> np.ndarray:
    codes = _text_codes(old, new)
    return codes[: len(old)] != codes[len(old) :]


def _list_images(side: pa.Table, rows: np.ndarray, limit: int) -> Changes:
    images = side.select(_LISTED_COLUMNS).take(pa.array(_sort_by_key(side, rows, limit)))
    return Changes(count=len(rows), images=tuple(images.to_pylist()))


def _list_pairs(old: pa.Table, new: pa.Table, pairs: np.ndarray, limit: int) -> Changes:
    indices = _sort_by_key(old, np.arange(pairs.shape[1]), limit, pairs[0])
    before = old.select(_LISTED_COLUMNS).take(pa.array(pairs[0][indices])).to_pylist()
    after = new.select(_LISTED_COLUMNS).take(pa.array(pairs[1][indices])).to_pylist()
    images = (
        {**old_values, **{f"new_{name}": value for name, value in new_values.items()}}
        for old_values, new_values in zip(before, after, strict=True)
    )
    return Changes(count=pairs.shape[1], images=tuple(images))


def _sort_by_key(side: pa.Table, items: np.ndarray, limit: int, rows: np.ndarray | None = None) -> np.ndarray:
    """Returns the first `limit` items in the order of the keys of their rows."""
    keys = side["key"].take(pa.array(items if rows is None else rows)).combine_chunks()
    order = pc.sort_indices(keys).to_numpy().astype(np.int64)
    return items[order[: limit or len(order)]]
