"""InferredSchema and ReviewedSchema: components that provide the `Schema` of a pipeline.

InferredSchema infers the schema, for review, from statistics and the manifest of the dataset. It replaces TFX's
SchemaGen, which reads only the statistics and therefore allows any height, any mean and, above 100 classes, any class.
It does not extend the output of SchemaGen, because a pipeline would then have two schemas.

The statistics cover observed values only. The manifest adds the allowed values: an image is 8 to 32,768 pixels wide, a
mean is 0-255, and the classes are those of `dataset.json`.

ReviewedSchema provides a reviewed schema file; its cache key is the content of the file. The cache key of TFX's
ImportSchemaGen is the path, so that the cache ignores an edit. The pipeline contains the content, so the file need not
be accessible where the pipeline runs.
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
from components.schema import schema_text
from components.statistics import dataset_statistics, load_statistics

Range = tuple[float, float]  # minimum, maximum


@dataclass(frozen=True, kw_only=True)
class TextSet:
    """A domain of a fixed set of texts.

    Attributes:
      values: all allowed texts.
    """

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class IntRange:
    """A domain of whole numbers.

    Attributes:
      least: smallest allowed number.
      most: largest allowed number.
      category: whether the numbers are categories.
    """

    least: int
    most: int
    category: bool = False


@dataclass(frozen=True, kw_only=True)
class FloatRange:
    """A domain of real numbers.

    Attributes:
      least: smallest allowed number.
      most: largest allowed number; None for no limit.
    """

    least: float
    most: float | None = None


Domain = TextSet | IntRange | FloatRange


def add_manifest_domains(
    schema: schema_pb2.Schema, dataset: Manifest, observed: Mapping[str, Range]
) -> schema_pb2.Schema:
    """Returns a copy of an inferred schema with domains and shapes from the manifest; user columns are unchanged.

    Args:
      schema: schema that was inferred from statistics.
      dataset: manifest of the dataset.
      observed: numeric feature -> smallest and largest value.
    """
    result = schema_pb2.Schema()
    result.CopyFrom(schema)
    domains = manifest_domains(dataset, observed)
    for feature in result.feature:
        if feature.name in domains:
            _set_domain(result, feature, domains[feature.name])
        if feature.name in record.FEATURES:
            _set_shape(feature, dataset)
    used_names = {feature.domain for feature in result.feature}
    used_domains = [domain for domain in result.string_domain if domain.name in used_names]
    del result.string_domain[:]  # includes inferred domains that manifest domains have replaced
    result.string_domain.extend(used_domains)
    return result


def manifest_domains(dataset: Manifest, observed: Mapping[str, Range]) -> dict[str, Domain]:
    """Returns feature -> domain.

    The ranges of sizes are the limits of the ingest, which apply to source images. They are extended to the observed
    values, because re-encoded images, and images added with other limits, may exceed them: a dataset always conforms to
    its own schema.

    Args:
      dataset: manifest of the dataset.
      observed: numeric feature -> smallest and largest value.
    """
    limits, pixels = dataset.options["limits"], dataset.options["pixels"]
    is_raw = pixels["policy"] == "raw"
    side_range = _side_range(limits, pixels)
    aspect_range = FloatRange(least=1 / limits["max_aspect"], most=limits["max_aspect"])
    class_names = TextSet(values=dataset.labels)
    class_indices = IntRange(least=0, most=max(0, len(dataset.labels) - 1), category=True)
    return {
        record.FORMAT: TextSet(values=("raw",) if is_raw else ("jpeg", "png")),
        record.HEIGHT: _extend(side_range, observed.get(record.HEIGHT)),
        record.WIDTH: _extend(side_range, observed.get(record.WIDTH)),
        record.CHANNELS: IntRange(least=1, most=3),
        record.BYTES: _extend(IntRange(least=1, most=limits["max_bytes"]), observed.get(record.BYTES)),
        record.ASPECT_RATIO: _extend(aspect_range, observed.get(record.ASPECT_RATIO)),
        record.MEAN_RGB: FloatRange(least=0, most=255),
        record.VAR_RGB: FloatRange(least=0),
        record.BRIGHTNESS: FloatRange(least=0, most=255),
        record.WEIGHT: FloatRange(least=0),
        **dict.fromkeys(record.OBJECT_SIDES, FloatRange(least=0, most=1)),
        **dict.fromkeys((record.LABEL, record.OBJECT_LABEL), class_indices),
        **dict.fromkeys((record.TEXT, record.OBJECT_TEXT), class_names),
    }


def _side_range(limits: Mapping[str, Any], pixels: Mapping[str, Any]) -> IntRange:
    """Returns the range of height and width of stored images, pixels, by limits and pixel options of the ingest."""
    least, most = limits["min_side_px"], limits["max_side_px"]
    if pixels["policy"] == "raw":
        return IntRange(least=pixels["side_px"], most=pixels["side_px"])
    if pixels["policy"] == "resize" and pixels["fit"] == "inside":
        return IntRange(least=1, most=min(most, pixels["side_px"]))
    if pixels["policy"] == "resize":
        return IntRange(least=min(least, pixels["side_px"]), most=most)
    return IntRange(least=least, most=most)


def _extend(domain: Domain, observed: Range | None) -> Domain:
    """Returns a numeric domain extended to the observed range, and any other domain unchanged."""
    if observed is None or isinstance(domain, TextSet):
        return domain
    least, most = observed
    if isinstance(domain, IntRange):
        return IntRange(least=min(domain.least, int(least)), most=max(domain.most, int(most)))
    return FloatRange(least=min(domain.least, least), most=None if domain.most is None else max(domain.most, most))


def _set_domain(schema: schema_pb2.Schema, feature: schema_pb2.Feature, domain: Domain) -> None:
    if isinstance(domain, TextSet):
        feature.domain = feature.name
        matches = [string_domain for string_domain in schema.string_domain if string_domain.name == feature.name]
        string_domain = matches[0] if matches else schema.string_domain.add(name=feature.name)
        string_domain.value[:] = domain.values
    elif isinstance(domain, IntRange):
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
    """Marks a feature as present in every record, and sets its shape or number of values."""
    feature.presence.min_fraction, feature.presence.min_count = 1.0, 1
    if feature.name in (record.LABEL, record.TEXT) and dataset.label_kind == "multi":  # any number of classes
        feature.value_count.min, feature.value_count.max = 0, max(1, len(dataset.labels))
        return
    shape = record.FEATURES[feature.name][1] or (1,)  # TFX treats a scalar as a vector with one element
    feature.shape.Clear()
    for size in shape:
        feature.shape.dim.add(size=size)


Statistics = Mapping[str, statistics_pb2.DatasetFeatureStatisticsList]


def infer(statistics: Statistics, dataset: Manifest) -> schema_pb2.Schema:
    """Returns the schema of a dataset, to which all splits conform.

    Args:
      statistics: split -> statistics, at least one split.
      dataset: manifest of the dataset.
    """
    schema: schema_pb2.Schema | None = None
    for split_statistics in statistics.values():
        schema = tfdv.update_schema(schema, split_statistics) if schema else tfdv.infer_schema(split_statistics)
    return add_manifest_domains(schema, dataset, observed_ranges(statistics))


def infer_from_dataset(directory: str) -> schema_pb2.Schema:
    """Returns the schema of the dataset in a directory; reads all records for the statistics.

    Raises:
      SourceError: the directory is not a published dataset.
      CorruptDataset: the dataset is damaged.
    """
    dataset = manifest.load(directory)
    return infer(dataset_statistics(directory, dataset), dataset)


def observed_ranges(statistics: Statistics) -> dict[str, Range]:
    """Returns numeric feature -> smallest and largest value over all splits."""
    ranges: dict[str, Range] = {}
    for split_statistics in statistics.values():
        for feature in split_statistics.datasets[0].features:
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
    """Writes the inferred `schema.pbtxt`."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes the file of the `Schema` artifact.

        Raises:
          CorruptDataset: the dataset of the statistics is damaged.
        """
        dataset = manifest.load(artifact_utils.get_single_uri(input_dict[EXAMPLES_KEY]))
        statistics = load_statistics(artifact_utils.get_single_instance(input_dict[STATISTICS_KEY]))
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        schema_text.write_schema(infer(statistics, dataset), storage.join(directory, schema_text.SCHEMA_NAME))


TEXT_KEY = "schema_text"


class ReviewedSchemaExecutor(base_executor.BaseExecutor):
    """Writes the reviewed schema to `schema.pbtxt`."""

    def Do(self, input_dict: Artifacts, output_dict: Artifacts, exec_properties: dict[str, Any]) -> None:
        """Writes the file of the `Schema` artifact."""
        directory = artifact_utils.get_single_uri(output_dict[SCHEMA_KEY])
        storage.write_bytes(storage.join(directory, schema_text.SCHEMA_NAME), exec_properties[TEXT_KEY].encode())


class InferredSchemaSpec(types.ComponentSpec):
    """Parameters, inputs and outputs of InferredSchema."""

    PARAMETERS = {CODE_KEY: ExecutionParameter(type=str)}
    INPUTS = {
        STATISTICS_KEY: ChannelParameter(type=standard_artifacts.ExampleStatistics),
        EXAMPLES_KEY: ChannelParameter(type=standard_artifacts.Examples),
    }
    OUTPUTS = {SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class InferredSchema(base_component.BaseComponent):
    """Infers the schema of a dataset with TFDV, and adds domains and shapes from the manifest.

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
          statistics: output of StatisticsGen with the options of `components.statistics`.
          examples: the Feedline dataset of these statistics.
          code: version of the code, a part of the cache key.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        values = {CODE_KEY: code, STATISTICS_KEY: statistics, EXAMPLES_KEY: examples, SCHEMA_KEY: schema}
        super().__init__(spec=InferredSchemaSpec(**values))


class ReviewedSchemaSpec(types.ComponentSpec):
    """Parameters, inputs and outputs of ReviewedSchema."""

    PARAMETERS = {TEXT_KEY: ExecutionParameter(type=str)}
    INPUTS: dict[str, ChannelParameter] = {}
    OUTPUTS = {SCHEMA_KEY: ChannelParameter(type=standard_artifacts.Schema)}


class ReviewedSchema(base_component.BaseComponent):
    """Provides the schema in a reviewed file.

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
          path: path of a `tensorflow.metadata.v0.Schema` in text format.

        Raises:
          OptionError: the file cannot be read, or is not a schema.
        """
        schema = types.Channel(type=standard_artifacts.Schema)
        text = schema_text.read_schema_text(path)
        super().__init__(spec=ReviewedSchemaSpec(**{TEXT_KEY: text, SCHEMA_KEY: schema}))
