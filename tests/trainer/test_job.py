from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import CorruptDataset, DatasetChanged, OptionError, SourceError
from tests.make_images import flipped
from tests.trainer import train_once
from trainer.input.checks import scale_warning
from trainer.input.faults import register_fault
from trainer.input_fn import make_dataset
from trainer.job import Job, _explain_errors, _time_smaller, epoch_figures, fit
from trainer.options import InputOptions, TrainerConfig, TrainOptions
from trainer.training.strategy import make_strategy

pytestmark = pytest.mark.filterwarnings("ignore")


def job_of(path, train: dict | None = None, **values) -> Job:
    options = TrainOptions(**({"epochs": 1, "jit": "never"} | (train or {})))
    told = {"image_side_px": 8, "batch_size": 32, "train_ops": "decode|resize(8)", "eval_ops": "decode|resize(8)"}
    return train_once.job_of(str(path), TrainerConfig(input=InputOptions(**(told | values)), train=options))


@pytest.fixture(scope="module")
def plain(shades):
    """One epoch over 96 greys in batches of 32."""
    return fit(job_of(shades))


def test_images_changed_on_the_device_train_and_leave_a_model_that_takes_bytes_alone(shades, plain):
    model, progress = fit(job_of(shades, device_ops="flip|cutout(8)"))
    assert model.input_shape == (None, 8, 8, 3)
    assert progress.history["loss"] != plain[1].history["loss"]  # a cutout of the whole image leaves one grey
    assert np.isfinite(progress.history["val_loss"]).all()


def test_padding_of_the_last_batch_changes_no_figure(shades):
    job = job_of(shades, batch_size=40)
    model, progress = fit(job)
    batches = list(make_dataset(job.path, "train", job.config.input, training=False))
    assert [len(labels) for _, labels in batches] == [40, 40, 16]
    labels = np.concatenate([labels for _, labels in batches])
    outputs = np.concatenate([model.predict_on_batch(features["image"].numpy()) for features, _ in batches])
    assert progress.history["val_accuracy"] == pytest.approx([(outputs.argmax(1) == labels).mean()], abs=1e-6)
    assert progress.history["val_loss"] == pytest.approx([-np.log(outputs[range(96), labels]).mean()], rel=1e-4)


@pytest.mark.parametrize(
    ("train", "changes"), [({}, {"train_ops": "decode|resize(8)|cutmix(1.0)"}), ({"strategy": "mirrored"}, {})]
)
def test_images_of_weight_zero_teach_nothing_and_are_not_counted(weighted, train, changes):
    options = {"epochs": 12, "learning_rate": 0.02, **train}
    model, progress = fit(
        job_of(weighted, options, batch_size=16, **changes), strategy=make_strategy(options.get("strategy", "default"))
    )
    answers = model.predict(np.stack([np.full((8, 8, 3), grey, np.uint8) for grey in (2, 82)]), verbose=0)
    assert answers.argmax(-1).tolist() == [0, 1]  # of two images in three the class is the other one
    assert progress.history["val_accuracy"][-1] == 1.0


@pytest.mark.parametrize(
    ("train_ops", "eval_ops", "numbers"),
    [
        ("decode|pad_reflect(2)|random_crop(8)", "decode|resize_short(9)|center_crop(8)", ("1.00", "0.75")),
        ("decode_random_crop(8, min_area=0.25)", "decode|center_crop(8)", ()),
        ("decode_random_crop(8, min_area=0.9)", "decode|center_crop(8)", ("0.67 to 0.70", "1.00")),
    ],
)
def test_an_evaluation_at_another_scale_is_one_warning_with_both_numbers(shades, train_ops, eval_ops, numbers):
    job = job_of(shades, train_ops=train_ops, eval_ops=eval_ops)
    warning = scale_warning(job.config.input, short_px=12)
    assert warning.startswith("warning   train_ops show images at") if numbers else not warning
    assert all(number in warning for number in numbers)


def test_the_warning_of_another_scale_comes_before_the_training(shades, caplog):
    fit(job_of(shades, train_ops="decode|random_crop(8)", eval_ops="decode|resize(8)"))
    assert len([line for line in caplog.messages if "at 1.00 of their stored size and eval_ops at 0.67" in line]) == 1


@pytest.mark.parametrize(
    ("train", "some"),
    [
        ({"per_class": True, "class_weights": "balanced"}, {"val_recall/dark", "val_precision/light", "recall/dark"}),
        ({"choose_by": "lower_bound", "keep": "best"}, {"val_accuracy_low", "accuracy"}),
    ],
)
def test_the_figures_of_an_epoch_are_known_before(shades, train, some):
    job = job_of(shades, train)
    known = set(epoch_figures(job, None))
    assert known == fit(job)[1].history.keys()
    assert some <= known


def test_a_figure_that_no_epoch_has_is_refused_before_the_first(shades, capsys):
    with pytest.raises(OptionError, match="there is no metric 'monitor=val_acuracy'"):
        fit(job_of(shades, {"monitor": "val_acuracy", "patience": 1}))
    assert "epoch 1" not in capsys.readouterr().err


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_a_damaged_record_is_named(shades, tmp_path, cache):
    path = tmp_path / "dataset"
    shutil.copytree(shades, path)
    shard = sorted((path / "Split-train").iterdir())[1]
    shard.write_bytes(flipped(shard.read_bytes(), shard.stat().st_size // 2))
    with pytest.raises(CorruptDataset, match=rf"{shard.name}.* offset \d+: the record of '(dark|light)/\d+.png'"):
        fit(job_of(path, cache=cache))


def test_a_model_for_a_smaller_side_is_timed_where_nothing_else_would_change(shades):
    for side, smaller in ((64, 32), (224, 128)):
        job = job_of(shades, image_side_px=side, batch_size=2, train_ops="", eval_ops="")
        assert _time_smaller(job, None)[0] == smaller
    for train, values in (
        ({}, {"image_side_px": 48}),
        ({}, {"device_ops": "flip"}),
        ({"deterministic": True}, {}),
        ({"model": "Xception"}, {"image_side_px": 128}),  # which takes no images of 64 pixels
    ):
        given = {"image_side_px": 64, "train_ops": "", "eval_ops": "", **values}
        assert _time_smaller(job_of(shades, train, **given), None) is None


def changed(job: Job, part: str, **values) -> str:
    options = dataclasses.replace(getattr(job.config, part), **values)
    return dataclasses.replace(job, config=dataclasses.replace(job.config, **{part: options})).digest


@pytest.mark.parametrize(
    ("part", "values", "same"),
    [
        ("input", {"threads": 3, "readers": 2, "cache": "none", "parse_batch": 3, "prefetch_batches": 5}, True),
        ("input", {"seed": 3}, False),
        ("train", {"checkpoint_steps": 7, "profile_steps": "1-2"}, True),
        ("train", {"class_weights": {"dark": 2}}, False),
    ],
)
def test_a_training_goes_on_under_options_that_change_no_weight_and_no_others(shades, part, values, same):
    job = job_of(shades)
    assert (changed(job, part, **values) == job.digest) is same


def test_another_dataset_or_other_statistics_are_another_training(shades):
    job = job_of(shades)
    assert dataclasses.replace(job, mean_rgb=(1.0, 2.0, 3.0)).digest != job.digest
    assert dataclasses.replace(job, dataset=dataclasses.replace(job.dataset, labels=("a", "b"))).digest != job.digest


def test_other_code_of_the_model_and_other_weights_are_another_training(shades, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    weights = tmp_path / "first.weights.h5"
    job = job_of(shades, {"model": "changing_model.build", "weights": str(weights)})
    digests = []
    for code, content in (("1", b"a"), ("2", b"a"), ("2", b"b")):
        (tmp_path / "changing_model.py").write_text(code)
        weights.write_bytes(content)
        digests.append(job.digest)
    assert len(set(digests)) == 3


def test_a_batch_that_replicas_cannot_share_is_refused_before_anything_is_built(shades):
    class Three:
        num_replicas_in_sync = 3

    with pytest.raises(OptionError, match="batch_size 32 is not divisible by the 3 replicas"):
        fit(job_of(shades), strategy=Three())


@pytest.mark.parametrize("error", [tf.errors.InvalidArgumentError, tf.errors.NotFoundError])
def test_a_dataset_that_was_replaced_is_named_whatever_tensorflow_met_first(shades, error):
    job = job_of(shades)
    before = dataclasses.replace(job.dataset, labels=("b", "a"))
    line = f"^{shades} was replaced by another dataset while it was read; start again to read the new one$"
    with pytest.raises(DatasetChanged, match=line), _explain_errors(dataclasses.replace(job, dataset=before)):
        raise error(None, None, "what it met")


@pytest.mark.parametrize("kind", [SourceError, CorruptDataset])  # of a sound dataset, damaged on the way
def test_what_the_store_did_is_neither_damage_of_the_dataset_nor_a_wrong_op(shades, kind):
    fault = register_fault(kind("gs://bucket/x is 'bad':\tsee \"log\"\x01"))
    with pytest.raises(kind, match="^gs://bucket/x is 'bad'"), _explain_errors(job_of(shades)):
        raise tf.errors.InvalidArgumentError(None, None, f"assertion failed: [{fault}] [[IteratorGetNext]]")
