"""A dataset as the gate looks at it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import Manifest
from components.dataset_gate.features import Feature, features


@dataclass(frozen=True)
class GateDataset:
    """A published dataset and its images.

    Attributes:
      manifest: `dataset.json`.
      images: the rows of `images.parquet` that were written; those of dropped copies are left out.
    """

    manifest: Manifest
    images: pa.Table

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order."""
        return tuple(self.manifest.splits)

    @property
    def has_moments(self) -> bool:
        """Whether mean and variance of the channels were measured."""
        return self.manifest.channels is not None

    @functools.cached_property
    def split_of(self) -> np.ndarray:
        """Place of the split of each image, int64[images]."""
        places = pc.index_in(self.images["split"], value_set=pa.array(self.splits, pa.string()))
        return places.to_numpy().astype(np.int64)

    @functools.cached_property
    def units(self) -> np.ndarray:
        """A number for each image, int64[images]; equal for images of one group, look or content."""
        named = [pc.if_else(pc.equal(self.images[name], ""), None, self.images[name]) for name in ("near", "cluster")]
        group = pc.if_else(
            pc.equal(self.images["group"], ""), None, pc.binary_join_element_wise("g", self.images["group"], "")
        )
        unit = pc.coalesce(group, *named, pc.binary_join_element_wise("k", self.images["key"], ""))
        return pc.cast(unit, pa.string()).combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)

    @functools.cached_property
    def features(self) -> dict[str, Feature]:
        """What can be compared, by name."""
        return features(self.images, self.manifest.label_kind, self.has_moments)

    def rows_of(self, split: str) -> np.ndarray:
        """Returns which images are in a split, bool[images]."""
        return self.split_of == self.splits.index(split)


def load(directory: str) -> GateDataset:
    """Reads a published dataset.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: a file of it is damaged.
    """
    described = manifest.load(directory)
    images = schemas.read_published(storage.join(directory, manifest.IMAGES_NAME))
    return GateDataset(described, images.filter(pc.greater_equal(images["shard"], 0)))
