from __future__ import annotations

import dataclasses
import json
import math
import os
import re

import pytest

from beam_jobs.common.settings import as_yaml
from beam_jobs.errors import OptionError
from trainer.ops import OPS, parse_ops
from trainer.options import InputOptions, TrainerConfig, TrainOptions


def test_thread_count_is_the_number_of_cores_unless_given():
    assert InputOptions(threads=3).thread_count == 3
    assert InputOptions(threads=0).thread_count == os.cpu_count()


@pytest.mark.parametrize(
    ("options", "train", "evaluate"),
    [
        (InputOptions(), "decode_random_crop(224)|flip", "decode|resize_short(256)|center_crop(224)"),
        (InputOptions(image_side_px=1), "decode_random_crop(1)|flip", "decode|resize_short(1)|center_crop(1)"),
        (InputOptions(train_ops="decode|resize(8)"), "decode|resize(8)", "decode|resize(8)"),
    ],
)
def test_ops_follow_the_side_unless_they_are_given(options, train, evaluate):
    assert (options.train_spec, options.eval_spec) == (train, evaluate)


@pytest.mark.parametrize(
    ("train", "evaluate"),
    [
        ("decode|pad_reflect(2)|random_crop(28)", "decode|pad_reflect(2)|center_crop(28)"),
        (
            "decode | resize(32, method='area') | flip | random_crop(side=28)",
            "decode|resize(32, method='area')|center_crop(28)",
        ),
        ("decode|resize_short(40)|multi_crop(3, 28)|color_jitter(0.4)", "decode|resize_short(40)|center_crop(28)"),
        ("decode_random_crop(28, min_area=0.3)|rand_augment", "decode|resize_short(32)|center_crop(28)"),
        (
            "decode|random_crop_resize(28, method='area')|cutout(9)|mixup(0.2)",
            "decode|resize_short(32, method='area')|center_crop(28)",
        ),
        ("decode", "decode|resize(28)"),
        ("decode|flip|normalize", "decode|resize(28)|normalize"),
    ],
)
def test_evaluation_follows_the_geometry_of_training(train, evaluate):
    assert InputOptions(image_side_px=28, train_ops=train).eval_spec == evaluate


def test_every_op_of_training_is_known_to_the_chain_of_evaluation():
    arguments = {"side": 8, "count": 2, "margin": 1, "max_degrees": 9, "alpha": 0.2}
    for name, op in OPS.items():
        given = ", ".join(
            f"{field.name}={arguments[field.name]}" for field in dataclasses.fields(op) if field.name in arguments
        )
        first = "" if name.startswith("decode") else "decode|"
        steady = parse_ops(InputOptions(image_side_px=8, train_ops=f"{first}{name}({given})").eval_spec)
        assert not any(op.random for op in steady)
        assert steady[-1].size(None) == (8, 8) or name in ("normalize", "resize_short"), name


@pytest.mark.parametrize(
    ("kind", "name", "value", "allowed"),
    [
        (InputOptions, "image_side_px", 0, "a whole number of at least 1"),
        (InputOptions, "batch_size", True, "a whole number of at least 1"),
        (InputOptions, "lanes", 2.0, "a whole number of at least 1"),
        (InputOptions, "threads", -1, "a whole number of at least 0"),
        (InputOptions, "max_corrupt_records", 0.5, "a whole number of at least 0"),
        (InputOptions, "seed", -1, "a whole number from 0 to below 4294967296"),
        (InputOptions, "cache_mb", math.nan, "a number of at least 0"),
        (InputOptions, "shuffle_mb", -0.5, "a number of at least 0"),
        (TrainOptions, "epochs", 0, "a whole number of at least 1"),
        (TrainOptions, "learning_rate", 0, "a number above 0"),
        (TrainOptions, "weight_decay", -1e-4, "a number of at least 0"),
        (TrainOptions, "label_smoothing", -0.1, "from 0 to below 1"),
        (TrainOptions, "label_smoothing", 1.0, "from 0 to below 1"),
    ],
)
def test_values_out_of_range_are_refused(kind, name, value, allowed):
    with pytest.raises(OptionError, match=f"^{name} is {re.escape(as_yaml(value))}; it must be {allowed}$"):
        kind(**{name: value})


def test_a_config_survives_json_with_mappings_and_lists():
    columns = {"columns": ("tags", "source"), "columns_form": "dense", "targets": ("boxes",)}
    config = TrainerConfig(
        input=InputOptions(balance={"cat": 0.25, "dog": 0.75}, cache="disk", cache_dir="somewhere", **columns),
        train=TrainOptions(model="other", learning_rate=0.5, class_weights={"cat": 2}),
    )
    assert TrainerConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"cache_dir": "here"}, "^cache_dir is 'here' and cache is auto; set cache to disk to use it$"),
        ({"cache": "disk", "cache_dir": "gs://bucket/x"}, "it must be a local directory$"),
        ({"cache": "disk", "cache_dir": 5}, "^cache_dir is 5; it must be a text; put it in quotes$"),
        ({"cache": "memory", "cache_mb": 5}, "^cache_mb is 5 and cache is memory; it is only for cache auto$"),
        ({"cache": "memory", "service": "grpc://host:1"}, "which has no cache; set cache to none$"),
        ({"balance": {0: 0.5, 1: 0.5}}, "^balance names 0; names are text, so write '0'$"),
        ({"cache": "disk"}, "^cache is disk and cache_dir is empty; name a directory for it$"),
        ({"cache": True}, "^cache is true; it must be one of auto, memory, disk, none$"),
        ({"shuffle": ""}, "^shuffle is ''; it must be one of window, global, none$"),
        ({"columns_form": "sparse"}, "^columns_form is 'sparse'; it must be one of ragged, dense$"),
        ({"targets": ("boxes", "keypoints")}, "^targets is 'keypoints'; it must be one of boxes, mask$"),
        ({"seed": 1 << 32}, f"^seed is {1 << 32}; it must"),  # one that Keras takes
        ({"balance": {}}, "^balance is {}; it must be uniform, or class: share$"),
        ({"balance": 0.5}, "^balance is 0.5; it must be uniform or a mapping of names to numbers, as {a: 1, b: 2}$"),
        ({"balance": "even"}, "^balance is 'even'; it must be uniform or a mapping"),
        ({"balance": {"cat": 1.5}}, "^balance.cat is 1.5; it must be between 0 and 1$"),
        ({"balance": {"cat": -0.5, "dog": 0.5}}, "^balance.cat is -0.5; it must be between 0 and 1$"),
        ({"balance": {"cat": "half"}}, "^balance.cat is the text 'half'; it must be between 0 and 1$"),
        ({"balance": {"cat": 0.5, "dog": 0.4}}, "^the shares of balance add up to 0.9; they must add up to 1$"),
    ],
)
def test_options_that_contradict_each_other_are_refused(values, said):
    with pytest.raises(OptionError, match=said):
        InputOptions(**values)


def test_shares_may_miss_one_by_what_rounding_leaves():
    assert InputOptions(balance={"cat": 0.333, "dog": 0.333, "owl": 0.333}).balance["cat"] == 0.333
