"""The pipeline: every component once, in order. Runners differ in where it runs, never in what."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

from tfx import v1 as tfx
from tfx.dsl.components.base.base_node import BaseNode

from beam_jobs.publish import producer
from components.blessed_model.component import blessed_model
from components.dataset_gate.component import DatasetGate
from components.dataset_report.component import DatasetReport
from components.evaluation.config import evaluation_config
from components.image_example_gen.component import ImageExampleGen
from components.model_pusher.component import Pusher
from components.previous_span.resolver import previous_examples
from components.reviewed_schema.component import ReviewedSchema
from components.schema.component import InferredSchema
from components.statistics import statistics_options
from pipeline.config import DataShape, PipelineConfig
from pipeline.version import code_version
from trainer.columns import CONFIG_KEY as TRANSFORM_KEY
from trainer.options import TrainerConfig
from trainer.run_fn import CONFIG_KEY as TRAINER_KEY
from trainer.serving import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES


def create_pipeline(config: PipelineConfig) -> tfx.dsl.Pipeline:
    """Builds the whole pipeline.

    Args:
      config: everything it is told.

    Returns:
      ImageExampleGen -> StatisticsGen -> schema -> ExampleValidator -> DatasetGate -> Transform -> Trainer -> Evaluator
      -> Pusher, and DatasetReport beside them. Two resolvers find what came before: the dataset that the gate compares
      with, and the model that the evaluation does.

    Raises:
      UsageError: the source, or the dataset to adopt, cannot be used.
    """
    data = config.data()
    config.transform.check(data.extra)
    config.evaluate.check(data.extra)
    code = code_version()
    prepared = _prepare(config, data, code)
    return tfx.dsl.Pipeline(
        pipeline_name=config.name,
        pipeline_root=config.artifacts_dir,
        components=[*prepared.nodes, *_model(config, data, prepared, code)],
        enable_cache=True,
        beam_pipeline_args=list(config.beam_args),
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(config.metadata_path),
    )


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    """The first half: a dataset that may be trained on."""

    examples: tfx.types.BaseChannel
    schema: tfx.types.BaseChannel
    gate: DatasetGate
    nodes: tuple[BaseNode, ...]


def _prepare(config: PipelineConfig, data: DataShape, code: str) -> _Prepared:
    example_gen = _example_gen(config, code)
    examples = example_gen.outputs["examples"]
    statistics_gen = tfx.components.StatisticsGen(examples=examples, stats_options=statistics_options(data.extra))
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = (
        ReviewedSchema(config.schema) if config.schema_is_reviewed else InferredSchema(statistics, examples, code=code)
    )
    schema = schema_gen.outputs["schema"]
    validator = tfx.components.ExampleValidator(statistics=statistics, schema=schema)
    previous = previous_examples(examples)
    gate = DatasetGate(
        examples,
        validator.outputs["anomalies"],
        config.gate,
        baseline_examples=previous.outputs["previous"],
        code=code,
    )
    nodes = (example_gen, statistics_gen, schema_gen, validator, previous, gate)
    return _Prepared(examples=examples, schema=schema, gate=gate, nodes=nodes)


def _example_gen(config: PipelineConfig, code: str) -> ImageExampleGen:
    if not config.ingest:
        return ImageExampleGen(dataset=config.dataset, span=config.span, version=config.version)
    libraries = ", ".join(f"{name} {version}" for name, version in producer().items())
    return ImageExampleGen(config.ingest, producer=f"{code}, {libraries}", span=config.span, version=config.version)


def _images(config: PipelineConfig) -> str:
    """Returns the directory of class folders; of other sources the report of the component shows no rejected images."""
    source = config.ingest.source if config.ingest else ""
    return source if os.path.isdir(source) else ""


def _model(config: PipelineConfig, data: DataShape, prepared: _Prepared, code: str) -> list[BaseNode]:
    first, held_back, *_ = data.splits
    examples = prepared.examples
    transform = tfx.components.Transform(
        examples=examples,
        schema=prepared.schema,
        preprocessing_fn="trainer.preprocessing.preprocessing_fn",
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
        custom_config={TRAINER_KEY: TrainerConfig(input=config.input, train=config.train).to_json(), "code": code},
    )
    model = trainer.outputs["model"]
    before = [blessed_model(model, DESCRIPTION_NAME)] if config.evaluate.max_drop is not None else []
    evaluator = tfx.components.Evaluator(
        examples=examples,
        model=model,
        baseline_model=before[0].outputs["model"] if before else None,
        example_splits=[held_back],
        eval_config=evaluation_config(config.evaluate, EVALUATE_SIGNATURE, PROBABILITIES),
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
