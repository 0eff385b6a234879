"""InferredSchema and ReviewedSchema: where the `Schema` of a pipeline comes from.

InferredSchema infers it from statistics and the dataset they describe, for people to review. It takes the place of
TFX's SchemaGen, which sees the statistics alone and so allows any height, any mean and, over 100 classes, any class.
It does not follow SchemaGen: a pipeline would hold two schemas then, and one day somebody wires the poorer one.

What came up so far is in the statistics. That an image is 8 to 32,768 pixels wide, that a mean is 0-255 and that the
classes are those of `dataset.json` and no other is known beforehand, so the schema says it.

ReviewedSchema is a schema file that people keep. Its content is the cache key. TFX's own ImportSchemaGen is keyed by
the path of the file, so an edited schema is answered from the cache as if nothing had changed. The content travels in
the pipeline itself, so the file need not be reachable where the pipeline runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow_data_validation as tfdv
from tensorflow_metadata.proto.v0 import schema_pb2, statistics_pb2
from tfx import types
from tfx.dsl.components.base import base_component, base_executor, executor_spec
from tfx.types import artifact_utils, standard_artifacts
from tfx.types.component_spec import ChannelParameter, ExecutionParameter

from beam_jobs import storage
from beam_jobs.dataset import manifest, record
from beam_jobs.dataset.manifest import Manifest
from components.artifacts import Artifacts
from components.schema import review
from components.schema.review import SCHEMA_NAME
from components.statistics import dataset_statistics, load_statistics

Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Values:
    """A closed set of texts.

    Attributes:
      values: every one that may occur.
    """

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A range of whole numbers, ends included.

    Attributes:
      least: smallest.
      most: largest.
      category: whether they are names written as numbers.
    """

    least: int
    most: int
    category: bool = False


@dataclass(frozen=True, kw_only=True)
class Real:
    """A range of numbers, ends included.

    Attributes:
      least: smallest.
      most: largest; None for any.
    """

    least: float
    most: float | None = None


Domain = Values | Whole | Real


def describe_known(schema: schema_pb2.Schema, dataset: Manifest, seen: Mapping[str, Range]) -> schema_pb2.Schema:
    """Returns an inferred schema with what the dataset knows of its features; user columns stay as they are.

    Args:
      schema: inferred from statistics.
      dataset: the manifest.
      seen: feature -> smallest and largest value of those that are numbers.
    """
    described = schema_pb2.Schema()
    described.CopyFrom(schema)
    domains = domains_of(dataset, seen)
    for feature in described.feature:
        if feature.name in domains:
            _set_domain(described, feature, domains[feature.name])
        if feature.name in record.FEATURES:
            _set_shape(feature, dataset)
    used = {feature.domain for feature in described.feature}
    kept = [domain for domain in described.string_domain if domain.name in used]
    del described.string_domain[:]
    described.string_domain.extend(kept)
    return described


def domains_of(dataset: Manifest, seen: Mapping[str, Range]) -> dict[str, Domain]:
    """Returns feature -> what its values may be.

    Sizes follow from the limits of the ingest, which judge the image as it was found. Where images were re-encoded, or
    added under other limits, the range is widened to what is there, so that a dataset always fits its own schema.

    Args:
      dataset: the manifest.
      seen: feature -> smallest and largest value.
    """
    limits, pixels = dataset.options["limits"], dataset.options["pixels"]
    raw = pixels["policy"] == "raw"
    side = _sides(limits, pixels)
    aspect = limits["max_aspect"]
    classes = Values(values=dataset.labels)
    indices = Whole(least=0, most=max(0, len(dataset.labels) - 1), category=True)
    return {
        record.FORMAT: Values(values=("raw",) if raw else ("jpeg", "png")),
        record.HEIGHT: _widened(side, seen.get(record.HEIGHT)),
        record.WIDTH: _widened(side, seen.get(record.WIDTH)),
        record.CHANNELS: Whole(least=1, most=3),
        record.BYTES: _widened(Whole(least=1, most=limits["max_bytes"]), seen.get(record.BYTES)),
        record.ASPECT_RATIO: _widened(Real(least=1 / aspect, most=aspect), seen.get(record.ASPECT_RATIO)),
        record.MEAN_RGB: Real(least=0, most=255),
        record.VAR_RGB: Real(least=0),
        record.BRIGHTNESS: Real(least=0, most=255),
        record.WEIGHT: Real(least=0),
        **dict.fromkeys(record.OBJECT_SIDES, Real(least=0, most=1)),
        **dict.fromkeys((record.LABEL, record.OBJECT_LABEL), indices),
        **dict.fromkeys((record.TEXT, record.OBJECT_TEXT), classes),
    }


def _sides(limits: Mapping[str, Any], pixels: Mapping[str, Any]) -> Whole:
    """Returns the range of height and width, in pixels, of images as they are stored."""
    least, most = limits["min_side_px"], limits["max_side_px"]
    if pixels["policy"] == "raw":
        return Whole(least=pixels["side_px"], most=pixels["side_px"])
    if pixels["policy"] == "resize" and pixels["fit"] == "inside":
        return Whole(least=1, most=min(most, pixels["side_px"]))
    if pixels["policy"] == "resize":
        return Whole(least=min(least, pixels["side_px"]), most=most)
    return Whole(least=least, most=most)


def _widened(domain: Domain, seen: Range | None) -> Domain:
    if seen is None or isinstance(domain, Values):
        return domain
    least, most = seen
    if isinstance(domain, Whole):
        return Whole(least=min(domain.least, int(least)), most=max(domain.most, int(most)))
    return Real(least=min(domain.least, least), most=None if domain.most is None else max(domain.most, most))


def _set_domain(schema: schema_pb2.Schema, feature: schema_pb2.Feature, domain: Domain) -> None:
    if isinstance(domain, Values):
        feature.domain = feature.name
        named = [known for known in schema.string_domain if known.name == feature.name]
        target = named[0] if named else schema.string_domain.add(name=feature.name)
        target.value[:] = domain.values
    elif isinstance(domain, Whole):
        feature.int_domain.Clear()
        feature.int_domain.min, feature.int_domain.max = domain.least, domain.most
        if domain.category:
            feature.int_domain.is_categorical = True
    else:
        feature.float_domain.Clear()
        feature.float_domain.min = domain.least
        if domain.most is not None:
            feature.float_domain.max = domain.most


def _set_shape(feature: schema_pb2.Feature, dataset: Manifest) -> None:
    """Says that a feature is in every record, and with how many values."""
    feature.presence.min_fraction, feature.presence.min_count = 1.0, 1
    if feature.name in (record.LABEL, record.TEXT) and dataset.label_kind == "multi":
        feature.value_count.min, feature.value_count.max = 0, max(1, len(dataset.labels))
        return
    shape = record.FEATURES[feature.name][1] or (1,)  # to TFX a scalar is a vector of one
    feature.shape.Clear()
    for size in shape:
        feature.shape.dim.add(size=size)


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
    return describe_known(schema, dataset, seen_ranges(statistics))


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


EXAMPLES_KEY = "examples"
STATISTICS_KEY = "statistics"
SCHEMA_KEY = "schema"
CODE_KEY = "code"


class InferredSchemaExecutor(base_executor.BaseExecutor):
    """Writes `schema.pbtxt`."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes the artifact.

        Raises:
          CorruptDataset: the dataset of the statistics is damaged.
        """
        dataset = manifest.load(artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY]))
        statistics = load_statistics(artifact_utils.get_single_instance(input_dict[STATISTICS_KEY]))
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        review.write_schema(infer(statistics, dataset), storage.join(directory, review.SCHEMA_NAME))


TEXT_KEY = "schema_text"


class ReviewedSchemaExecutor(base_executor.BaseExecutor):
    """Writes `schema.pbtxt`."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes the artifact."""
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        storage.write_bytes(storage.join(directory, SCHEMA_NAME), exec_properties[TEXT_KEY].encode())


class InferredSchemaSpec(types.ComponentSpec):
    """Wiring of InferredSchema."""

    PARAMETERS = {CODE_KEY: ExecutionParameter(type=str)}
    INPUTS = {
        STATISTICS_KEY: ChannelParameter(type=standard_artifacts.ExampleStatistics),
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
    }
    OUTPUTS = {SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class InferredSchema(base_component.BaseComponent):
    """Infers the schema of a dataset: what TFDV sees, and domains, ranges and shapes that the dataset knows.

    Example:
      schema = InferredSchema(statistics_gen.outputs["statistics"], example_gen.outputs["examples"]).outputs["schema"]

    Outputs:
      schema: `Schema`.
    """

    SPEC_CLASS = InferredSchemaSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(InferredSchemaExecutor)

    def __init__(self, statistics: types.BaseChannel, examples: types.BaseChannel, code: str = "") -> None:
        """Builds the component.

        Args:
          statistics: what StatisticsGen counted, with the options of `components.statistics`.
          examples: the Feedline dataset it counted.
          code: version of the code; another one misses the cache.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        values = {CODE_KEY: code, STATISTICS_KEY: statistics, EXAMPLES_KEY: examples, SCHEMA_KEY: schema}
        super().__init__(spec=InferredSchemaSpec(**values))


class ReviewedSchemaSpec(types.ComponentSpec):
    """Wiring of ReviewedSchema."""

    PARAMETERS = {TEXT_KEY: ExecutionParameter(type=str)}
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class ReviewedSchema(base_component.BaseComponent):
    """Provides the schema of a file.

    Example:
      schema = ReviewedSchema("schema.pbtxt").outputs["schema"]

    Outputs:
      schema: `Schema`.
    """

    SPEC_CLASS = ReviewedSchemaSpec
    EXECUTOR_SPEC = executor_spec.ExecutorClassSpec(ReviewedSchemaExecutor)

    def __init__(self, path: str) -> None:
        """Builds the component.

        Args:
          path: text file of a `tensorflow.metadata.v0.Schema`.

        Raises:
          OptionError: it cannot be read, or is not a schema.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        text = review.read_schema_text(path)
        super().__init__(spec=ReviewedSchemaSpec(**{TEXT_KEY: text, SCHEMA_KEY: schema}))
