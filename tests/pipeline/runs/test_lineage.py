from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from beam_jobs.errors import SourceError
from components.dataset_report import RunDetails
from pipeline.cli.lineage import command
from pipeline.runs.history import open_store
from pipeline.runs.lineage import COMPARED, JUDGED, MADE, run_details, text, trace
from pipeline.runs.lineage_find import DESTINATION, find, find_root, locator, source_name
from tests.pipeline.ledger import CACHED, FAILED, RUNNING, Ledger

CODE = "0.1.0+3f9c0d1e"
OPTIONS = {
    "source": "/home/somebody/photos",
    "splits": [["train", 0.9], ["eval", 0.1]],
    "seed": 3,
    "limits": {"max_bytes": 9},
}
THRESHOLD = {
    "metrics_specs": [
        {"metrics": [{"class_name": "Accuracy", "threshold": {"value_threshold": {"lower_bound": 0.699999}}}]}
    ]
}
TRAINER = {"code": CODE, "trainer": {"train": {"epochs": 7}, "input": {"image_side_px": 64, "train_ops": "a|" * 60}}}


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def write_model(directory: Path, graph: str = "graph") -> Path:
    write(directory / "saved_model.pb", graph)
    write(directory / "variables" / "variables.index", "weights")
    return directory


def data(ledger: Ledger, run: str, root: Path, span: int, number: int, state: int | None = None) -> dict[str, int]:
    """Adds a dataset and everything that TFX says of it."""
    kept = root / "artifacts"
    examples = (
        "Examples",
        kept / f"ImageExampleGen/examples/{number}",
        {"span": span, "dataset_digest": f"{span}d" * 32},
    )
    [examples] = ledger.execute(
        run,
        "ImageExampleGen",
        {},
        {"examples": examples},
        options=json.dumps(OPTIONS),
        producer=f"{CODE}, tensorflow 2",
    )
    statistics = ("ExampleStatistics", kept / f"StatisticsGen/statistics/{number}", {})
    [statistics] = ledger.execute(run, "StatisticsGen", {"examples": examples}, {"statistics": statistics})
    return {"examples": examples, "statistics": statistics}


def judged(ledger: Ledger, run: str, root: Path, read: dict[str, int], baseline: dict[str, int]) -> dict[str, int]:
    """Adds a schema and the verdict."""
    schema_path = root / "artifacts/SchemaGen/schema/3"
    write(schema_path / "schema.pbtxt", "feature {}")
    [schema] = ledger.execute(
        run, "SchemaGen", {"statistics": read["statistics"]}, {"schema": ("Schema", schema_path, {})}
    )
    found = ("ExampleAnomalies", root / "artifacts/ExampleValidator/anomalies/4", {})
    [anomalies] = ledger.execute(
        run, "ExampleValidator", {"statistics": read["statistics"], "schema": schema}, {"anomalies": found}
    )
    verdict_path = root / "artifacts/DatasetGate/verdict/5"
    write(verdict_path / "verdict.json", json.dumps({"findings": [], "anomalies": {"train": 0}}))
    [verdict] = ledger.execute(
        run,
        "DatasetGate",
        {"examples": read["examples"], "anomalies": anomalies, **baseline},
        {"verdict": ("DatasetVerdict", verdict_path, {"findings": 0})},
        limits=json.dumps({"max_leaks": 0, "mode": "stop", "near_leaks": False}),
    )
    return {**read, "schema": schema, "anomalies": anomalies, "verdict": verdict}


def trained(ledger: Ledger, run: str, root: Path, read: dict[str, int], number: int = 7) -> dict[str, int]:
    """Adds a transform graph, a model and a run of TensorBoard."""
    graph = root / f"artifacts/Transform/transform_graph/{number - 1}"
    write(graph / "transform_fn/saved_model.pb", "transform")
    [graph] = ledger.execute(
        run, "Transform", {"examples": read["examples"]}, {"transform_graph": ("TransformGraph", graph, {})}
    )
    model = root / f"artifacts/Trainer/model/{number}"
    write_model(model / "Format-Serving", f"graph {number}")
    model, logs = ledger.execute(
        run,
        "Trainer",
        {"examples": read["examples"], "transform_graph": graph, "schema": read["schema"]},
        {"model": ("Model", model, {}), "model_run": ("ModelRun", root / f"artifacts/Trainer/model_run/{number}", {})},
        custom_config=json.dumps(TRAINER),
    )
    return {**read, "graph": graph, "model": model, "logs": logs}


def pushed(ledger: Ledger, run: str, root: Path, read: dict[str, int], version: str) -> int:
    """Adds a pushed model."""
    serving = root / "serving" / version
    shutil.copytree(root / "artifacts/Trainer/model/7/Format-Serving", serving)
    kept = shutil.copytree(serving, root / "artifacts/Pusher/pushed_model" / version)
    properties = {"pushed": 1, DESTINATION: str(serving), "pushed_version": version}
    [number] = ledger.execute(
        run,
        "Pusher",
        {"model": read["model"], "model_blessing": read["blessing"]},
        {"pushed_model": ("PushedModel", kept, properties)},
    )
    return number


def make(root: Path) -> dict[str, int]:
    """Makes a root of two pipelines; one trained a model in one run and pushed it in the next, out of the cache."""
    root.mkdir()
    ledger = Ledger(root / "metadata.sqlite")
    ledger.run("yesterday")
    before = data(ledger, "yesterday", root, span=1, number=1)
    [blessed] = ledger.execute(
        "yesterday", "Trainer", before, {"model": ("Model", root / "artifacts/Trainer/model/0", {})}
    )
    ledger.run("elsewhere", pipeline="another")
    data(ledger, "elsewhere", root, span=9, number=90)
    ledger.run("first")
    read = judged(
        ledger, "first", root, data(ledger, "first", root, span=2, number=2), {"baseline_examples": before["examples"]}
    )
    read = trained(ledger, "first", root, read)
    places = {
        "evaluation": ("ModelEvaluation", write(root / "artifacts/Evaluator/evaluation/8/metrics", "0.9").parent, {}),
        "blessing": ("ModelBlessing", root / "artifacts/Evaluator/blessing/8", {"blessed": 1}),
    }
    inputs = {"examples": read["examples"], "model": read["model"], "baseline_model": blessed}
    evaluation, blessing = ledger.execute(
        "first", "Evaluator", inputs, places, eval_config=json.dumps(THRESHOLD), example_splits='["eval"]'
    )
    read |= {"evaluation": evaluation, "blessing": blessing}
    ledger.execute("first", "Pusher", {"model": read["model"]}, state=FAILED)
    ledger.run("second")
    for component, keys, inputs in (
        ("ImageExampleGen", ("examples",), ()),
        ("StatisticsGen", ("statistics",), ("examples",)),
        ("SchemaGen", ("schema",), ("statistics",)),
        ("ExampleValidator", ("anomalies",), ("statistics", "schema")),
        ("DatasetGate", ("verdict",), ("examples", "anomalies")),
        ("Transform", ("graph",), ("examples",)),
        ("Trainer", ("model", "logs"), ("examples", "graph", "schema")),
        ("Evaluator", ("evaluation", "blessing"), ("examples", "model")),
    ):
        ledger.execute(
            "second", component, {key: read[key] for key in inputs}, {key: read[key] for key in keys}, state=CACHED
        )
    read["pushed"] = pushed(ledger, "second", root, read, "1700000000")
    ledger.execute("second", "DatasetReport", {"examples": read["examples"]}, state=RUNNING)
    return {**read, "before": before["examples"], "blessed": blessed}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """The root that `make` makes. Read only."""
    return tmp_path_factory.mktemp("lineage") / "work"


@pytest.fixture(scope="module")
def made(root) -> dict[str, int]:
    return make(root)


@pytest.fixture(scope="module")
def store(root, made):
    return open_store(str(root / "metadata.sqlite"))


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """An empty database in `tmp_path`, which becomes the root; its first run has begun."""
    ledger = Ledger(tmp_path / "metadata.sqlite")
    ledger.run("first")
    return ledger


def test_a_pushed_model_leads_back_through_the_cache_to_its_source_and_to_nothing_else(store, made):
    lineage = trace(store, made["pushed"])
    roles = {artifact.id: artifact.role for artifact in lineage.artifacts}
    sources = ("examples", "statistics", "schema", "graph", "model", "pushed")
    assert roles == (
        {made[name]: MADE for name in sources}
        | {made[name]: JUDGED for name in ("anomalies", "verdict", "evaluation", "blessing")}
        | {made[name]: COMPARED for name in ("before", "blessed")}
    )
    assert (lineage.pipeline, lineage.run) == ("demo", "second")
    cached = {execution.component: execution.cached for execution in lineage.executions}
    assert cached.pop("Pusher") is False
    assert set(cached.values()) == {True}
    assert [execution.component for execution in lineage.executions] == [
        *("ImageExampleGen", "StatisticsGen", "SchemaGen", "ExampleValidator", "DatasetGate"),
        *("Transform", "Trainer", "Evaluator", "Pusher"),
    ]


def test_a_trained_model_is_judged_too_and_was_not_cached_in_the_run_that_made_it(store, made):
    lineage = trace(store, made["model"])
    types = {artifact.type for artifact in lineage.artifacts if artifact.role == JUDGED}
    assert types == {"ExampleAnomalies", "DatasetVerdict", "ModelEvaluation", "ModelBlessing"}
    assert lineage.run == "first"
    assert not any(execution.cached for execution in lineage.executions)
    assert "Pusher" not in {execution.component for execution in lineage.executions}


def test_the_facts_say_which_data_schema_verdict_and_code(store, made):
    lineage = trace(store, made["pushed"])
    facts = {artifact.id: artifact.facts for artifact in lineage.artifacts}
    assert facts[made["examples"]] == {"dataset_digest": "2d" * 32, "span": "2", "source": "photos", "files": "removed"}
    assert facts[made["schema"]] == {"origin": "inferred", "sha256": hashlib.sha256(b"feature {}").hexdigest()}
    assert facts[made["verdict"]] == {"verdict": "passed", "anomalies": "train=0"}
    assert facts[made["blessing"]] == {"blessed": "yes"}
    assert facts[made["pushed"]]["sha256"] == facts[made["model"]]["sha256"]
    codes = {execution.component: execution.code for execution in lineage.executions}
    assert (codes["ImageExampleGen"], codes["Trainer"], codes["StatisticsGen"]) == (CODE, CODE, "")


def test_a_reviewed_schema_is_told_from_an_inferred_one(ledger, tmp_path):
    schema = ("Schema", tmp_path / "artifacts/ReviewedSchema/schema/1", {})
    [schema] = ledger.execute("first", "ReviewedSchema", {}, {"schema": schema}, schema_text="feature {}")
    [artifact] = trace(ledger.store, schema).artifacts
    assert artifact.facts == {"origin": "reviewed", "sha256": hashlib.sha256(b"feature {}").hexdigest()}


@pytest.mark.parametrize(
    ("told", "name"),
    [
        ({"options": {"source": "/home/somebody/photos/"}}, "photos"),
        ({"options": {"source": "gs://bucket/photos"}}, "gs://bucket/photos"),
        ({"dataset": "/home/somebody/datasets/{SPAN}"}, "datasets/{SPAN}"),
        ({}, ""),
    ],
)
def test_a_source_has_a_name_and_no_place_on_this_machine(told, name):
    assert source_name(told) == name


def test_the_graph_in_json_is_whole_and_every_edge_ends_somewhere(store, made):
    graph = json.loads(json.dumps(trace(store, made["pushed"]).to_json()))
    nodes = {f"artifact:{one['id']}" for one in graph["artifacts"]}
    nodes |= {f"execution:{one['id']}" for one in graph["executions"]}
    assert {end for edge in graph["edges"] for end in (edge["from"], edge["to"])} == nodes
    trainer = next(one for one in graph["executions"] if one["component"] == "Trainer")
    assert trainer["parameters"]["custom_config"]["trainer"]["train"] == {"epochs": 7}
    read = [edge["from"] for edge in graph["edges"] if edge["to"] == f"execution:{trainer['id']}"]
    assert sorted(read) == sorted(f"artifact:{made[name]}" for name in ("examples", "graph", "schema"))


def test_the_report_gets_the_newest_run_without_paths_and_without_what_is_under_way(store, root, made):
    details = run_details(store)
    states = {step.component: step.state for step in details.steps}
    assert states.pop("Pusher") == "complete"
    assert set(states.values()) == {"cached"}
    assert "DatasetReport" not in states  # it is the one that asks
    by_id = {artifact.id: artifact for artifact in details.artifacts}
    assert by_id[made["model"]].inputs == tuple(sorted((made["examples"], made["graph"], made["schema"])))
    assert by_id[made["examples"]].producer == "ImageExampleGen"
    assert by_id[made["examples"]].properties["code"] == CODE
    assert "/" not in repr(details).replace("0.1.0+3f9c0d1e", "")
    assert all(number in by_id for artifact in details.artifacts for number in artifact.inputs)


def test_the_report_is_told_of_the_model_before_it_is_pushed_and_of_the_data_before_that(ledger, tmp_path):
    assert run_details(ledger.store) == run_details(ledger.store, "demo") == RunDetails(steps=())
    read = data(ledger, "first", tmp_path, span=0, number=1)
    assert [artifact.type for artifact in run_details(ledger.store).artifacts] == ["Examples"]
    read = trained(ledger, "first", tmp_path, judged(ledger, "first", tmp_path, read, {}))
    ledger.execute("first", "Evaluator", state=FAILED)
    details = run_details(ledger.store)
    assert {"Model", "DatasetVerdict"} <= {artifact.type for artifact in details.artifacts}
    assert {step.component: step.state for step in details.steps}["Evaluator"] == "failed"


def test_the_report_of_one_pipeline_does_not_show_a_newer_run_of_another(ledger):
    ledger.execute("first", "Trainer")
    ledger.run("later", pipeline="another")
    ledger.execute("later", "Elsewhere")
    assert [step.component for step in run_details(ledger.store).steps] == ["Elsewhere"]
    assert [step.component for step in run_details(ledger.store, "demo").steps] == ["Trainer"]


@pytest.mark.parametrize(
    ("place", "known_as"),
    [
        ("serving", "pushed"),
        ("artifacts/Pusher/pushed_model/1700000000", "pushed"),
        ("artifacts/Trainer/model/7", "model"),
    ],
)
def test_a_model_is_known_by_where_it_lies(store, root, made, place, known_as):
    assert find_root(str(root / place)) == str(root)
    found = find(store, str(root / place), str(root))
    assert (found.artifact, found.note) == (made[known_as], "")


def test_of_several_versions_the_newest_is_meant(tmp_path):
    root = tmp_path / "work"
    made = make(root)
    ledger = Ledger(root / "metadata.sqlite")
    ledger.run("third")
    newer = pushed(ledger, "third", root, made, "1700000009")
    write_model(root / "serving" / "999", "an old one of somebody else")
    (root / "serving" / "1800000000").mkdir()  # a push that broke off
    assert find(ledger.store, str(root / "serving"), str(root)).artifact == newer


def test_a_model_that_was_deleted_keeps_its_lineage(ledger, tmp_path):
    place = tmp_path / "serving" / "1700000000"
    properties = {"pushed": 1, DESTINATION: str(place)}
    pushed = ("PushedModel", tmp_path / "artifacts/Pusher/pushed_model/1", properties)
    [pushed] = ledger.execute("first", "Pusher", {}, {"pushed_model": pushed})
    assert find(ledger.store, str(place), str(tmp_path)).artifact == pushed


def test_a_moved_root_and_a_copied_model_are_recognised(tmp_path):
    root = tmp_path / "work"
    made = make(root)
    copy = shutil.copytree(root / "serving" / "1700000000", tmp_path / "copy")
    moved = root.rename(tmp_path / "moved")
    store = open_store(str(moved / "metadata.sqlite"))
    found = find(store, str(moved / "serving" / "1700000000"), str(moved))
    assert (found.artifact, found.note) == (made["pushed"], "the root was moved since it was made")
    found = find(store, str(copy), str(moved))
    assert found.artifact == made["pushed"]
    assert found.note == f"it is a copy of {moved / 'serving' / '1700000000'}"
    lineage = trace(store, found.artifact, locator(str(moved)))
    facts = {artifact.id: artifact.facts for artifact in lineage.artifacts}
    assert facts[made["model"]]["sha256"] == facts[made["pushed"]]["sha256"]
    assert "files" not in facts[made["schema"]]


def test_what_nobody_knows_is_refused_in_one_line_with_what_is_known(store, root, made, tmp_path):
    stranger = write_model(tmp_path / "stranger", "another graph")
    with pytest.raises(
        SourceError, match=r"metadata.sqlite has no artifact .*stranger; pushed models are 1700000000 in .*/serving$"
    ):
        find(store, str(stranger), str(root))
    with pytest.raises(SourceError, match=r"^there is no model .*/17; pushed models are 1700000000 in .*/serving$"):
        find(store, str(root / "serving" / "17"), str(root))
    with pytest.raises(
        SourceError, match=r"^no metadata.sqlite above .*stranger; name the root of its pipeline with --r"
    ):
        find_root(str(stranger))
    with pytest.raises(SourceError, match="^there is no model .*nothing, and no metadata.sqlite above .*nothing; name"):
        find_root(str(tmp_path / "nothing"))
    with pytest.raises(SourceError, match="^--root .* contains no metadata.sqlite; give the root of a `feedline run`$"):
        find_root(str(stranger), str(tmp_path))


def test_the_command_prints_what_a_person_asks_for_and_no_json(root, made):
    printed = CliRunner().invoke(command, [str(root / "serving")])
    assert printed.exit_code == 0, printed.exception
    lines = printed.output.splitlines()
    assert lines[1:3] == ["pipeline demo, run second", f"code {CODE}"]
    paragraphs = {part.split()[0]: " ".join(part.split()) for part in printed.output.split("\n\n")[1:]}
    assert "digest 2d2d2d2d2d2d2d2d, span 2, source photos" in paragraphs["ImageExampleGen"]
    assert "splits train=0.9 eval=0.1, seed 3" in paragraphs["ImageExampleGen"]
    assert "cached" in paragraphs["Trainer"]
    assert "with epochs 7, image_side_px 64" in paragraphs["Trainer"]
    assert "with mode stop, max_leaks 0 " in paragraphs["DatasetGate"]
    assert "for comparison (digest 1d1d1d1d1d1d1d1d, span 1)" in paragraphs["DatasetGate"]
    assert "with Accuracy at least 0.7, example_splits eval" in paragraphs["Evaluator"]
    assert "blessed yes" in paragraphs["Evaluator"]
    assert "complete" in paragraphs["Pusher"]
    assert not re.search(r"[{}\[\]]", printed.output)
    assert "max_bytes" not in printed.output
    assert all(len(line) <= 100 or " /" in line for line in lines[1:])


def test_of_a_component_from_elsewhere_the_short_parameters_are_shown(ledger, tmp_path):
    told = {
        "depth": 3,
        "script": "line\\n" * 50,
        "options": json.dumps({"deep": {"level": 4}, "none": None, "off": False, "zero": 0}),
    }
    [model] = ledger.execute("first", "Distiller", {}, {"model": ("Model", tmp_path / "model", {})}, **told)
    printed = text(trace(ledger.store, model), "model")
    assert "with                    depth 3, options.deep.level 4, options.zero 0\n" in printed
    assert "script" not in printed
    assert "files removed" in printed
