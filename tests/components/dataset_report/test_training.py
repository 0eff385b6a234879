from __future__ import annotations

import numpy as np
import pytest

from beam_jobs.dataset import manifest
from beam_jobs.errors import OptionError
from beam_jobs.options import PixelOptions
from components.dataset_report.shown import Renderer, open_images
from components.dataset_report.training import TRAINING_INPUTS, apply_chain, augmentation
from tests import image_table
from tests.components.dataset_report.page import ingest, pixels
from tests.make_images import jpeg


def view(made, **options):
    dataset = manifest.load(str(made))
    with open_images(str(made), dataset) as images:
        return augmentation(images, Renderer(str(made), dataset), options)


def records(made) -> dict[str, dict]:
    dataset = manifest.load(str(made))
    renderer = Renderer(str(made), dataset)
    rows = image_table.read(made).to_pylist()
    return {row["key"]: renderer.values(row) for row in rows if row["split"] == "train"}


@pytest.mark.parametrize(("pixel_options", "ops"), [(PixelOptions(), ""), (PixelOptions(policy="raw", side_px=40), "")])
def test_the_preview_is_what_the_trainer_feeds_the_model(tmp_path, pixel_options, ops):
    from trainer.input.parse import adapt_ops_to_records
    from trainer.input.position import Position
    from trainer.input_fn import evaluation_ops, make_dataset
    from trainer.ops import parse_ops
    from trainer.options import InputOptions

    made = ingest(tmp_path, {f"a/{seed}.jpg": jpeg(seed) for seed in range(5)}, pixels=pixel_options)
    options = InputOptions(image_side_px=32, batch_size=1, train_ops=ops, seed=7)
    stored = records(made)
    dataset = manifest.load(str(made))
    chains = (
        (True, adapt_ops_to_records(parse_ops(options.train_spec), dataset)),
        (False, adapt_ops_to_records(evaluation_ops(options), dataset)),
    )
    for training, chain in chains:
        for epoch in range(2):
            fed = make_dataset(str(made), "train", options, training=training, start=Position(epoch=epoch))
            compared = 0
            for features, _ in fed.as_numpy_iterator():
                values = stored[features["key"][0].decode()]
                np.testing.assert_array_equal(apply_chain(chain, values, options.seed, epoch), features["image"][0])
                compared += 1
            assert compared == 5


def test_a_few_images_of_different_classes_are_drawn(dataset):
    found = view(dataset, image_side_px=32)
    assert len(found.examples) == 8
    assert [example.label for example in found.examples] == ["china"] * 4 + ["flower"] * 4
    for example in found.examples:
        assert len(example.training) == TRAINING_INPUTS
        assert pixels(example.evaluation.url).size == (32, 32)
        assert dict(example.facts)["Split"] == "train"
    assert len({picture.url for picture in found.examples[0].training}) > 1
    assert (found.train_ops, found.side_px) == ("decode_random_crop(32)|flip", 32)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"image_side_px": 500, "train_ops": "decode|random_crop(500)", "eval_ops": "decode|resize(500)"}, "fail on"),
        ({"train_ops": "decode|nonsense"}, "there is no op 'nonsense'"),
    ],
)
def test_ops_that_cannot_be_shown_are_a_problem(dataset, options, problem):
    found = view(dataset, **options)
    assert found.examples == []
    assert problem in found.problem


def test_options_out_of_range_are_refused(dataset):
    with pytest.raises(OptionError, match="image_side_px is 0"):
        view(dataset, image_side_px=0)
