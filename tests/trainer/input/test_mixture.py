from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from beam_jobs.errors import OptionError
from tests.trainer.batches import RANDOM, Seen, flat, options, read
from tests.trainer.conftest import ingest_noise
from tests.trainer.input.test_parse import bare
from trainer.input.mixture import make_mixture, mixture_labels

__all__ = ["bare"]

WEIGHTS = (0.75, 0.25)


@pytest.fixture(scope="module")
def pets(tmp_path_factory) -> Path:
    """Ten images, of the classes `fish` and `owl`; `noise` has `owl` too."""
    return ingest_noise(tmp_path_factory, {"fish": 6, "owl": 4}, shards=2, seed=5)


@pytest.fixture
def parts(noise, pets) -> dict[str, float]:
    return dict(zip((str(noise), str(pets)), WEIGHTS, strict=True))


def mixed(parts, given, count: int, **more) -> list[Seen]:
    return list(itertools.islice(flat(make_mixture(parts, "train", given, **more)), count))


def given_options(**values):
    return options(train_ops=RANDOM, lanes=2, **values)


def test_each_dataset_comes_as_often_as_it_weighs(parts):
    seen = mixed(parts, given_options(batch_size=50), 3000)
    share = sum(image.key.startswith("fish/") for image in seen) / len(seen) / 0.6  # of every ten pets six are fish
    # 1500 draws of two images each: the standard error is 0.011.
    assert abs(share - 0.25) < 0.045


def test_weights_are_proportions(noise, pets):
    first = mixed({str(noise): 3, str(pets): 1}, given_options(), 60)
    assert first == mixed({str(noise): 0.75, str(pets): 0.25}, given_options(), 60)


def test_a_mixture_continues_beyond_many_draws(parts):
    given = options(train_ops="decode|resize(8)", lanes=1, batch_size=50)
    whole = mixed(parts, given, 4200)
    assert mixed(parts, given, 100, start=4100) == whole[4100:]


def test_labels_are_those_of_all_datasets_each_once(parts, noise, pets):
    labels = mixture_labels(list(parts))
    assert labels == ("cat", "dog", "owl", "fish")
    assert mixture_labels([str(pets), str(noise)]) == ("fish", "owl", "cat", "dog")
    seen = mixed(parts, given_options(), 200)
    assert {labels[image.label] for image in seen} == set(labels)
    for image in seen:
        assert Path(image.key).parent.name == labels[image.label]


def test_parts_may_hold_images_of_one_size_and_of_many(noise, dataset):
    given = options(train_ops="decode|random_crop(8)|flip", lanes=2, batch_size=4)
    directories = [dataset, noise]
    alone = {(one.key, one.draw): one.pixels for part in directories for one in read(part, given, epochs=3)}
    seen = mixed({str(part): 1 for part in directories}, given, 40)
    assert [alone[one.key, one.draw] for one in seen] == [one.pixels for one in seen]


def test_mixed_labels_are_shares_of_the_labels_of_all_datasets(parts):
    stream = make_mixture(parts, "train", options(train_ops="decode|resize(8)|mixup(0.5)", batch_size=4, lanes=2))
    assert stream.element_spec[1].shape == (4, 4)
    _, label = next(iter(stream))
    assert label.numpy().sum(axis=1).tolist() == pytest.approx([1] * 4)


def test_a_weight_of_nothing_is_refused(noise):
    with pytest.raises(OptionError, match="^weight of .* must be a number above 0$"):
        make_mixture({str(noise): 0}, "train", options())


def test_an_empty_mixture_is_refused():
    with pytest.raises(OptionError, match="^the mixture is empty"):
        make_mixture({}, "train", options())


def test_images_without_one_label_each_are_refused(noise, bare):
    with pytest.raises(OptionError, match="cannot be part of a mixture: its images do not have exactly one label$"):
        make_mixture({str(noise): 1, str(bare): 1}, "train", options())


def test_images_of_a_part_without_weights_weigh_one(noise, weighted):
    stream = make_mixture({str(noise): 0.5, str(weighted): 0.5}, "train", given_options(batch_size=20))
    seen = {}
    for features, _ in stream.take(10):
        seen |= dict(zip(features["key"].numpy(), features["weight"].numpy(), strict=True))
    expected = {b"right": 50.0, b"wrong": 0.0}
    assert seen == {key: expected.get(key[:5], 1.0) for key in seen}
    assert set(seen.values()) == {0.0, 1.0, 50.0}
