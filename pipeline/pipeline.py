"""The pipeline: every component once, in order. Runners differ in where it runs, never in what.

The version of the running code, to the byte, is in the cache keys, so that changed code never meets old results.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

from beam_jobs.stages.publish import producer
from components import artifacts
from components.blessed_model import MODEL_KEY, Pusher, blessed_model
from components.blessed_model import NODE_ID as BLESSED_ID
from components.dataset_gate.component import DatasetGate
from components.dataset_report.component import DatasetReport
from components.evaluation.config import evaluation_config
from components.image_example_gen.component import ImageExampleGen
from components.previous_span.resolver import NODE_ID as PREVIOUS_ID
from components.previous_span.resolver import PREVIOUS_KEY, previous_examples
from components.schema.component import InferredSchema, ReviewedSchema
from components.statistics import statistics_options
from pipeline.config import DataShape, PipelineConfig
from trainer.input.columns import CONFIG_KEY as TRANSFORM_KEY
from trainer.models import content_digest
from trainer.options import TrainerConfig
from trainer.run_fn import CONFIG_KEY as TRAINER_KEY
from trainer.serving.predict import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES

_VERSIONED_PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")


@functools.cache
def code_version() -> str:
    """Returns the release and a digest of every file of the four packages, such as `0.1.0+3f9c0d1e`."""
    root = Path(__file__).parent.parent
    hasher = hashlib.sha256()
    for package in _VERSIONED_PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            hasher.update(path.relative_to(root).as_posix().encode())
            hasher.update(path.read_bytes())
    return f"{metadata.version('feedline')}+{hasher.hexdigest()[:8]}"


@dataclass(frozen=True, kw_only=True)
class Baselines:
    """What a run is compared with, by name: for orchestrators where no node can ask ML Metadata what came before.

    Attributes:
      dataset: directory of a published dataset; empty compares with none.
      model: directory of a `Model` artifact; empty compares with none.
    """

    dataset: str = ""
    model: str = ""


def create_pipeline(config: PipelineConfig, baselines: Baselines | None = None) -> tfx.dsl.Pipeline:
    """Builds the whole pipeline.

    Args:
      config: all of its settings.
      baselines: what to compare with; None looks it up in ML Metadata, a file in the root.

    Returns:
      ImageExampleGen -> StatisticsGen -> schema -> ExampleValidator -> DatasetGate -> Transform -> Trainer -> Evaluator
      -> Pusher, and DatasetReport beside them. Two resolvers find what came before: the dataset that the gate compares
      with, and the model that the evaluation does.

    Raises:
      UsageError: the source, or the dataset to adopt, cannot be used.
    """
    artifacts.register_store_files()
    data = config.data()
    code = code_version()
    prepared = _prepare(config, data, code, baselines)
    return tfx.dsl.Pipeline(
        pipeline_name=config.name,
        pipeline_root=config.artifacts_dir,
        components=[*prepared.nodes, *_model(config, data, prepared, code, baselines)],
        enable_cache=True,
        beam_pipeline_args=list(config.beam_args),
        # TFX makes the directory of that file here and now, so it is not named where it is not used.
        metadata_connection_config=None
        if baselines is not None
        else tfx.orchestration.metadata.sqlite_metadata_connection_config(config.metadata_path),
    )


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The first half: a dataset that may be trained on."""

    examples: tfx.types.BaseChannel
    schema: tfx.types.BaseChannel
    gate: DatasetGate
    nodes: tuple[BaseNode, ...]


def _prepare(config: PipelineConfig, data: DataShape, code: str, baselines: Baselines | None) -> _Prepared:
    example_gen = _example_gen(config, code)
    examples = example_gen.outputs["examples"]
    statistics_gen = tfx.components.StatisticsGen(examples=examples, stats_options=statistics_options(data.extra))
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = (
        ReviewedSchema(config.schema) if config.schema_is_reviewed else InferredSchema(statistics, examples, code=code)
    )
    schema = schema_gen.outputs["schema"]
    validator = tfx.components.ExampleValidator(statistics=statistics, schema=schema)
    if baselines is None:
        previous: list[BaseNode] = [previous_examples(examples)]
    else:
        previous = _imported(baselines.dataset, tfx.types.standard_artifacts.Examples, PREVIOUS_KEY, PREVIOUS_ID)
    gate = DatasetGate(
        examples,
        validator.outputs["anomalies"],
        config.gate,
        baseline_examples=previous[0].outputs[PREVIOUS_KEY] if previous else None,
        code=code,
    )
    nodes = (example_gen, statistics_gen, schema_gen, validator, *previous, gate)
    return _Prepared(examples=examples, schema=schema, gate=gate, nodes=nodes)


def _imported(place: str, kind: type[tfx.dsl.Artifact], key: str, node_id: str) -> list[BaseNode]:
    """Returns the node that hands over what lies in a place; none when no place is named."""
    if not place:
        return []
    return [tfx.dsl.Importer(source_uri=place, artifact_type=kind, output_key=key).with_id(node_id)]


def _example_gen(config: PipelineConfig, code: str) -> ImageExampleGen:
    if not config.ingest:
        return ImageExampleGen(dataset=config.dataset, span=config.span, version=config.version)
    libraries = ", ".join(f"{name} {version}" for name, version in producer().items())
    return ImageExampleGen(config.ingest, producer=f"{code}, {libraries}", span=config.span, version=config.version)


def _images(config: PipelineConfig) -> str:
    """Returns the directory of class folders; of other sources the report of the component shows no rejected images."""
    source = config.ingest.source if config.ingest else ""
    return source if os.path.isdir(source) else ""


def _model(
    config: PipelineConfig, data: DataShape, prepared: _Prepared, code: str, baselines: Baselines | None
) -> list[BaseNode]:
    first, held_back, *_ = data.splits
    examples = prepared.examples
    transform = tfx.components.Transform(
        examples=examples,
        schema=prepared.schema,
        preprocessing_fn="trainer.serving.preprocessing.preprocessing_fn",
        # Materialising would copy the dataset; the trainer reads the shards themselves.
        materialize=False,
        splits_config=tfx.proto.SplitsConfig(analyze=[first]),
        disable_statistics=True,
        custom_config={TRANSFORM_KEY: config.transform.to_json(), "code": code},
    )
    transform.add_upstream_node(prepared.gate)
    trainer = tfx.components.Trainer(
        run_fn="trainer.run_fn.run_fn",
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=prepared.schema,
        train_args=tfx.proto.TrainArgs(splits=[first]),
        eval_args=tfx.proto.EvalArgs(splits=[held_back]),
        custom_config={
            TRAINER_KEY: TrainerConfig(input=config.input, train=config.train).to_json(),
            "code": code,
            "content": content_digest(config.train.model, config.train.weights),
        },
    )
    model = trainer.outputs["model"]
    if baselines is None:
        before: list[BaseNode] = (
            [blessed_model(model, DESCRIPTION_NAME)] if config.evaluate.max_drop is not None else []
        )
    else:
        before = _imported(baselines.model, tfx.types.standard_artifacts.Model, MODEL_KEY, BLESSED_ID)
    evaluator = tfx.components.Evaluator(
        examples=examples,
        model=model,
        baseline_model=before[0].outputs[MODEL_KEY] if before else None,
        example_splits=[held_back],
        eval_config=evaluation_config(config.evaluate, EVALUATE_SIGNATURE, PROBABILITIES, data.is_weighted),
    )
    pusher = Pusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=config.serving_dir)
        ),
    )
    report = DatasetReport(
        examples,
        evaluator.outputs["evaluation"],
        prepared.gate.outputs["verdict"],
        model,
        input_options=asdict(config.input),
        source=_images(config),
        code=code,
    )
    return [transform, trainer, *before, evaluator, pusher, report]
