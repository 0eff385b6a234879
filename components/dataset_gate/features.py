"""What of a dataset is compared with another: one value an image, or several, from `images.parquet`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas
from beam_jobs.dataset.record import EXTRA_PREFIX
from components.dataset_gate.names import CLASS, IMAGE_PREFIX, MISSING


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The values of one feature.

    Attributes:
      name: such as `image/brightness`.
      values: float64[values], NaN where an image has none; or int64[values], places in `names`.
      owners: int64[values], the row of the image that has each value.
      names: the categories; None for numbers.
    """

    name: str
    values: np.ndarray
    owners: np.ndarray
    names: tuple[str, ...] | None = None

    def of(self, rows: np.ndarray) -> Feature:
        """Returns the values of some images.

        Args:
          rows: bool[images].
        """
        kept = rows[self.owners]
        return Feature(name=self.name, values=self.values[kept], owners=self.owners[kept], names=self.names)

    def as_categories(self) -> Feature:
        """Returns the same feature with each number as a category of its own."""
        if self.names is not None:
            return self
        return _categories(
            self.name, [MISSING if np.isnan(value) else f"{value:g}" for value in self.values], self.owners
        )


def features(images: pa.Table, label_kind: str, moments: bool) -> dict[str, Feature]:
    """Returns every feature of the images by name.

    Args:
      images: written rows of `images.parquet`.
      label_kind: one of `types.LABEL_KINDS`.
      moments: whether the mean of each channel was measured.
    """
    rows = np.arange(len(images))
    found = [_categories(IMAGE_PREFIX + "format", images["format"].to_pylist(), rows)]
    if label_kind != "none":
        found.append(_classes(images, label_kind))
    height, width = _floats(images["height"]), _floats(images["width"])
    numbers = {
        "short_side": np.minimum(height, width),
        "aspect_ratio": width / height,
        "bytes": _floats(images["bytes"]),
    }
    if moments:
        mean = triples(images["mean_rgb"])
        numbers |= {"brightness": mean.mean(axis=1)}
        numbers |= {f"mean_{colour}": mean[:, place] for place, colour in enumerate(("red", "green", "blue"))}
    found += [Feature(name=IMAGE_PREFIX + name, values=values, owners=rows) for name, values in numbers.items()]
    found += _extras(images["extra"].to_pylist())
    return {feature.name: feature for feature in found}


def triples(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of three numbers an image as float64[images, 3]."""
    flat = np.concatenate([np.empty(0), *(chunk.flatten().to_numpy() for chunk in column.chunks)])
    return flat.astype(np.float64).reshape(-1, 3)


def _floats(column: pa.ChunkedArray) -> np.ndarray:
    return column.to_numpy().astype(np.float64)


def _classes(images: pa.Table, label_kind: str) -> Feature:
    if label_kind == "single":
        return _categories(CLASS, images["label"].to_pylist(), np.arange(len(images)))
    labels = [(schemas.cell(text)["labels"] if text else None) or () for text in images["annotations"].to_pylist()]
    return _categories(CLASS, *_spread(labels, MISSING))


def _extras(texts: Sequence[str]) -> Iterator[Feature]:
    """Yields the user columns; one that holds a text anywhere is one of categories."""
    rows: list[Mapping[str, Any]] = [schemas.cell(text) for text in texts]
    for name in sorted({name for row in rows for name in row}):
        column = [_listed(row.get(name)) for row in rows]
        if any(isinstance(value, str) for values in column for value in values):
            texts_of = [[str(value) for value in values] for values in column]
            yield _categories(EXTRA_PREFIX + name, *_spread(texts_of, MISSING))
        else:
            values, owners = _spread(column, np.nan)
            yield Feature(name=EXTRA_PREFIX + name, values=np.array(values, np.float64), owners=owners)


def _listed(value: Any) -> Sequence[Any]:
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _spread(column: Sequence[Sequence[Any]], missing: Any) -> tuple[list[Any], np.ndarray]:
    """Returns all values of all images and whose they are; an image without one has `missing`."""
    full = [values or (missing,) for values in column]
    owners = np.repeat(np.arange(len(full)), [len(values) for values in full]) if full else np.zeros(0, np.int64)
    return [value for values in full for value in values], owners


def _categories(name: str, values: Iterable[str], owners: np.ndarray) -> Feature:
    encoded = pa.array(values, pa.string()).dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    return Feature(name=name, values=codes, owners=owners, names=tuple(encoded.dictionary.to_pylist()))
