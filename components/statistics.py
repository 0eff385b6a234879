"""TFDV statistics of the numbers and categories of a dataset, without images, keys, URIs and hashes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tfx.components.statistics_gen import stats_artifact_utils
from tfx.components.statistics_gen.executor import Executor
from tfx.components.util import examples_utils
from tfx.dsl.components.base.base_beam_executor import BaseBeamExecutor
from tfx.proto import example_gen_pb2
from tfx.types import Artifact, artifact_utils, standard_artifacts, standard_component_specs

from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset
from beam_jobs.options import LOCAL_BEAM_ARGS

# Annotations other than the class of an image; masks are omitted, because they are images.
_ANNOTATIONS = (
    record.WEIGHT,
    *(record.OBJECT_PREFIX + f"bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax")),
    *(record.OBJECT_PREFIX + name for name in ("area", "is_crowd", "class/label", "class/text")),
)
# Class indices are categories: TFDV counts each index instead of computing a mean.
_CATEGORIES = (record.LABEL, record.OBJECT_LABEL)
# Maximum number of values that TFDV counts per feature. It detects new values only among counted ones; its default of
# 1,000 is below the number of classes of many datasets.
_COUNTED_VALUES = 1 << 15


def statistics_options(extra: Sequence[str]) -> tfdv.StatsOptions:
    """Returns the options of StatisticsGen.

    The options list the features, because TFDV would otherwise count images as the values of a category. TFDV ignores
    listed features that a dataset does not have.

    Args:
      extra: names of the user columns, without `extra/`.
    """
    columns = [record.EXTRA_PREFIX + name for name in extra]
    schema = schema_pb2.Schema()
    for name in _CATEGORIES:
        schema.feature.add(name=name, type=schema_pb2.INT).int_domain.is_categorical = True
    return tfdv.StatsOptions(
        feature_allowlist=[*record.STATISTICS_FEATURES, *_ANNOTATIONS, *columns],
        schema=schema,
        num_rank_histogram_buckets=_COUNTED_VALUES,
    )


def dataset_statistics(directory: str, dataset: Manifest) -> dict[str, statistics_pb2.DatasetFeatureStatisticsList]:
    """Runs StatisticsGen on a published dataset, without a pipeline.

    Args:
      directory: directory of the dataset.
      dataset: manifest of the dataset.

    Returns:
      split -> statistics.

    Raises:
      CorruptDataset: a shard is missing or damaged.
    """
    examples = standard_artifacts.Examples()
    examples.uri = directory
    examples.split_names = artifact_utils.encode_split_names(list(dataset.splits))
    examples_utils.set_payload_format(examples, example_gen_pb2.FORMAT_TF_EXAMPLE)
    with tempfile.TemporaryDirectory() as scratch:
        statistics = standard_artifacts.ExampleStatistics()
        statistics.uri = str(Path(scratch) / "statistics")
        try:
            _run_statistics_gen(examples, statistics, statistics_options(dataset.options["columns"]["extra"]), scratch)
        except (OSError, ValueError) as error:
            raise unreadable_error(directory, error) from error
        split_statistics = load_statistics(statistics)
    for name, info in dataset.splits.items():
        if (count := split_statistics[name].datasets[0].num_examples) != info.records:
            raise CorruptDataset(f"{directory} has {count:,} records in {name}, its manifest has {info.records:,}")
    return split_statistics


def unreadable_error(directory: str, error: Exception) -> CorruptDataset:
    """Returns the error for a shard that Beam cannot read.

    Args:
      directory: directory of the dataset.
      error: exception of Beam, whose message contains the record.
    """
    reason = str(error).partition(": b'")[0]  # the record follows
    return CorruptDataset(f"{directory} cannot be read: {reason}; `feedline verify` says more")


def _run_statistics_gen(examples: Artifact, statistics: Artifact, options: tfdv.StatsOptions, scratch: str) -> None:
    context = BaseBeamExecutor.Context(
        beam_pipeline_args=list(LOCAL_BEAM_ARGS), tmp_dir=str(Path(scratch) / "tmp"), unique_id="statistics"
    )
    properties: dict[str, Any] = {
        standard_component_specs.STATS_OPTIONS_JSON_KEY: options.to_json(),
        standard_component_specs.EXCLUDE_SPLITS_KEY: "[]",
    }
    Executor(context).Do(
        {standard_component_specs.EXAMPLES_KEY: [examples]},
        {standard_component_specs.STATISTICS_KEY: [statistics]},
        properties,
    )


def load_statistics(artifact: Artifact) -> dict[str, statistics_pb2.DatasetFeatureStatisticsList]:
    """Returns split -> statistics of an `ExampleStatistics` artifact, in the order of its splits."""
    return {
        name: stats_artifact_utils.load_statistics(artifact, name).proto()
        for name in artifact_utils.decode_split_names(artifact.split_names)
    }
