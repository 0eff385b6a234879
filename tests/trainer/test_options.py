from __future__ import annotations

import json
import math
import os
import re

import pytest

from beam_jobs.errors import OptionError
from trainer.options import InputOptions, TrainerConfig, TrainOptions


def test_thread_count_is_the_number_of_cores_unless_given():
    assert InputOptions(threads=3).thread_count == 3
    assert InputOptions(threads=0).thread_count == os.cpu_count()


@pytest.mark.parametrize(
    ("options", "train", "evaluate"),
    [
        (InputOptions(), "decode_random_crop(224)|flip", "decode|resize_short(256)|center_crop(224)"),
        (InputOptions(image_side_px=28), "decode_random_crop(28)|flip", "decode|resize_short(32)|center_crop(28)"),
        (InputOptions(image_side_px=1), "decode_random_crop(1)|flip", "decode|resize_short(1)|center_crop(1)"),
        (InputOptions(train_ops="decode|resize(8)"), "decode|resize(8)", "decode|resize_short(256)|center_crop(224)"),
        (InputOptions(eval_ops="decode|resize(8)"), "decode_random_crop(224)|flip", "decode|resize(8)"),
    ],
)
def test_ops_follow_the_side_unless_they_are_given(options, train, evaluate):
    assert (options.train_spec, options.eval_spec) == (train, evaluate)


@pytest.mark.parametrize("name", ["image_side_px", "batch_size", "readers", "parse_batch", "prefetch_batches"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "8", None])
def test_counts_below_one_are_refused_by_name_and_value(name, value):
    with pytest.raises(OptionError, match=f"^{name} is {re.escape(repr(value))}; it must be .* at least 1$"):
        InputOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("threads", -1, "whole number of at least 0"),
        ("threads", 1.5, "whole number of at least 0"),
        ("shuffle_mb", -0.5, "number of at least 0"),
        ("shuffle_mb", math.nan, "number of at least 0"),
        ("shuffle_mb", math.inf, "number of at least 0"),
    ],
)
def test_input_values_out_of_range_are_refused(name, value, allowed):
    with pytest.raises(OptionError, match=f"^{name} is {re.escape(repr(value))}; it must be a {allowed}$"):
        InputOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("epochs", 0, "a whole number of at least 1"),
        ("epochs", 2.0, "a whole number of at least 1"),
        ("learning_rate", 0, "a number above 0"),
        ("learning_rate", -1e-3, "a number above 0"),
        ("learning_rate", math.nan, "a number above 0"),
        ("learning_rate", math.inf, "a number above 0"),
        ("weight_decay", -1e-4, "a number of at least 0"),
        ("weight_decay", math.nan, "a number of at least 0"),
        ("weight_decay", math.inf, "a number of at least 0"),
        ("label_smoothing", -0.1, "from 0 to below 1"),
        ("label_smoothing", 1.0, "from 0 to below 1"),
        ("label_smoothing", math.nan, "from 0 to below 1"),
    ],
)
def test_train_values_out_of_range_are_refused(name, value, allowed):
    with pytest.raises(OptionError, match=f"^{name} is {re.escape(repr(value))}; it must be {allowed}$"):
        TrainOptions(**{name: value})


@pytest.mark.parametrize("seed", [1.5, "0", True, -1, 1 << 32])
def test_a_seed_is_one_that_keras_takes(seed):
    with pytest.raises(
        OptionError, match=f"^seed is {re.escape(str(seed) if type(seed) is int else repr(seed))}; it must"
    ):
        InputOptions(seed=seed)


@pytest.mark.parametrize(
    "values",
    [
        {"shuffle_mb": 0},
        {"threads": 0},
        {"image_side_px": 1},
        {"readers": 1},
        {"batch_size": 1},
        {"seed": (1 << 32) - 1},
    ],
)
def test_input_edges_are_allowed(values):
    ((name, value),) = values.items()
    assert getattr(InputOptions(**values), name) == value


def test_train_edges_are_allowed():
    options = TrainOptions(epochs=1, learning_rate=1e-9, weight_decay=0.0, label_smoothing=0.0)
    assert (options.epochs, options.learning_rate, options.weight_decay, options.label_smoothing) == (1, 1e-9, 0, 0)


def test_a_config_survives_json_with_every_field_changed():
    config = TrainerConfig(
        input=InputOptions(
            image_side_px=32,
            batch_size=5,
            train_ops="decode|resize(32)",
            eval_ops="decode|resize(32)|flip",
            seed=7,
            shuffle_mb=1.5,
            readers=3,
            threads=2,
            parse_batch=9,
            prefetch_batches=4,
        ),
        train=TrainOptions(model="other", epochs=3, learning_rate=0.5, weight_decay=0.25, label_smoothing=0.125),
    )
    values = json.loads(json.dumps(config.to_json()))
    assert TrainerConfig.from_json(values) == config
    defaults = TrainerConfig().to_json()
    for part in ("input", "train"):
        assert values[part].keys() == defaults[part].keys()
        assert [name for name in defaults[part] if values[part][name] == defaults[part][name]] == []


def test_json_is_checked_like_any_other_value():
    values = TrainerConfig().to_json()
    values["input"]["batch_size"] = 0
    with pytest.raises(OptionError, match="^batch_size is 0;"):
        TrainerConfig.from_json(values)
