from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from beam_jobs import ingest, manifest, record, tfrecord
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions, PixelOptions, TableColumns
from tests.make_images import jpeg
from trainer.bench import naive_dataset
from trainer.input_fn import make_dataset
from trainer.ops import Decode, DecodeRandomCrop, Flip, RandomCropResize
from trainer.options import InputOptions
from trainer.raw import DecodeRaw, stored_ops

OPTIONS = InputOptions(image_side_px=24, batch_size=4, eval_ops="decode")


@pytest.fixture(scope="module")
def raw(photos, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("raw")
    ingest.run(IngestOptions(source=str(photos), out=str(out), pixels=PixelOptions(policy="raw", side_px=24)))
    return out


def test_raw_records_come_out_pixel_for_pixel(raw):
    stored = {}
    for path in manifest.load(str(raw)).shard_paths(str(raw), "train"):
        with open(path, "rb") as stream:
            for _, payload in tfrecord.read_records(stream, path):
                values = record.decode(payload)
                pixels = np.frombuffer(values[record.ENCODED][0], np.uint8).reshape(24, 24, 3)
                stored[values[record.FILENAME][0]] = pixels
    seen = 0
    for features, _ in make_dataset(str(raw), "train", OPTIONS, training=False):
        for key, image in zip(features["key"].numpy(), features["image"].numpy(), strict=True):
            np.testing.assert_array_equal(image, stored[key])
            seen += 1
    assert seen == len(stored) > 0


@pytest.mark.parametrize("training", [True, False])
def test_raw_datasets_feed_training_and_evaluation(raw, training):
    options = InputOptions(image_side_px=16, batch_size=4)
    features, label = next(iter(make_dataset(str(raw), "train", options, training=training)))
    assert features["image"].shape == (4, 16, 16, 3)
    assert set(label.numpy()) <= {0, 1}
    assert features["image"].numpy().std() > 1


def test_the_naive_pipeline_reads_raw_datasets_too(raw):
    images, _ = next(iter(naive_dataset(str(raw), "train", InputOptions(image_side_px=16, batch_size=4))))
    assert images.shape == (4, 16, 16, 3)


def test_a_fused_decode_and_crop_becomes_the_crop_alone(raw, dataset):
    ops = (DecodeRandomCrop(16, 0.3), Flip())
    assert stored_ops(ops, manifest.load(str(raw))) == (DecodeRaw(24), RandomCropResize(16, 0.3), Flip())
    assert stored_ops((Decode(), Flip()), manifest.load(str(raw))) == (DecodeRaw(24), Flip())
    assert stored_ops(ops, manifest.load(str(dataset))) == ops


def test_datasets_without_one_label_an_image_are_refused_in_one_line(tmp_path):
    lines = ["image,tags"]
    for index in range(4):
        (tmp_path / f"{index}.jpg").write_bytes(jpeg(index))
        lines.append(f"{index}.jpg,a|b")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    kinds = {"any number of labels": TableColumns(labels="tags"), "no labels": TableColumns(label="")}
    for kind, columns in kinds.items():
        out = str(tmp_path / kind)
        ingest.run(IngestOptions(source=str(tmp_path / "table.csv"), out=out, splits={"train": 1}, columns=columns))
        with pytest.raises(OptionError, match=f"^the images have {kind}; training reads datasets of one label each"):
            make_dataset(out, "train", OPTIONS, training=True)
