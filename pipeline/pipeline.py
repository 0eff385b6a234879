"""The pipeline: every component once, in order. Runners differ in where it runs, never in what."""

from __future__ import annotations

import tensorflow_model_analysis as tfma
from tensorflow_data_validation import StatsOptions
from tfx import v1 as tfx
from tfx.dsl.components.base.base_component import BaseComponent

from beam_jobs import record
from beam_jobs.publish import producer
from components.dataset_gate.component import DatasetGate
from components.dataset_report.component import DatasetReport
from components.image_example_gen.component import ImageExampleGen
from components.reviewed_schema.component import ReviewedSchema
from pipeline.config import PipelineConfig
from pipeline.version import code_version
from trainer.options import TrainerConfig
from trainer.run_fn import CONFIG_KEY
from trainer.serving import EVALUATE_SIGNATURE, PROBABILITIES

ACCURACY = "SparseCategoricalAccuracy"


def create_pipeline(config: PipelineConfig) -> tfx.dsl.Pipeline:
    """Builds the whole pipeline.

    Args:
      config: everything it is told.

    Returns:
      ImageExampleGen -> StatisticsGen -> schema -> ExampleValidator -> DatasetGate -> Transform -> Trainer -> Evaluator
      -> Pusher, and DatasetReport beside them.
    """
    first, held_back, *_ = config.ingest.splits
    code = code_version()

    libraries = ", ".join(f"{name} {version}" for name, version in producer().items())
    example_gen = ImageExampleGen(config.ingest, producer=f"{code}, {libraries}")
    examples = example_gen.outputs["examples"]
    statistics_gen = tfx.components.StatisticsGen(examples=examples, stats_options=statistics_options(config))
    statistics = statistics_gen.outputs["statistics"]
    schema_gen = _schema(config, statistics)
    schema = schema_gen.outputs["schema"]
    validator = tfx.components.ExampleValidator(statistics=statistics, schema=schema)
    gate = DatasetGate(examples, validator.outputs["anomalies"], config.gate)
    transform = tfx.components.Transform(
        examples=examples,
        schema=schema,
        preprocessing_fn="trainer.preprocessing.preprocessing_fn",
        # Materialising would copy the dataset; the trainer reads the shards themselves.
        materialize=False,
        splits_config=tfx.proto.SplitsConfig(analyze=[first]),
        disable_statistics=True,
        custom_config={"code": code},
    )
    transform.add_upstream_node(gate)
    trainer = tfx.components.Trainer(
        run_fn="trainer.run_fn.run_fn",
        examples=examples,
        transform_graph=transform.outputs["transform_graph"],
        schema=schema,
        train_args=tfx.proto.TrainArgs(splits=[first]),
        eval_args=tfx.proto.EvalArgs(splits=[held_back]),
        custom_config={CONFIG_KEY: TrainerConfig(input=config.input, train=config.train).to_json(), "code": code},
    )
    evaluator = tfx.components.Evaluator(
        examples=examples,
        model=trainer.outputs["model"],
        example_splits=[held_back],
        eval_config=evaluation_config(config),
    )
    pusher = tfx.components.Pusher(
        model=trainer.outputs["model"],
        model_blessing=evaluator.outputs["blessing"],
        push_destination=tfx.proto.PushDestination(
            filesystem=tfx.proto.PushDestination.Filesystem(base_directory=config.serving_dir)
        ),
    )
    report = DatasetReport(examples, evaluator.outputs["evaluation"], code=code)
    components: list[BaseComponent] = [example_gen, statistics_gen, schema_gen, validator, gate]
    return tfx.dsl.Pipeline(
        pipeline_name=config.name,
        pipeline_root=config.artifacts_dir,
        components=[*components, transform, trainer, evaluator, pusher, report],
        enable_cache=True,
        beam_pipeline_args=list(config.beam_args),
        metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(config.metadata_path),
    )


def statistics_options(config: PipelineConfig) -> StatsOptions:
    """Returns the options of StatisticsGen: small features only, because it would count whole images as categories."""
    extra = [record.EXTRA_PREFIX + name for name in config.ingest.columns.extra]
    return StatsOptions(feature_allowlist=[*record.STATISTICS_FEATURES, *extra])


def evaluation_config(config: PipelineConfig) -> tfma.EvalConfig:
    """Returns what TFMA measures: accuracy with its interval, over all and a class at a time, and the threshold."""
    # Of the overall slice alone: a plain threshold holds for every slice, and a class of 30 images misses it by one.
    threshold = tfma.PerSliceMetricThreshold(
        slicing_specs=[tfma.SlicingSpec()],
        threshold=tfma.MetricThreshold(
            value_threshold=tfma.GenericValueThreshold(lower_bound={"value": config.evaluate.min_accuracy})
        ),
    )
    return tfma.EvalConfig(
        model_specs=[
            tfma.ModelSpec(
                signature_name=EVALUATE_SIGNATURE,
                label_key=record.LABEL,
                prediction_key=PROBABILITIES,
                model_type=tfma.constants.TF_GENERIC,
            )
        ],
        slicing_specs=[tfma.SlicingSpec(), tfma.SlicingSpec(feature_keys=[record.TEXT])],
        metrics_specs=[
            tfma.MetricsSpec(
                metrics=[
                    tfma.MetricConfig(class_name=ACCURACY, per_slice_thresholds=[threshold]),
                    tfma.MetricConfig(class_name="ExampleCount"),
                ]
            )
        ],
        options=tfma.Options(compute_confidence_intervals={"value": True}),
    )


def _schema(config: PipelineConfig, statistics: tfx.types.BaseChannel) -> BaseComponent:
    if config.schema:
        return ReviewedSchema(config.schema)
    return tfx.components.SchemaGen(statistics=statistics, infer_feature_shape=True)
