"""What a run makes of the runs before it: whole results come from the cache, broken ones leave no trace.

One root goes through runs in which one component after the other fails half way; what comes out of it in the end is
compared with an undisturbed run in another root.
"""

from __future__ import annotations

import builtins
import errno
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from ml_metadata.proto import metadata_store_pb2 as pb

from beam_jobs.errors import OptionError
from pipeline.config import PipelineConfig, build
from pipeline.pipeline import code_version
from pipeline.runners.local import run
from pipeline.runs.history import newest_run, open_store
from pipeline.runs.lineage import trace
from pipeline.runs.lineage_find import find
from pipeline.runs.root import exclusive_run
from tests.command import python
from tests.make_images import class_folders

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent
# One of TFX, those that write beside their outputs, and the last one.
VICTIMS = ("ImageExampleGen", "Transform", "Trainer", "Pusher", "DatasetReport")


class Writes:
    """Counts what a component opens for writing or renames among the outputs, and can find the disk full once."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self.watched: list[str] = []
        self._component = self._victim = self._root = ""
        self._fail_at = 0
        self._lock = threading.Lock()  # Beam writes from threads
        self._patch = patch

    def watch(self, config: PipelineConfig) -> None:
        """Looks over the shoulder of every executor of the pipeline, and of the functions that they write with."""
        from tensorflow.python.lib.io import file_io
        from tfx.dsl.components.base.base_component import BaseComponent

        from pipeline.pipeline import create_pipeline

        for component in create_pipeline(config).components:
            if isinstance(component, BaseComponent):  # the others are resolvers, which write nothing
                executor = component.executor_spec.executor_class
                self._patch.setattr(executor, "Do", self._named(executor.Do))
                self.watched.append(component.id)
        self._patch.setattr(builtins, "open", self._opening(builtins.open))
        for module, name in ((os, "rename"), (os, "replace"), (file_io, "rename_v2"), (file_io, "copy_v2")):
            self._patch.setattr(module, name, self._moving(getattr(module, name)))
        self._patch.setattr(file_io.FileIO, "_prewrite_check", self._prewrite(file_io.FileIO._prewrite_check))

    def begin(self, root: str, victim: str = "", fail_at: int = 0) -> None:
        """Starts counting anew; from write number `fail_at` of the component `victim` to its end, the disk is full."""
        self.counts.clear()
        self._root, self._victim, self._fail_at = root, victim, fail_at

    def _named(self, do: Callable) -> Callable:
        def wrapped(executor, *args, **kwargs):
            self._component = executor._context.pipeline_node.node_info.id
            try:
                return do(executor, *args, **kwargs)
            finally:
                if self._component == self._victim:
                    self._victim = ""  # there is room again
                self._component = ""

        return wrapped

    def _opening(self, opened: Callable) -> Callable:
        def wrapped(file, mode="r", *args, **kwargs):
            if set(mode) & set("wxa+"):
                self._seen(file)
            return opened(file, mode, *args, **kwargs)

        return wrapped

    def _moving(self, move: Callable) -> Callable:
        def wrapped(source, target, *args, **kwargs):
            self._seen(target)
            return move(source, target, *args, **kwargs)

        return wrapped

    def _prewrite(self, check: Callable) -> Callable:
        def wrapped(stream):
            if stream._writable_file is None:
                self._seen(stream.name)
            return check(stream)

        return wrapped

    def _seen(self, path: object) -> None:
        if not self._component or not str(path).startswith((f"{self._root}/artifacts", f"{self._root}/serving")):
            return
        with self._lock:
            self.counts[self._component] += 1
            hit = self._component == self._victim and self.counts[self._component] >= self._fail_at
        if hit:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a root holds after a run, as far as it must not depend on how the run came about."""

    digest: str
    shards: dict[str, str]
    schema: str
    verdict: bytes
    blessed: bool
    versions: int
    outputs: list[str]

    @classmethod
    def of(cls, config: PipelineConfig, summary) -> Outcome:
        dataset = Path(summary.dataset_dir)
        verdict = Path(summary.steps["DatasetGate"].outputs["verdict"], "verdict.json")
        return cls(
            digest=summary.dataset.digest,
            shards={path.name: sha256(path) for path in sorted(dataset.glob("Split-*/*"))},
            schema=Path(summary.schema).read_text(encoding="utf-8"),
            verdict=verdict.read_bytes(),
            blessed=summary.blessed,
            versions=len(os.listdir(config.serving_dir)),
            # Once each: a second report or model would stand here twice.
            outputs=sorted(str(path.parent.relative_to(config.artifacts_dir)) for path in output_dirs(config)),
        )


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def output_dirs(config: PipelineConfig) -> set[Path]:
    return set(Path(config.artifacts_dir).glob("*/*/*"))


def leftovers(config: PipelineConfig) -> list[str]:
    """Everything among the outputs that no finished execution vouches for."""
    live = {Path(artifact.uri) for artifact in open_store(config.metadata_path).get_artifacts()}
    odd = {path for path in Path(config.root).rglob("*") if path.name.startswith(".") or path.suffix == ".tmp"}
    return sorted(
        str(path.relative_to(config.root)) for path in (output_dirs(config) - live) | odd if path.name != ".lock"
    )


@dataclass(frozen=True, kw_only=True)
class Failure:
    """What a run came to in which one component failed."""

    message: str
    states: dict[str, str]
    leftovers: list[str]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reruns")
    class_folders(folder / "photos", per_class=8)
    return folder


def settings(workplace: Path, root: str) -> dict:
    return {
        "root": str(workplace / root),
        "ingest": {"source": str(workplace / "photos"), "splits": {"train": 0.7, "eval": 0.3}, "shards": 2},
        "input": {"image_side_px": 16, "batch_size": 8},
        "train": {"epochs": 1},
        "evaluate": {"above_largest_class": False},
    }


@pytest.fixture(scope="module")
def killed_run(workplace: Path) -> Iterator[subprocess.Popen]:
    """A run in a process of its own, killed while its model is being trained; it goes on beside the others."""
    (workplace / "killed.yaml").write_text(yaml.safe_dump(settings(workplace, "killed"), sort_keys=False))
    command = [sys.executable, "-W", "ignore", "-m", "pipeline", "run", "--config", str(workplace / "killed.yaml")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:

        def kill() -> None:
            while process.poll() is None and not list(workplace.glob("killed/artifacts/Trainer/model_run/*/train")):
                time.sleep(0.05)
            process.kill()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        yield process
        process.kill()


@pytest.fixture(scope="module")
def writes(killed_run, workplace) -> Iterator[Writes]:
    from trainer import bench

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "compare", functools.partial(bench.compare, seconds=0.05))  # no subject of these tests
        writes = Writes(patch)
        writes.watch(build(settings(workplace, "undisturbed")))
        yield writes


@pytest.fixture(scope="module")
def undisturbed(workplace, writes) -> tuple[Outcome, dict[str, int]]:
    """The outcome, and how often each component wrote."""
    config = build(settings(workplace, "undisturbed"))
    writes.begin(config.root)
    return Outcome.of(config, run(config, print)), dict(writes.counts)


@pytest.fixture(scope="module")
def stumbled(workplace, writes, undisturbed) -> dict[str, Failure]:
    """A root in which each victim failed once: its name and what the run came to."""
    config = build(settings(workplace, "stumbling"))
    failures = {}
    for name in (name for name in undisturbed[1] if name in VICTIMS):  # in the order in which they run
        writes.begin(config.root, name, undisturbed[1][name] // 2 + 1)
        with pytest.raises(Exception, match="No space left on device") as raised:
            run(config, print)
        steps = newest_run(open_store(config.metadata_path))
        states = {step.component: step.state for step in steps.values()}
        failures[name] = Failure(message=str(raised.value), states=states, leftovers=leftovers(config))
    return failures


@pytest.fixture(scope="module")
def recovered(workplace, stumbled):
    """That root, after a run in which nothing failed."""
    config = build(settings(workplace, "stumbling"))
    return config, run(config, print)


def test_each_failed_in_the_middle_of_its_outputs_and_what_was_whole_came_from_the_cache(stumbled, undisturbed, writes):
    assert sorted(undisturbed[1]) == sorted(writes.watched)
    whole: set[str] = set()
    for name, failure in stumbled.items():
        states = {component: state for component, state in failure.states.items() if component in undisturbed[1]}
        assert states.pop(name) == "failed"
        assert set(states.values()) <= {"cached", "complete"}
        assert {component for component, state in states.items() if state == "cached"} == whole, name
        whole |= states.keys()


def test_a_failed_component_leaves_only_what_its_next_attempt_takes_up(stumbled):
    for name, failure in stumbled.items():
        kept = [path for path in failure.leftovers if "/.work-" not in path]
        assert kept == [], name


def test_after_every_failure_the_result_is_that_of_an_undisturbed_run(recovered, undisturbed):
    config, summary = recovered
    assert Outcome.of(config, summary) == undisturbed[0]
    assert undisturbed[0].versions == 1
    assert leftovers(config) == []


def test_the_lineage_of_a_model_made_over_many_runs_leads_back_to_its_source(recovered, undisturbed):
    config, summary = recovered
    store = open_store(config.metadata_path)
    lineage = trace(store, find(store, config.serving_dir, config.root).artifact)
    cached = {execution.component: execution.cached for execution in lineage.executions}
    assert cached == {name: name != "Pusher" for name in undisturbed[1] if name != "DatasetReport"}
    facts = {artifact.type: artifact.facts for artifact in lineage.artifacts}
    assert facts["Examples"]["dataset_digest"] == summary.dataset.digest
    assert facts["Schema"]["sha256"] == sha256(Path(summary.schema))
    assert facts["DatasetVerdict"]["verdict"] == "passed with 1 remark"
    assert facts["PushedModel"]["sha256"] == facts["Model"]["sha256"]
    assert {execution.code for execution in lineage.executions} - {""} == {code_version()}


def test_unchanged_inputs_come_from_the_cache_in_every_component(workplace, undisturbed):
    config = build(settings(workplace, "undisturbed"))
    summary = run(config, print)
    assert {name: summary.steps[name].state for name in undisturbed[1]} == dict.fromkeys(undisturbed[1], "cached")
    assert Outcome.of(config, summary) == undisturbed[0]
    assert leftovers(config) == []


def test_the_record_of_a_run_says_what_all_components_would(workplace, undisturbed):
    (workplace / "recorded.yaml").write_text(yaml.safe_dump(settings(workplace, "undisturbed"), sort_keys=False))
    program = "import sys; from pipeline.cli import execute; execute(sys.argv[1:]); print('tfx' in sys.modules)"
    arguments = ["run", "--config", str(workplace / "recorded.yaml"), "--json"]
    answers = []
    for more in ([], [], ["--no-fast"]):  # the first one makes the record
        done = python(program, *arguments, *more, cwd=ROOT, timeout=560)
        answer, loaded = done.stdout.rsplit(maxsplit=1)
        assert loaded == str("nothing changed since the run of" not in done.stderr), done.stderr
        values = json.loads(answer)
        values.pop("rates")
        for step in values["steps"].values():
            step.pop("seconds")
        answers.append((loaded, values))
    assert answers == [("True", answers[0][1]), ("False", answers[0][1]), ("True", answers[0][1])]


def test_a_second_run_in_a_root_is_refused_before_it_touches_anything(workplace, undisturbed):
    config = build(settings(workplace, "undisturbed"))
    before = Path(config.metadata_path).read_bytes()
    with (
        exclusive_run(config),
        pytest.raises(OptionError, match=rf"undisturbed is in use by another run: process {os.getpid()} on host "),
    ):
        run(config, print)
    assert Path(config.metadata_path).read_bytes() == before


def test_a_killed_run_leaves_nothing_that_the_next_one_trips_over(workplace, killed_run, undisturbed):
    config = build(settings(workplace, "killed"))
    assert killed_run.wait(200) == -9
    assert leftovers(config), "it was killed in the middle of nothing"
    summary = run(config, print)
    assert Outcome.of(config, summary) == undisturbed[0]
    assert leftovers(config) == []
    assert summary.steps["ImageExampleGen"].state == "cached"
    assert summary.steps["Trainer"].state == "complete"
    states = [execution.last_known_state for execution in open_store(config.metadata_path).get_executions()]
    assert pb.Execution.RUNNING not in states
