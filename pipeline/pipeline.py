"""Builds the TFX pipeline of all components. It is the same for every runner.

A digest of the code is part of the cache keys, so that changed code never uses cached results.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass

# Not `tfx.v1`, which takes seconds to import Vertex AI and other clients that no local run needs.
from tfx.components import Evaluator, ExampleValidator, StatisticsGen, Trainer, Transform
from tfx.dsl.components.base.base_node import BaseNode
from tfx.dsl.components.common.importer import Importer
from tfx.orchestration.metadata import sqlite_metadata_connection_config
from tfx.orchestration.pipeline import Pipeline
from tfx.proto.pusher_pb2 import PushDestination
from tfx.proto.trainer_pb2 import EvalArgs, TrainArgs
from tfx.proto.transform_pb2 import SplitsConfig
from tfx.types import Artifact, BaseChannel, standard_artifacts

from beam_jobs.common.source_code import code_version
from beam_jobs.runners.dataflow import component_arguments
from beam_jobs.stages.publish import producer
from components import artifacts
from components.blessed_model import MODEL_KEY, Pusher, blessed_model
from components.blessed_model import NODE_ID as BLESSED_ID
from components.dataset_gate.component import DatasetGate
from components.dataset_report.component import DatasetReport
from components.evaluation.config import evaluation_config
from components.image_example_gen.component import ImageExampleGen, import_dataset
from components.previous_span.resolver import NODE_ID as PREVIOUS_ID
from components.previous_span.resolver import PREVIOUS_KEY, previous_examples
from components.schema.component import InferredSchema, ReviewedSchema
from components.statistics import statistics_options
from pipeline.config import DataShape, PipelineConfig
from trainer.input.columns import CONFIG_KEY as TRANSFORM_KEY
from trainer.models import content_digest
from trainer.options import TrainerConfig
from trainer.run_fn import CONFIG_KEY as TRAINER_KEY
from trainer.run_fn import WORK_DIR_KEY
from trainer.serving.predict import DESCRIPTION_NAME, EVALUATE_SIGNATURE, PROBABILITIES


@dataclass(frozen=True, kw_only=True)
class Service:
    """Settings for a service that runs components without drivers, resolvers and an ML Metadata database.

    Attributes:
      baseline_dataset: directory of a published dataset; empty for no comparison.
      baseline_model: directory of a `Model` artifact; empty for no comparison.
      work_dir: directory of unfinished work, which all runs share; see `ImageExampleGen` and `trainer.run_fn`.
      image: container image of the components and of Dataflow workers.
    """

    baseline_dataset: str = ""
    baseline_model: str = ""
    work_dir: str = ""
    image: str = ""


def create_pipeline(config: PipelineConfig, service: Service | None = None) -> Pipeline:
    """Builds the pipeline.

    Args:
      config: settings of the pipeline.
      service: settings for a service without ML Metadata; None uses drivers and resolvers, with a database in the root.

    Returns:
      the pipeline ImageExampleGen -> StatisticsGen -> schema -> ExampleValidator -> DatasetGate -> Transform -> Trainer
      -> Evaluator -> Pusher, with DatasetReport, a resolver for the baseline of the gate, and a resolver for the
      baseline of the evaluation. With a service, importers replace the resolvers, and also replace ImageExampleGen if
      the dataset is adopted.

    Raises:
      UsageError: the source or the adopted dataset cannot be used.
    """
    artifacts.register_store_files()
    data = config.data()
    code = code_version()
    data_nodes = _data_nodes(config, data, code, service)
    return Pipeline(
        pipeline_name=config.name,
        pipeline_root=config.artifacts_dir,
        components=[*data_nodes.nodes, *_model_nodes(config, data, data_nodes, code, service)],
        enable_cache=True,
        beam_pipeline_args=component_arguments(config.beam_args, service.image if service else ""),
        # Last, and for a service not at all: TFX creates the directory of this file immediately.
        metadata_connection_config=None if service else sqlite_metadata_connection_config(config.metadata_path),
    )


@dataclass(frozen=True, kw_only=True)
class _DataNodes:
    """The components from the ingest to the gate, and the channels that later components read."""

    examples: BaseChannel
    schema: BaseChannel
    gate: DatasetGate
    nodes: tuple[BaseNode, ...]


def _data_nodes(config: PipelineConfig, data: DataShape, code: str, service: Service | None) -> _DataNodes:
    """Returns the components up to the gate; `code` is the version of the code, a part of their cache keys."""
    example_gen = _example_gen(config, code, service)
    examples = example_gen.outputs["examples"]
    statistics_gen = StatisticsGen(examples=examples, stats_options=statistics_options(data.extra))
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = (
        ReviewedSchema(config.schema) if config.schema_is_reviewed else InferredSchema(statistics, examples, code=code)
    )
    schema = schema_gen.outputs["schema"]
    validator = ExampleValidator(statistics=statistics, schema=schema)
    if service is None:
        previous_nodes: list[BaseNode] = [previous_examples(examples)]
    else:
        dataset_dir = service.baseline_dataset
        previous_nodes = _import_artifact(dataset_dir, standard_artifacts.Examples, PREVIOUS_KEY, PREVIOUS_ID)
    gate = DatasetGate(
        examples,
        validator.outputs["anomalies"],
        config.gate,
        baseline_examples=previous_nodes[0].outputs[PREVIOUS_KEY] if previous_nodes else None,
        code=code,
    )
    nodes = (example_gen, statistics_gen, schema_gen, validator, *previous_nodes, gate)
    return _DataNodes(examples=examples, schema=schema, gate=gate, nodes=nodes)


def _import_artifact(uri: str, artifact_type: type[Artifact], output_key: str, node_id: str) -> list[BaseNode]:
    """Returns a node that imports the artifact of a directory; no node when `uri` is empty."""
    if not uri:
        return []
    return [Importer(source_uri=uri, artifact_type=artifact_type, output_key=output_key).with_id(node_id)]


def _example_gen(config: PipelineConfig, code: str, service: Service | None) -> BaseNode:
    """Returns ImageExampleGen; for a service with an adopted dataset, the importer of the dataset."""
    if not config.ingest:
        if service:
            return import_dataset(config.dataset, config.span, config.version)
        return ImageExampleGen(dataset=config.dataset, span=config.span, version=config.version)
    libraries = ", ".join(f"{name} {version}" for name, version in producer().items())
    return ImageExampleGen(
        config.ingest,
        producer=f"{code}, {libraries}",
        span=config.span,
        version=config.version,
        work_dir=service.work_dir if service else "",
    )


def _model_nodes(
    config: PipelineConfig, data: DataShape, data_nodes: _DataNodes, code: str, service: Service | None
) -> list[BaseNode]:
    """Returns the components from Transform to DatasetReport; `code` is the version of the code."""
    train_split, eval_split, *_ = data.splits
    examples = data_nodes.examples
    transform = Transform(
        examples=examples,
        schema=data_nodes.schema,
        preprocessing_fn="trainer.serving.preprocessing.preprocessing_fn",
        # Materialisation would copy the dataset; the Trainer reads the shards.
        materialize=False,
        splits_config=SplitsConfig(analyze=[train_split]),
        disable_statistics=True,
        custom_config={TRANSFORM_KEY: config.transform.to_json(), "code": code},
    )
    transform.add_upstream_node(data_nodes.gate)
    trainer = Trainer(
        run_fn="trainer.run_fn.run_fn",
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=data_nodes.schema,
        train_args=TrainArgs(splits=[train_split]),
        eval_args=EvalArgs(splits=[eval_split]),
        custom_config={
            TRAINER_KEY: TrainerConfig(input=config.input, train=config.train).to_json(),
            "code": code,
            "content": content_digest(config.train.model, config.train.weights),
            **({WORK_DIR_KEY: service.work_dir} if service else {}),
        },
    )
    model = trainer.outputs["model"]
    baseline_nodes: list[BaseNode] = []
    if service:
        baseline_nodes = _import_artifact(service.baseline_model, standard_artifacts.Model, MODEL_KEY, BLESSED_ID)
    elif config.evaluate.max_drop is not None:
        baseline_nodes = [blessed_model(model, DESCRIPTION_NAME)]
    evaluator = Evaluator(
        examples=examples,
        model=model,
        baseline_model=baseline_nodes[0].outputs[MODEL_KEY] if baseline_nodes else None,
        example_splits=[eval_split],
        eval_config=evaluation_config(config.evaluate, EVALUATE_SIGNATURE, PROBABILITIES, data.is_weighted),
    )
    pusher = Pusher(
        model=model,
        model_blessing=evaluator.outputs["blessing"],
        push_destination=PushDestination(filesystem=PushDestination.Filesystem(base_directory=config.serving_dir)),
    )
    source = config.ingest.source if config.ingest else ""
    report = DatasetReport(
        examples,
        evaluator.outputs["evaluation"],
        data_nodes.gate.outputs["verdict"],
        input_options=asdict(config.input),
        source=source if os.path.isdir(source) else "",  # rejected images are only shown from a directory
        code=code,
        **trainer.outputs,
    )
    return [transform, trainer, *baseline_nodes, evaluator, pusher, report]
