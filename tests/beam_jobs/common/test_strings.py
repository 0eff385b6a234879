from __future__ import annotations

import pytest

from beam_jobs.common import strings


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("op", "rezise", ["resize", "crop"]), "there is no op 'rezise'; did you mean resize? known are resize, crop"),
        (("op", "zzz", ["resize", "crop"]), "there is no op 'zzz'; known are resize, crop"),
        (
            ("key", "epoch", ["epochs", "seed"], "train."),
            "there is no key 'train.epoch'; did you mean epochs? known are epochs, seed",
        ),
        (("key", 3, ["seed"]), "there is no key '3'; known are seed"),
    ],
)
def test_an_unknown_name_is_answered_with_the_known_ones(arguments, line):
    assert strings.unknown(*arguments) == line


def test_the_known_names_may_be_an_iterator():
    line = strings.unknown("op", "crops", iter(["resize", "crop"]))
    assert line == "there is no op 'crops'; did you mean crop? known are resize, crop"
