from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tfx import types
from tfx.types import standard_artifacts

from components.blessed_model import BlessedBeforeStrategy

pytestmark = pytest.mark.filterwarnings("ignore")
NAME = "assets.extra/about.json"


def model(root: Path, number: int, about: str | None = "a, b") -> types.Artifact:
    artifact = standard_artifacts.Model()
    artifact.id = number
    artifact.uri = str(root / "model" / str(number))
    if about is not None:
        path = Path(artifact.uri) / "Format-Serving" / NAME
        path.parent.mkdir(parents=True)
        path.write_text(about)
    return artifact


def blessing(of: types.Artifact, blessed: bool = True) -> types.Artifact:
    artifact = standard_artifacts.ModelBlessing()
    artifact.id = 100 + of.id
    artifact.set_int_custom_property("current_model_id", of.id)
    artifact.set_int_custom_property("blessed", int(blessed))
    return artifact


def resolve(candidate: types.Artifact, models: list, blessings: list) -> list[int]:
    inputs = {"candidate": [candidate], "model": [*models, candidate], "model_blessing": blessings}
    found = BlessedBeforeStrategy(description=NAME).resolve_artifacts(None, inputs)
    assert found["candidate"] == [candidate]
    assert [item.get_int_custom_property("current_model_id") for item in found["model_blessing"]] == [
        item.id for item in found["model"]
    ]
    return [item.id for item in found["model"]]


def test_the_newest_blessed_one_is_taken(tmp_path):
    one, two, three = (model(tmp_path, number) for number in (1, 2, 3))
    blessings = [blessing(two), blessing(three, blessed=False), blessing(one)]
    assert resolve(model(tmp_path, 4), [two, one, three], blessings) == [2]


def test_a_model_is_never_compared_with_itself_or_a_later_one(tmp_path):
    one, two, three = (model(tmp_path, number) for number in (1, 2, 3))
    assert resolve(two, [one, three], [blessing(one), blessing(two), blessing(three)]) == [1]


@pytest.mark.parametrize("about", ["b, a", None])
def test_a_model_of_other_classes_or_one_that_is_gone_is_passed_over_and_named(tmp_path, caplog, about):
    one, two = model(tmp_path, 1), model(tmp_path, 2, about)
    with caplog.at_level(logging.WARNING):
        assert resolve(model(tmp_path, 3), [one, two], [blessing(one), blessing(two)]) == [1]
    assert [entry.getMessage() for entry in caplog.records if "blessed in" in entry.getMessage()] == [
        "the model blessed in 2 is no baseline: it has other classes, reads other records, or was deleted"
    ]


def test_models_that_say_nothing_of_themselves_are_not_taken_for_equal(tmp_path):
    one = model(tmp_path, 1, None)
    assert resolve(model(tmp_path, 2, None), [one], [blessing(one)]) == []
