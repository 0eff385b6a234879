from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from beam_jobs.dataset.manifest import ChannelStatistics, ImageCounts, Manifest, Shard, SplitInfo
from tests.trainer.evaluation.brightness import linear

BEAM_ARGS = ["--runner=FnApiRunner", "--direct_running_mode=in_memory"]


def manifest_of(splits: Mapping[str, Mapping[str, int]]) -> Manifest:
    """A manifest of one shard a split with the given classes and counts."""
    labels = sorted({label for classes in splits.values() for label in classes})
    total = sum(sum(classes.values()) for classes in splits.values())
    return Manifest(
        source="photos",
        options={},
        options_digest="",
        label_kind="single",
        labels=tuple(labels),
        splits={
            name: SplitInfo(
                shards=(Shard(name="data", records=sum(classes.values()), bytes=1000, sha256=""),), classes=classes
            )
            for name, classes in splits.items()
        },
        counts=ImageCounts(found=total, written=total),
        channels=ChannelStatistics(split=next(iter(splits)), mean_rgb=(1, 2, 3), std_rgb=(1, 1, 1)),
        tables={},
        producer={"feedline": "0"},
    )


def artifact(kind, path: Path, splits: tuple[str, ...] = ()):
    """An artifact of a kind, with splits if any, at a directory, which is made where there is none."""
    from tfx.types import artifact_utils

    path.mkdir(parents=True, exist_ok=True)
    made = kind()
    made.uri = str(path)
    if splits:
        made.split_names = artifact_utils.encode_split_names(list(splits))
    return made


def statistics_artifact(path: Path, by_split: Mapping):
    """The artifact that StatisticsGen would write about splits."""
    from tfx.types import standard_artifacts
    from tfx.utils import io_utils

    for split, found in by_split.items():
        io_utils.write_bytes_file(str(path / f"Split-{split}" / "FeatureStats.pb"), found.SerializeToString())
    return artifact(standard_artifacts.ExampleStatistics, path, tuple(by_split))


def validate(schema, by_split: Mapping, out: Path):
    """Runs ExampleValidator on statistics, and returns the artifact of its anomalies."""
    from tfx.components.example_validator.executor import Executor as ExampleValidator
    from tfx.types import standard_artifacts, standard_component_specs

    from components.schema import schema_text

    schema_text.write_schema(schema, str(out / "schema" / schema_text.SCHEMA_NAME))
    kept = artifact(standard_artifacts.Schema, out / "schema")
    statistics = statistics_artifact(out / "statistics", by_split)
    anomalies = artifact(standard_artifacts.ExampleAnomalies, out / "anomalies")
    ExampleValidator().Do(
        {standard_component_specs.STATISTICS_KEY: [statistics], standard_component_specs.SCHEMA_KEY: [kept]},
        {standard_component_specs.ANOMALIES_KEY: [anomalies]},
        {standard_component_specs.EXCLUDE_SPLITS_KEY: "[]"},
    )
    return anomalies


@pytest.fixture(scope="session")
def always_first_class(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model of `china` and `flower` that answers `china` whatever it sees. Read only."""
    from trainer.ops import parse_ops
    from trainer.serving.export import export

    path = tmp_path_factory.mktemp("always_first")
    export(linear([0.0, 0.0], [1.0, 0.0]), parse_ops("decode|resize(8)"), ("china", "flower"), 8, str(path))
    return path


def run_pipeline(root: Path, *components):
    """Runs components with the local runner in a root of their own, and returns their steps by name."""
    from tfx import v1 as tfx

    from pipeline.runs.history import newest_run, open_store

    store = str(root / "metadata.sqlite")
    tfx.orchestration.LocalDagRunner().run(
        tfx.dsl.Pipeline(
            pipeline_name="small",
            pipeline_root=str(root / "artifacts"),
            components=list(components),
            enable_cache=True,
            beam_pipeline_args=BEAM_ARGS,
            metadata_connection_config=tfx.orchestration.metadata.sqlite_metadata_connection_config(store),
        )
    )
    return newest_run(open_store(store))


def analyse(model, dataset: Path, config, out: Path) -> Path:
    """Runs TFMA as Evaluator does, on the eval split, and returns the directory of its output.

    `model` is the directory of one, or what TFMA has made of one or of several.
    """
    import tensorflow_model_analysis as tfma
    from apache_beam.options.pipeline_options import PipelineOptions

    if isinstance(model, Path):
        model = tfma.default_eval_shared_model(eval_saved_model_path=str(model), eval_config=config)
    tfma.run_model_analysis(
        eval_shared_model=model,
        eval_config=config,
        data_location=str(dataset / "Split-eval" / "*"),
        output_path=str(out),
        pipeline_options=PipelineOptions(BEAM_ARGS),
    )
    return out


@pytest.fixture(scope="session")
def evaluation_config():
    """What the pipeline has Evaluator measure."""
    from components.evaluation.config import evaluation_config
    from components.evaluation.results import EvaluateOptions
    from trainer.serving.export import EVALUATE_SIGNATURE, PROBABILITIES

    return evaluation_config(EvaluateOptions(), EVALUATE_SIGNATURE, PROBABILITIES)


@pytest.fixture(scope="session")
def evaluation_dir(
    always_first_class: Path, _dataset: Path, evaluation_config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """What Evaluator writes about `always_first_class` on the eval split. Read only."""
    return analyse(always_first_class, _dataset, evaluation_config, tmp_path_factory.mktemp("evaluation"))
