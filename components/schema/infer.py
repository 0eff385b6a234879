"""Infers a schema: what TFDV sees in the statistics of every split, and what the dataset knows."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from components.schema.known import Range, describe
from components.statistics import dataset_statistics

Statistics = Mapping[str, statistics_pb2.DatasetFeatureStatisticsList]


def infer(statistics: Statistics, dataset: Manifest) -> schema_pb2.Schema:
    """Returns the schema of a dataset. Every split of it fits.

    Args:
      statistics: split -> its statistics, at least one.
      dataset: the manifest.
    """
    schema: schema_pb2.Schema | None = None
    for found in statistics.values():
        schema = tfdv.infer_schema(found) if schema is None else tfdv.update_schema(schema, found)
    return describe(schema, dataset, seen_ranges(statistics))


def infer_from_dataset(directory: str) -> schema_pb2.Schema:
    """Returns the schema of the dataset in a directory, which is read once for its statistics.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: it is damaged.
    """
    dataset = manifest.load(directory)
    return infer(dataset_statistics(directory, dataset), dataset)


def seen_ranges(statistics: Statistics) -> dict[str, Range]:
    """Returns feature -> smallest and largest value over all splits, of those that are numbers."""
    ranges: dict[str, Range] = {}
    for found in statistics.values():
        for feature in found.datasets[0].features:
            if feature.HasField("num_stats"):
                name = feature.path.step[0]
                least, most = ranges.get(name, (feature.num_stats.min, feature.num_stats.max))
                ranges[name] = (min(least, feature.num_stats.min), max(most, feature.num_stats.max))
    return ranges
