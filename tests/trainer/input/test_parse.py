from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests.make_images import jpeg
from tests.trainer.batches import options, read
from trainer.input.parse import KEY, NO_LABEL, WEIGHT, derive_image_seeds
from trainer.input_fn import make_dataset

TAGS = {"0.jpg": ["sea", "sky"], "1.jpg": ["sky"], "2.jpg": [], "3.jpg": ["hill", "sea", "sky"], "4.jpg": ["hill"]}


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> Path:
    return ingested(tmp_path_factory.mktemp("tagged"), TableColumns(labels="tags"))


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    return ingested(tmp_path_factory.mktemp("bare"), TableColumns(label=""))


def ingested(directory: Path, columns: TableColumns) -> Path:
    rows = []
    for number, (name, tags) in enumerate(TAGS.items()):
        (directory / name).write_bytes(jpeg(number))
        rows.append(json.dumps({"image": name, "tags": tags}))
    (directory / "table.jsonl").write_text("\n".join(rows))
    source, out = str(directory / "table.jsonl"), directory / "out"
    run(IngestOptions(source=source, out=str(out), splits={"train": 1}, columns=columns))
    return out


def test_several_labels_become_a_row_of_zeros_and_ones(tagged):
    labels = manifest.load(str(tagged)).labels
    assert sorted(labels) == ["hill", "sea", "sky"]
    for training in (True, False):
        stream = make_dataset(str(tagged), "train", options(batch_size=2), training)
        assert stream.element_spec[1] == tf.TensorSpec((2 if training else None, 3), tf.float32)
        seen = read(tagged, options(), training)
        assert len(seen) == 5
        for image in seen:
            said = {label for label, value in zip(labels, image.label, strict=True) if value}
            assert said == set(TAGS[Path(image.key).name])
            assert set(image.label) <= {0.0, 1.0}


@pytest.mark.parametrize("change", [{"cache": "memory"}, {"pad_batches": True, "batch_size": 2}], ids=str)
def test_several_labels_pass_through_the_cache_and_the_padding(tagged, change):
    given = options(eval_ops="decode|resize(8)", **change)
    assert read(tagged, given, False) == read(tagged, options(eval_ops="decode|resize(8)"), False)


def test_images_without_labels_have_the_label_minus_one(bare):
    for training in (True, False):
        stream = make_dataset(str(bare), "train", options(batch_size=2), training)
        assert stream.element_spec[1].dtype == tf.int64
        assert [image.label for image in read(bare, options(), training)] == [NO_LABEL] * 5


@pytest.mark.parametrize(
    ("training", "change"),
    [
        (True, {}),
        (True, {"cache": "memory"}),
        (True, {"train_ops": "decode|multi_crop(2, 8)"}),
        (False, {"pad_batches": True, "batch_size": 16}),
    ],
)
def test_the_weight_comes_with_its_image(weighted, training, change):
    given = options(**{"eval_ops": "decode|resize(8)", "train_ops": "decode|resize(8)", **change})
    weights = {}
    for features, label in make_dataset(str(weighted), "train", given, training).as_numpy_iterator():
        valid = features.get("valid", np.ones(len(label)))
        weights |= {
            key: weight for key, weight, kept in zip(features[KEY], features[WEIGHT], valid, strict=True) if kept
        }
    assert len(weights) == 48
    assert {weight for key, weight in weights.items() if b"right" in key} == {50.0}
    assert {weight for key, weight in weights.items() if b"wrong" in key} == {0.0}


def draws(keys: list[str], epoch: int = 0, seed: int = 0) -> list[list[int]]:
    return (
        derive_image_seeds(tf.constant(keys), tf.fill([len(keys)], tf.constant(epoch, tf.int64)), seed).numpy().tolist()
    )


def test_a_draw_is_a_function_of_seed_key_and_epoch():
    keys = [f"folder/{number}.jpg" for number in range(1000)]
    first = draws(keys)
    assert draws(keys[::-1]) == first[::-1]
    assert len({tuple(draw) for draw in first}) == 1000
    for other in (draws(keys, epoch=1), draws(keys, seed=1), draws([f"x{key}" for key in keys])):
        assert not [place for place in range(1000) if first[place] == other[place]]


def test_a_draw_fits_any_seed_and_any_number_of_epochs():
    keys = [f"{number}" for number in range(100)]
    assert np.ptp([draw[0] for draw in draws(keys, seed=(1 << 32) - 1)]) > 1 << 31
    late = derive_image_seeds(tf.constant(["a", "a"]), tf.constant([(1 << 31) - 1, 1 << 40], tf.int64), 5).numpy()
    assert late[0, 1] == (1 << 31) - 1
    assert (late[:, 1] >= 0).all()
