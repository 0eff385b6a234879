"""The machinery of the benchmarks of the input pipeline: what they measure on and what they say. No rate is judged."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import input as input_bench
from benchmarks import input_memory, input_turns
from benchmarks.input_peers import compare, pillow_ops, registry, script
from benchmarks.input_peers.peer_feedline import SCRIPT
from benchmarks.input_sources import DATASETS, Sources, cifar_arrays
from benchmarks.input_turns import Effort, Feed, Row
from benchmarks.peers.compare import Runner
from benchmarks.recipes import recipe, training
from benchmarks.recipes.models import make_model
from benchmarks.recipes.training import Epoch
from tests.make_images import encode
from trainer.models import ModelSpec
from trainer.ops import parse_ops

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Few images of every kind, made in code. Datasets are added by the tests that need them."""
    return Sources(scratch=tmp_path_factory.mktemp("sources"), images=40, large=2, small=80, copies=2)


@pytest.mark.parametrize(
    ("module", "arguments", "problem"),
    [
        ("benchmarks.input", ["--only", "photo"], "no part 'photo'; known are photos, large, raw, cifar, memory"),
        ("benchmarks.input_peers", ["--python", "ffcv=nothing"], "'ffcv=nothing' is not PEER=PATH"),
        ("benchmarks.recipes", ["--only", "29"], "there is no recipe '29'; known are 27, 27-whole, 28"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_runs(
    module: str, arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 2
    assert problem in " ".join(capsys.readouterr().err.split())


def test_strips_of_cifar_become_images_and_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (30, 32, 32, 3), np.uint8)
    labels = random.integers(0, 10, 30).tolist()
    Image.fromarray(images.reshape(30, 1024, 3)).save(tmp_path / "data_batch_1.png")
    (tmp_path / "train_lables.json").write_text(json.dumps(labels))
    found, classes = cifar_arrays(tmp_path, 25)
    np.testing.assert_array_equal(found, images[:25])
    assert classes.tolist() == labels[:25]


def test_every_row_names_a_dataset_and_ops_that_exist() -> None:
    rows = [row for table in input_bench.TABLES.values() for row in table]
    assert len({row.name for row in rows}) == len(rows)
    for feed in (feed for row in rows for feed in (row.feed, row.base)):
        assert feed.dataset in DATASETS
        assert feed.kind in {"ours", "naive", "bare", "ours+device"}
        assert feed.kind == "bare" or parse_ops(feed.ops)


def test_pipelines_of_a_table_are_measured_side_by_side(sources: Sources) -> None:
    ours = Feed(dataset="photos", ops=input_bench.CROP)
    naive, bare = (Feed(dataset="photos", ops=input_bench.CROP, kind=kind) for kind in ("naive", "bare"))
    rows = [
        Row(name="a", feed=ours, base=naive, base_is="naive", goal=2.1),
        Row(name="b", feed=ours, base=bare, base_is="bare"),
    ]
    found = json.loads(json.dumps(input_turns.compare(rows, sources, Effort(seconds=0.05, rounds=2, batch=8))))
    assert found["a"]["rounds"]["rate"] == found["b"]["rounds"]["rate"]  # measured once, shown twice
    for row in found.values():
        assert row["ratio"] == pytest.approx(row["rate"] / row["base"])
        assert [len(rates) for rates in row["rounds"].values()] == [2, 2]
    assert "goal 2.1   naive" in input_bench.line("a", found["a"])


def test_memory_is_summed_up_by_quarters() -> None:
    samples = [200, 200, 300, 310, 300, 300, 330, 360]
    found = input_memory.summary(100, [value * 10**6 for value in samples], 512, 200e6)
    assert (found["second_quarter_mb"], found["last_quarter_mb"]) == (305, 345)
    assert found["growth"] == pytest.approx(40 / 305)
    assert found["of_budget"] == pytest.approx((360 - 1e-4) / 200)


def test_memory_of_an_epoch_is_measured_in_a_process_of_its_own(sources: Sources) -> None:
    found = input_memory.measure(sources.dataset("many"), batch=16)
    assert found["images"] == 80
    assert 0 < found["start_mb"] < found["second_quarter_mb"] * 1.5
    assert found["budget_mb"] > 4 * 16 * 224 * 224 * 3 / 1e6
    assert "MB at the start" in input_bench.line("memory", found)


def test_results_join_what_is_there(tmp_path: Path) -> None:
    out = tmp_path / "results" / "all.json"
    input_bench.write(out, "input", {"a": {"ratio": 1}, "b": {"ratio": 1}})
    input_bench.write(out, "input", {"a": {"ratio": 2}})
    input_bench.write(out, "recipes", {"c": {"ratio": 3}})
    found = json.loads(out.read_text())["results"]
    names = {name: sorted(rows) for name, rows in found.items()}
    assert names == {"input": ["a", "b", "commit"], "recipes": ["c", "commit"]}
    assert found["input"]["a"] == {"ratio": 2}


@pytest.mark.parametrize("batch", [np.zeros((64, 224, 224, 3), np.float32), np.zeros((32, 224, 224, 3), np.uint8)])
def test_a_peer_that_does_other_work_does_not_count(batch: np.ndarray) -> None:
    with pytest.raises(SystemExit, match=r"the task asks for uint8\[64, 224, 224, 3\]"):
        script.check(batch, script.TASKS["photos"])


def test_the_format_of_a_peer_is_made_once_and_anew_for_other_files(tmp_path: Path) -> None:
    source = tmp_path / "source" / "class"
    source.mkdir(parents=True)
    (source / "a.jpg").write_bytes(b"a")
    job = script.Job(source=source.parent, data=tmp_path / "data", task="photos", threads=1)
    made: list[int] = []
    for _ in range(2):
        script.write_once(job, lambda one: made.append(len(one.files())))
    (source / "b.jpg").write_bytes(b"b")
    script.write_once(job, lambda one: made.append(len(one.files())))
    assert made == [1, 2]


@pytest.mark.parametrize("task", script.TASKS)
def test_pillow_ops_do_the_task(task: str) -> None:
    wanted = script.TASKS[task]
    random = np.random.default_rng(0)
    encoded = encode(random.integers(0, 256, (wanted.side_px, wanted.side_px, 3), np.uint8), "PNG")
    images = [pillow_ops.OPS[task](encoded, random) for _ in range(3)]
    assert {image.shape for image in images} == {(wanted.side_px, wanted.side_px, 3)}
    assert {str(image.dtype) for image in images} == {wanted.dtype}
    assert not np.array_equal(images[0], images[1])


def test_feedline_does_the_task_of_its_peers(sources: Sources, tmp_path: Path) -> None:
    job = script.Job(source=sources.files("cifar"), data=tmp_path / "data", task="cifar", threads=2)
    assert SCRIPT.run(job, 128)[0] == 128


def runner_of(seconds: list[float], reason: str = "") -> Runner:
    return Runner(command=(), seconds={640: seconds}, version="1.2.3", reason=reason)


def test_a_row_of_a_peer_has_the_medians_of_both() -> None:
    peer = registry.PEERS["torch"]
    row = compare.make_row(peer, runner_of([4.0, 2.0, 1.0]), runner_of([1.0, 0.5, 0.1]))
    assert (row["rate"], row["base"], row["ratio"]) == (1280, 320, 4)
    shown = compare.table({"torch, photos": row, "ffcv, photos": {"skipped": "no wheel"}}).splitlines()
    assert shown[1].split()[2:5] == ["320", "1,280", "4.00"]
    assert shown[2].endswith("skipped: no wheel")


def test_a_failed_run_is_skipped_with_its_reason() -> None:
    peer = registry.PEERS["torch"]
    row = compare.make_row(peer, runner_of([], "exit 1: no memory"), runner_of([1.0]))
    assert row == {"skipped": "exit 1: no memory"}
    row = compare.make_row(peer, runner_of([1.0]), runner_of([], "exit 1: no memory"))
    assert row == {"skipped": "Feedline itself failed: exit 1: no memory"}


def test_the_wait_of_an_epoch_is_what_the_meter_saw_in_it() -> None:
    now = [0.0]
    waits = iter([1.0, 8.0])  # what was before the epoch does not count

    def batches() -> Iterator[tuple[int, int]]:
        while True:
            now[0] += 2.0
            yield 0, 0

    def train(images: int, labels: int) -> float:
        now[0] += 3.0
        return now[0]

    epoch = training.run_epoch(batches(), lambda: next(waits), train, 4, lambda: now[0])
    assert epoch == Epoch(seconds=20.0, wait=8.0, loss=12.5)  # losses of 5, 10, 15 and 20
    assert training.wait_share([epoch]) == pytest.approx(0.4)


def test_an_accuracy_has_the_interval_of_its_runs_or_of_its_test_images() -> None:
    found = training.interval([0.90, 0.92, 0.94])
    # Student's t of two degrees of freedom at 97.5 %: 4.3027; the standard error is 0.02 / sqrt(3).
    assert (found["mean"], found["high"] - 0.92) == pytest.approx((0.92, 4.3027 * 0.02 / 3**0.5), rel=1e-4)
    found = training.of_images([3 / 10, 9 / 10], 10)[2]  # Newcombe (1998), table II (b), method 10
    assert (found["low"], found["high"]) == pytest.approx((0.1705, 0.8090), abs=1e-4)


@pytest.mark.parametrize("number", recipe.RECIPES)
def test_a_recipe_trains_on_both_pipelines(number: str, sources: Sources, tmp_path: Path) -> None:
    plan = recipe.Plan(epochs=2, seeds=1, batch=16, test_images=20)
    lines: list[str] = []
    ((name, row),) = recipe.measure(number, sources, plan, lines.append, tmp_path / "log").items()
    assert name == f"recipe {number}, training step on the cores of the input"
    assert row["ratio"] == pytest.approx(row["rate"] / row["base"])
    assert set(row["epoch_seconds"]) == {"naive", "feedline"}
    assert all(0 <= share <= 1 for share in row["wait_share"].values())
    assert ("accuracy" in row) == recipe.RECIPES[number].tested
    assert len(lines) == 2
    if "accuracy" in row:  # and the log has the runs, of which the first was begun twice
        text = (tmp_path / "log").read_text()
        (tmp_path / "log").write_text(text.partition("\n")[0] + "\n" + text)
        assert recipe.measure(number, sources, plan, lines.append, tmp_path / "log") == {name: row}


def test_both_models_of_a_recipe_start_alike_and_agree() -> None:
    mean, std = recipe.CIFAR_STATISTICS
    spec = ModelSpec(side_px=32, classes=10, mean_rgb=mean, std_rgb=std)
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
    floats = ((images - np.asarray(mean)) / np.asarray(std)).astype(np.float32)
    for name in ("small_cnn", "frozen_base", "half_resnet"):
        models = [make_model(name, spec, floats=wanted, seed=3) for wanted in (False, True)]
        ours, naive = (model.predict(data, verbose=0) for model, data in zip(models, (images, floats), strict=True))
        np.testing.assert_allclose(ours, naive, rtol=1e-3, atol=1e-5)
