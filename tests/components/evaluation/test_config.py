"""What blesses a model: TFMA's own validation of real results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow_model_analysis as tfma

from components.evaluation import load_evaluation
from components.evaluation.config import evaluation_config
from components.evaluation.results import EvaluateOptions
from tests.components.conftest import analyse
from tests.components.evaluation.answers import PROBABILITIES, SIGNATURE, write_answers, write_parrot
from trainer.evaluation.intervals import wilson

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LABELS = [0, 1] * 20
DROPPED = "the accuracy 0.9000 is more than evaluate.max_drop 0.04 below that of the previous model"
CHANCE = (
    "the accuracy 0.7750 may be chance: the lower end 0.6250 of its confidence interval is not above 0.6500, the share "
    "of the largest class (evaluate.above_largest_class)"
)


def answers_of(right: int) -> np.ndarray:
    """Answers to `LABELS` of which the first are right."""
    said = [label if place < right else 1 - label for place, label in enumerate(LABELS)]
    return np.eye(2, dtype=np.float32)[said] * 0.6 + 0.2


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records that hold two answers: of the candidate, right for 36 of 40, and of the one before, for 38."""
    both = np.concatenate([answers_of(36), answers_of(38)], axis=1)
    return write_answers(tmp_path_factory.mktemp("answers"), LABELS, both)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    answered = {"candidate": slice(2), "baseline": slice(2, None)}
    return {name: write_parrot(root / name, 4, part) for name, part in answered.items()}


def evaluate(options: EvaluateOptions, models: dict[str, Path], dataset: Path, out: Path) -> bool:
    """Evaluates as TFX does, and returns whether the model is blessed."""
    config = tfma.utils.update_eval_config_with_defaults(
        evaluation_config(options, SIGNATURE, PROBABILITIES), has_baseline="baseline" in models, rubber_stamp=True
    )
    shared = [
        tfma.default_eval_shared_model(
            eval_saved_model_path=str(models["baseline" if spec.is_baseline else "candidate"]),
            model_name=spec.name,
            eval_config=config,
        )
        for spec in config.model_specs
    ]
    analyse(shared if len(shared) > 1 else shared[0], dataset, config, out)
    return tfma.load_validation_result(str(out)).validation_ok


@pytest.mark.parametrize(
    ("options", "compared", "refused"),
    [
        ({"min_accuracy": 0.91}, False, ["the accuracy 0.9000 is below evaluate.min_accuracy 0.91"]),
        ({"max_drop": 0.04}, False, []),  # nothing to compare with
        ({"min_accuracy": 0.9, "max_drop": 0.05}, True, []),  # exactly what is allowed
        ({"max_drop": 0.04}, True, [DROPPED]),
    ],
)
def test_a_model_is_blessed_when_it_is_good_enough_and_not_much_worse(
    options, compared, refused, models, dataset, tmp_path
):
    names = ("candidate", "baseline") if compared else ("candidate",)
    chosen = {name: models[name] for name in names}
    assert evaluate(EvaluateOptions(**options), chosen, dataset, tmp_path) == (not refused)
    found = load_evaluation(str(tmp_path))
    assert list(found.refused) == refused
    assert (found.overall.value, found.overall.images) == (0.9, 40)
    assert (found.baseline.value if compared else found.baseline) == (0.95 if compared else None)
    assert sum(map(sum, found.confusion["counts"])) == 40
    assert found.calibration["bins"][8]["images"] == 40


def evaluated(labels: list[int], answers: np.ndarray, out: Path, weights: list[float] | None = None):
    """Evaluates answers, and returns whether they bless and what was measured."""
    write_answers(out / "data", labels, answers, weights=weights or [])
    model = write_parrot(out / "model", answers.shape[1])
    config = evaluation_config(EvaluateOptions(), SIGNATURE, PROBABILITIES, weights is not None)
    path = analyse(model, out / "data", config, out / "out")
    return tfma.load_validation_result(str(path)).validation_ok, load_evaluation(str(path))


# Of 40 images 26 are of class 0. Wilson's lower end is 0.625 at 31 right ones and 0.652 at 32.
@pytest.mark.parametrize(("right", "refused"), [(32, ()), (31, (CHANCE,))])
def test_a_model_must_be_better_than_the_largest_class(right, refused, tmp_path):
    labels = [0] * 26 + [1] * 14
    answers = np.eye(2, dtype=np.float32)[[label if place < right else 1 - label for place, label in enumerate(labels)]]
    blessed, found = evaluated(labels, answers, tmp_path)
    assert (blessed, found.refused) == (not refused, refused)


def test_an_image_of_weight_three_counts_three_times(tmp_path):
    answers = np.eye(2, dtype=np.float32)[[0, 0, 1, 1, 0, 0]]
    _, found = evaluated([0, 0, 1, 0, 1, 1], answers, tmp_path, weights=[3, 3, 3, 1, 1, 0])
    assert (found.overall.value, found.overall.images) == (pytest.approx(9 / 11), 6)
    assert (found.overall.low, found.overall.high) == pytest.approx(wilson(9 / 11, 11**2 / 29))
    assert found.classes["class 1000"].value == pytest.approx(6 / 7)
    assert found.confusion["counts"] == [[2, 1], [2, 1]]  # of images


def test_the_thresholds_hold_for_the_whole_split_and_not_for_every_slice():
    config = evaluation_config(EvaluateOptions(min_accuracy=0.6, max_drop=0.1, slice_by=("camera",)), "a", "b")
    thresholds = [
        threshold
        for metrics in config.metrics_specs
        for metric in metrics.metrics
        for threshold in metric.per_slice_thresholds
    ]
    assert [[list(spec.feature_keys) for spec in one.slicing_specs] for one in thresholds] == [[[]], [[]]]
    assert not any(metric.HasField("threshold") for metrics in config.metrics_specs for metric in metrics.metrics)
    assert [list(spec.feature_keys) for spec in config.slicing_specs] == [[], ["image/class/text"], ["extra/camera"]]
