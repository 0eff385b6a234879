from __future__ import annotations

import dataclasses
import itertools
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs import ingest
from beam_jobs.dataset import manifest, record
from beam_jobs.options import IngestOptions, PixelOptions
from tests import image_table
from tests.make_images import jpeg
from tests.trainer.batches import batches, graph, options, read
from tests.trainer.conftest import records_of
from trainer.bench import naive_dataset
from trainer.input.parse import DecodeRaw, DecodeSized, adapt_ops_to_records
from trainer.input.plan import make_plan
from trainer.input.position import Host
from trainer.input_fn import FOREVER, make_dataset
from trainer.ops import Decode, DecodeRandomCrop, Flip, RandomCropResize
from trainer.options import InputOptions

OPTIONS = InputOptions(image_side_px=24, batch_size=4, train_ops="decode", eval_ops="decode", threads=2)


@pytest.fixture(scope="module")
def raw(photos, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("raw")
    ingest.run(IngestOptions(source=str(photos), out=str(out), pixels=PixelOptions(policy="raw", side_px=24)))
    return out


def stored(directory: Path) -> dict[str, np.ndarray]:
    """Key -> pixels, as they lie in the shards."""
    rows = map(record.decode, records_of(directory, "train"))
    return {
        row[record.FILENAME][0].decode(): np.frombuffer(row[record.ENCODED][0], np.uint8).reshape(24, 24, 3)
        for row in rows
    }


@pytest.mark.parametrize("training", [True, False])
def test_raw_records_come_out_pixel_for_pixel(raw, training):
    expected = stored(raw)
    seen = 0
    for features, _ in make_dataset(str(raw), "train", OPTIONS, training=training):
        for key, image in zip(features["key"].numpy(), features["image"].numpy(), strict=True):
            np.testing.assert_array_equal(image, expected[key.decode()])
            seen += 1
    assert seen == len(expected) // 4 * 4 > 0 if training else seen == len(expected)


def stages(given: InputOptions, directory: Path, training: bool = True) -> list[str]:
    """The stages of the pipeline, without those of the functions that they call."""
    stream = make_dataset(str(directory), "train", given, training, epochs=FOREVER if training else 1)
    return [node.op for node in graph(stream).node]


@pytest.mark.parametrize("training", [True, False])
def test_stored_pixels_are_never_split_into_single_images(raw, training):
    found = stages(OPTIONS, raw, training)
    assert not [stage for stage in found if stage in {"UnbatchDataset", "BatchDatasetV2", "ParallelBatchDataset"}]
    assert "RebatchDatasetV2" in found
    # A chain that needs single images has them, so that the names above are those of this version.
    single = stages(options(image_side_px=16, train_ops="decode_random_crop(16)"), raw)
    assert "UnbatchDataset" in single
    assert "BatchDatasetV2" in single


def test_kept_pixels_are_never_taken_apart_image_by_image(raw):
    given = options(train_ops="decode|resize(8)", cache="memory")
    assert "UnbatchDataset" not in stages(given, raw)
    assert read(raw, given) == read(raw, options(train_ops="decode|resize(8)"))


def test_whole_batches_hold_what_single_images_do(raw):
    given = options(image_side_px=24, batch_size=5, train_ops="decode", shuffle_mb=0.05)
    one_by_one = options(image_side_px=24, batch_size=5, train_ops="decode|resize(24)", shuffle_mb=0.05)
    assert make_plan(str(raw), "train", given, True).vectorised
    assert not make_plan(str(raw), "train", one_by_one, True).vectorised
    for more in ({"epochs": 3}, {"epochs": 2, "host": Host()}):
        assert batches(make_dataset(str(raw), "train", given, True, **more)) == batches(
            make_dataset(str(raw), "train", one_by_one, True, **more)
        )


def test_whole_batches_keep_their_size_whatever_is_parsed_together(raw):
    given = options(image_side_px=24, batch_size=3, parse_batch=1, eval_ops="decode")
    count = manifest.load(str(raw)).split("train").records
    sizes = [len(label) for _, label in make_dataset(str(raw), "train", given, False)]
    whole, rest = divmod(count, 3)
    assert sizes == [3] * whole + [rest] * bool(rest)


def test_the_naive_pipeline_reads_raw_datasets_too(raw):
    images, _ = next(iter(naive_dataset(str(raw), "train", InputOptions(image_side_px=16, batch_size=4))))
    assert images.shape == (4, 16, 16, 3)


def test_a_fused_decode_and_crop_becomes_the_crop_alone(raw, dataset):
    ops = (DecodeRandomCrop(16, 0.3), Flip())
    assert adapt_ops_to_records(ops, manifest.load(str(raw))) == (DecodeRaw(24, 24), RandomCropResize(16, 0.3), Flip())
    assert adapt_ops_to_records((Decode(), Flip()), manifest.load(str(raw))) == (DecodeRaw(24, 24), Flip())
    assert adapt_ops_to_records(ops, manifest.load(str(dataset))) == ops


def test_a_decode_of_images_of_one_size_knows_it(dataset):
    images = manifest.load(str(dataset))
    assert adapt_ops_to_records((Decode(), Flip()), images, (5, 7)) == (DecodeSized(5, 7), Flip())
    assert adapt_ops_to_records((Decode(), Flip()), images) == (Decode(), Flip())
    assert adapt_ops_to_records((DecodeRandomCrop(8),), images, (5, 7)) == (DecodeRandomCrop(8),)
    assert (DecodeSized(5, 7).size(None), DecodeRaw(5, 7).size(None)) == ((5, 7), (5, 7))
    wrong = tf.constant(jpeg(0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not compatible with expected shape"):
        DecodeSized(5, 7)({"image": wrong}, tf.zeros([0]))
    assert DecodeSized(60, 80)({"image": wrong}, tf.zeros([0]))["image"].shape == (60, 80, 3)


def test_a_dataset_that_is_replaced_stops_its_reader_before_a_record_of_the_new_one(photos, tmp_path):
    source, out = Path(shutil.copytree(photos, tmp_path / "photos")), str(tmp_path / "out")
    options = IngestOptions(source=str(source), out=out, pixels=PixelOptions(policy="raw", side_px=24))
    ingest.run(options)
    classes = dict(image_table.read(out).select(["key", "label_index"]).to_pandas().to_numpy())
    uncached = dataclasses.replace(OPTIONS, cache="none")
    stream = iter(make_dataset(out, "train", uncached, training=True, epochs=FOREVER))
    delivered = [next(stream)]
    (source / "aardvark").mkdir()
    (source / "aardvark" / "0.jpg").write_bytes(jpeg(7))  # every other class gets another index
    ingest.run(dataclasses.replace(options, overwrite=True))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{out} was replaced by another dataset while it was"):
        delivered += itertools.islice(stream, 500)
    for features, label in delivered:
        assert [classes[key.decode()] for key in features["key"].numpy()] == list(label.numpy())
