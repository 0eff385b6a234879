from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest, record
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests import image_table
from tests.make_images import encode, grey_image

BEAM_ARGS = ["--runner=FnApiRunner", "--direct_running_mode=in_memory"]


def rows_of(directory: Path, split: str) -> list[dict[str, Any]]:
    """The rows of the image table of one split, in the order of its shards."""
    rows = image_table.read(directory).to_pylist()
    return sorted((row for row in rows if row["split"] == split), key=lambda row: (row["shard"], row["offset"]))


def keys_of(directory: Path, split: str) -> list[str]:
    return [row["key"] for row in rows_of(directory, split)]


def records_of(directory: Path | str, split: str) -> list[bytes]:
    """The serialised records of a split, in order."""
    paths = manifest.load(str(directory)).shard_paths(str(directory), split)
    return list(tf.data.TFRecordDataset(paths).as_numpy_iterator())


def analyze(
    rows: list[dict[str, Any]], spec: dict[str, Any], out: Path, columns: Mapping[str, str] | None = None
) -> Path:
    """Runs Transform's analysis of `preprocessing_fn` over rows and returns the directory of its output."""
    import tensorflow_transform as tft
    import tensorflow_transform.beam as tft_beam
    from apache_beam import Create, Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions
    from tensorflow_transform.tf_metadata.dataset_metadata import DatasetMetadata

    from trainer.input.columns import CONFIG_KEY, TransformOptions
    from trainer.serving.preprocessing import preprocessing_fn

    config = {CONFIG_KEY: TransformOptions(columns=columns or {}).to_json()}
    with Pipeline(options=PipelineOptions(BEAM_ARGS)) as pipeline, tft_beam.Context(temp_dir=str(out / "temp")):
        data = pipeline | "Rows" >> Create(rows)
        metadata = DatasetMetadata.from_feature_spec(spec)
        # As TFX Transform does; the graph alone does not say what goes into it.
        raw = out / "graph" / tft.TFTransformOutput.RAW_METADATA_DIR
        _ = metadata | tft_beam.WriteMetadata(str(raw), pipeline)
        fn = (data, metadata) | tft_beam.AnalyzeDataset(functools.partial(preprocessing_fn, custom_config=config))
        _ = fn | tft_beam.WriteTransformFn(str(out / "graph"))
    return out / "graph"


def column_spec(names: Sequence[str]) -> dict[str, tf.io.FixedLenFeature]:
    """The columns as the inferred schema describes them: scalars are vectors of one."""
    return {
        name: tf.io.FixedLenFeature(record.FEATURES[name][1] or (1,), tf.as_dtype(record.FEATURES[name][0]))
        for name in names
    }


@pytest.fixture(scope="session")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """96 PNG images of one grey each, 0-95, in one split of four shards. Below 48 the class is `dark`. Read only."""
    source, out = tmp_path_factory.mktemp("shades"), tmp_path_factory.mktemp("shades_dataset")
    for grey in range(96):
        folder = source / ("dark" if grey < 48 else "light")
        folder.mkdir(exist_ok=True)
        (folder / f"{grey:03d}.png").write_bytes(grey_image(grey))
    run(IngestOptions(source=str(source), out=str(out), splits={"train": 1}, shards=4))
    return out


@pytest.fixture(scope="session")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 dark or light images: 16 `right` ones of weight 50, 32 `wrong` ones of weight 0 with the other class."""
    source, out = tmp_path_factory.mktemp("weighted"), tmp_path_factory.mktemp("weighted_dataset")
    rows = ["image,label,weight"]
    for number in range(48):
        pixels = np.full((12, 12, 3), number // 6 + 80 * (number % 2), np.uint8)
        pixels[0, 0] = number  # equal images would be copies
        name, is_right = f"{'right' if number < 16 else 'wrong'}{number}.png", number < 16
        (source / name).write_bytes(encode(pixels, "PNG"))
        rows.append(f"{name},{('dark', 'light')[(number % 2) == is_right]},{50 * is_right}")
    (source / "table.csv").write_text("\n".join(rows))
    columns = TableColumns(weight="weight")
    run(IngestOptions(source=str(source / "table.csv"), out=str(out), splits={"train": 1}, columns=columns))
    return out


def ingest_noise(
    factory: pytest.TempPathFactory, classes: Mapping[str, int], shards: int, side_px: int = 12, seed: int = 0
) -> Path:
    """Makes a dataset of PNG images of noise, so many of each class, in the split `train`."""
    source, out = factory.mktemp("noise"), factory.mktemp("noise_dataset")
    random = np.random.default_rng(seed)
    for label, count in classes.items():
        (source / label).mkdir()
        for number in range(count):
            pixels = random.integers(0, 256, (side_px, side_px, 3), np.uint8)
            (source / label / f"{number:02d}.png").write_bytes(encode(pixels, "PNG"))
    run(IngestOptions(source=str(source), out=str(out), splits={"train": 1}, shards=shards))
    return out


@pytest.fixture(scope="session")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """61 PNG images of noise, 12 x 12 pixels, in one split of three shards: 40 `cat`, 15 `dog`, 6 `owl`. Read only."""
    return ingest_noise(tmp_path_factory, {"cat": 40, "dog": 15, "owl": 6}, shards=3)


@pytest.fixture(scope="session")
def photographs(_dataset: Path) -> Path:
    """The dataset of `photos`. Read only."""
    return _dataset


@pytest.fixture(scope="session")
def transform_output(_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Transform makes of the train split of the dataset, with one ragged column of the user's. Read only."""
    names = record.STATISTICS_FEATURES
    spec = {**column_spec(names), "extra/tags": tf.io.VarLenFeature(tf.string)}
    rows = []
    for serialized in records_of(_dataset, "train"):
        values = record.decode(serialized)
        rows.append({**{name: values[name] for name in names}, "extra/tags": [b"a", b"b"]})
    return analyze(rows, spec, tmp_path_factory.mktemp("transform"))


def bright_sky(side: int) -> keras.Model:
    """A model one can predict in the head: class 1 has the probability sigmoid((mean of the upper half - 128) / 16)."""
    inputs = keras.Input([side, side, 3], dtype="uint8")
    upper = keras.layers.Cropping2D(((0, side // 2), (0, 0)))(keras.layers.Rescaling(1.0)(inputs))
    mean = keras.layers.GlobalAveragePooling2D()(upper)
    dense = keras.layers.Dense(2, activation="softmax")
    model = keras.Model(inputs, dense(mean))
    dense.set_weights([np.array([[0.0, 1 / 48]] * 3), np.array([0.0, -8.0])])
    return model


@pytest.fixture(scope="session")
def sky_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bright_sky(16)` exported with the classes `dark` and `light`. Read only."""
    from trainer.ops import parse_ops
    from trainer.options import InputOptions
    from trainer.serving.export import export

    path = tmp_path_factory.mktemp("sky") / "7"
    export(bright_sky(16), parse_ops(InputOptions(image_side_px=16).eval_spec), ("dark", "light"), 16, str(path))
    return path


@pytest.fixture(scope="session")
def trained(_dataset: Path, transform_output: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """What `run_fn` writes after two epochs at 16 pixels, and what it was told. Read only."""
    from trainer.options import InputOptions, TrainerConfig, TrainOptions
    from trainer.run_fn import run_fn

    config = TrainerConfig(input=InputOptions(image_side_px=16, batch_size=4), train=TrainOptions(epochs=2))
    out = tmp_path_factory.mktemp("trained")
    fn_args = fn_args_of(_dataset, transform_output, out, config)
    run_fn(fn_args)
    return SimpleNamespace(config=config, dataset=_dataset, model=out / "model", log=out / "log", fn_args=fn_args)


def fn_args_of(dataset: Path, transform_output: Path, out: Path, config: Any) -> SimpleNamespace:
    """The part of TFX's `FnArgs` that matters."""
    return SimpleNamespace(
        train_files=[f"{dataset}/Split-train/*"],
        eval_files=[f"{dataset}/Split-eval/*"],
        transform_output=str(transform_output),
        serving_model_dir=str(out / "model"),
        model_run_dir=str(out / "log"),
        custom_config={"trainer": config.to_json()},
    )
