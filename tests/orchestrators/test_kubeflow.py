"""The Kubeflow file: what the kfp SDK makes of it, and every container of it run on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from beam_jobs import stack
from beam_jobs.dataset import manifest
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import OptionError
from pipeline.runners.kubeflow import compile as compile_pipeline
from pipeline.runners.kubeflow_container import COMMAND, TYPES, add_types
from tests.command import feedline
from tests.make_images import crop, encode

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

IMAGE = "registry.example/feedline:1"
SPLITS = {"train": 0.7, "eval": 0.3}
# A bucket that a compilation must not ask for. The runs here get a directory as their pipeline root instead, which is
# what both services let people do when they submit.
BUCKET = "gs://no-such-bucket/feedline"
COMPONENTS = {
    *("DatasetGate", "DatasetReport", "Evaluator", "ExampleValidator", "ImageExampleGen", "InferredSchema", "Pusher"),
    *("StatisticsGen", "Trainer", "Transform"),
}
# No connection and no look-up of a name from Python; what TensorFlow does in C++ has to pass the proxies.
GUARDED = """
import json, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        raise RuntimeError(f"{event} {arguments}")

sys.addaudithook(refuse)
from pipeline.runners.kubeflow import compile
print(json.dumps({out: compile(settings, out) for out, settings in json.load(sys.stdin).items()}))
"""


def settings(root: Path, source: Path, **more) -> dict:
    return {
        "name": "photos",
        "root": str(root),
        "ingest": {"source": str(source), "splits": SPLITS, "shards": 2},
        "input": {"image_side_px": 32, "batch_size": 8},
        "train": {"epochs": 1},
        **more,
        "evaluate": {"above_largest_class": False, **more.get("evaluate", {})},
        "kubeflow": {"image": IMAGE, "pipeline_root": BUCKET, "work_dir": f"{root}/work", **more.get("kubeflow", {})},
    }


@pytest.fixture(scope="module")
def ir() -> ModuleType:
    """The executor of compiled files; it imports kfp, whose warnings are errors while tests are collected."""
    from tests.orchestrators import ir_executor

    return ir_executor


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kubeflow")


@pytest.fixture(scope="module")
def ingested(workplace, photos) -> Path:
    """The dataset that `feedline ingest` makes of the photographs, with the options of the pipeline."""
    splits = ",".join(f"{name}={share}" for name, share in SPLITS.items())
    done = feedline("ingest", photos, "--out", workplace / "ingested", "--splits", splits, "--shards", 2)
    assert done.returncode == 0, done.stderr
    return workplace / "ingested"


@pytest.fixture(scope="module")
def compiled(workplace, photos, ingested) -> Path:
    """Directory of the compiled files; they were written without a connection."""
    root, model = workplace / "work", str(workplace / "model")
    once = {"retries": 0}
    gpu = {**once, "gpus": 1, "gpu_type": "nvidia.com/gpu", "cpus": 4, "memory_gb": 16}
    shutil.copytree(ingested, workplace / "adopted")
    adopted = {**settings(root, photos, kubeflow=once), "dataset": str(workplace / "adopted")}
    del adopted["ingest"]
    wanted = {
        "adopted.yaml": adopted,
        "longer.yaml": settings(root, photos, train={"epochs": 30, "checkpoint_steps": 1}, kubeflow={"retries": 1}),
        "plain.yaml": settings(root, photos, kubeflow={"baseline_dataset": str(ingested), "display_name": "Photos"}),
        "plain.json": settings(root, photos, kubeflow={"baseline_dataset": str(ingested), "display_name": "Photos"}),
        "strict.yaml": settings(root, photos, gate={"min_images_per_class": 1000}, kubeflow=gpu),
        "before.yaml": settings(root, photos, evaluate={"max_drop": 1.0}, kubeflow={"baseline_model": model}),
        "bucket.yaml": {**settings(root, photos, kubeflow={"pipeline_root": "", "work_dir": ""}), "root": BUCKET},
        "schema.yaml": settings(root, photos, schema=str(workplace / "schema.pbtxt")),
    }
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("http_proxy", "https_proxy", "all_proxy")
        proxies = {name: address for lower in names for name in (lower, lower.upper())}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", GUARDED],
            input=json.dumps({str(workplace / name): values for name, values in wanted.items()}),
            env={**{name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}, **proxies},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody came
            proxy.accept()
    assert not root.exists()
    (workplace / "hints.json").write_text(done.stdout.splitlines()[-1])
    return workplace


@pytest.fixture(scope="module")
def executor(compiled, ir):
    return ir.Executor(compiled / "bucket")


@pytest.fixture(scope="module")
def ran(compiled, executor, ir):
    return executor.run(ir.load(compiled / "plain.yaml"))


def test_the_kfp_sdk_loads_the_file_and_both_formats_hold_the_same(compiled, ir):
    from kfp import components

    text = (compiled / "plain.yaml").read_text(encoding="utf-8")
    loaded = components.load_component_from_text(text)
    assert loaded.name == "photos"
    assert loaded.pipeline_spec == ir.load(compiled / "plain.yaml") == ir.load(compiled / "plain.json")
    assert loaded.pipeline_spec.schema_version == "2.1.0"
    job = json.loads((compiled / "plain.json").read_text(encoding="utf-8"))
    assert job["displayName"] == "Photos"
    assert job["runtimeConfig"]["gcsOutputDirectory"] == loaded.pipeline_spec.default_pipeline_root == BUCKET


def test_every_component_is_a_container_of_the_image_and_no_node_asks_ml_metadata(compiled, ir):
    how = ir.executors(ir.load(compiled / "plain.yaml"))
    assert {name: spec.WhichOneof("spec") for name, spec in how.items()} == {
        **dict.fromkeys(COMPONENTS, "container"),
        "PreviousSpan": "importer",
    }
    for name in COMPONENTS:
        container = how[name].container
        assert container.image == IMAGE
        assert tuple(container.command) == COMMAND
        placeholders = [part for part in container.args if "{{" in part]
        assert placeholders == ["{{$}}"]
        assert [part for part in container.args if part.startswith("--direct")] == ["--direct_running_mode=in_memory"]


def test_artifacts_have_names_that_are_legal_and_known_to_the_containers(compiled, ir):
    spec = ir.load(compiled / "plain.yaml")
    schemas = {
        output.artifact_type.instance_schema
        for component in spec.components.values()
        for output in component.output_definitions.artifacts.values()
    }
    titles = {re.search("title: (.+)", schema).group(1) for schema in schemas}
    assert {title for title in titles if not title.startswith("tfx.")} == set(TYPES)
    for title in titles:  # the rule of Vertex AI
        assert re.fullmatch(r"[a-z][a-z0-9-_]{2,20}[.][A-Z][a-zA-Z0-9-_]{2,49}", title)


def test_only_the_component_that_looks_at_the_images_is_never_served_from_the_cache(compiled, ir):
    tasks = ir.load(compiled / "bucket.yaml").root.dag.tasks
    assert {name for name, task in tasks.items() if not task.caching_options.enable_cache} == {"ImageExampleGen"}


def test_a_root_in_a_bucket_holds_artifacts_and_served_models(compiled, ir):
    spec = ir.load(compiled / "bucket.yaml")
    assert spec.default_pipeline_root == f"{BUCKET}/artifacts"
    destination = spec.root.dag.tasks["Pusher"].inputs.parameters["push_destination"].runtime_value.constant
    assert f'"base_directory": "{BUCKET}/serving"' in destination.string_value


def test_the_line_says_where_the_file_goes_and_what_is_missing(compiled):
    hints = {Path(name).name: hint for name, hint in json.loads((compiled / "hints.json").read_text()).items()}

    def vertex(name, title="photos"):
        return f'aiplatform.PipelineJob(display_name="{title}", template_path="{compiled / name}").submit()'

    volume = f"; models are pushed to {compiled / 'work' / 'serving'}, which must be a volume of the containers"
    assert hints["bucket.yaml"] == (
        "run it on Kubeflow, in its web page or with kfp.Client(host=URL)"
        f'.create_run_from_pipeline_package("{compiled / "bucket.yaml"}"), or on Vertex AI: {vertex("bucket.yaml")}'
    )
    assert hints["plain.json"] == f"run it on Vertex AI: {vertex('plain.json', 'Photos')}{volume}"
    review = f"; schema {compiled / 'schema.pbtxt'} does not exist: the run infers one, review it and compile again"
    assert hints["schema.yaml"].endswith(review + volume)


def test_containers_are_limited_and_the_trainer_gets_the_accelerator(compiled, ir):
    for name, how in ir.executors(ir.load(compiled / "strict.yaml")).items():
        resources = how.container.resources
        assert (resources.cpu_limit, resources.memory_limit) == (4, 16)
        assert resources.accelerator.count == (1 if name == "Trainer" else 0)
    assert not ir.executors(ir.load(compiled / "plain.yaml"))["Trainer"].container.HasField("resources")
    # What the Trainer checks when it starts, so that it does not train on the CPU beside the accelerator.
    assert [re.findall(r'"gpus": (\d)', (compiled / name).read_text()) for name in ("strict.yaml", "plain.yaml")] == [
        ["1"],
        ["0"],
    ]


def test_every_container_runs_after_what_it_waits_for(ran, compiled, ir):
    assert set(ran.order) == {*COMPONENTS, "PreviousSpan"}
    for name, task in ir.load(compiled / "plain.yaml").root.dag.tasks.items():
        assert all(ran.order.index(before) < ran.order.index(name) for before in task.dependent_tasks)
    assert ran.order.index("DatasetGate") < ran.order.index("Transform")


def test_the_dataset_is_sound_and_to_the_byte_that_of_an_ingest(ran, ingested):
    made = Path(ran.uri("ImageExampleGen", "examples"))
    assert not verify(str(made)).problems
    shards = sorted(path.relative_to(ingested) for path in ingested.rglob("*.tfrecord"))
    assert len(shards) == 4
    assert shards == sorted(path.relative_to(made) for path in made.rglob("*.tfrecord"))
    for shard in shards:
        assert (made / shard).read_bytes() == (ingested / shard).read_bytes()


def test_what_components_say_of_artifacts_arrives(ran, ingested):
    examples = ran.metadata("ImageExampleGen", "examples")
    assert examples["dataset_digest"] == manifest.load(str(ingested)).digest
    assert json.loads(examples["split_names"]) == list(SPLITS)
    assert ran.metadata("Evaluator", "blessing")["blessed"] == 1
    assert ran.metadata("DatasetGate", "verdict")["findings"] == 0


def test_the_gate_measures_drift_from_the_dataset_that_was_named(ran):
    path = Path(ran.uri("DatasetGate", "verdict")) / "verdict.json"
    comparisons = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
    drift = [comparison for comparison in comparisons if comparison["kind"] == "drift"]
    assert {comparison["split"] for comparison in drift} == set(SPLITS)
    assert max(comparison["value"] for comparison in drift) == 0  # the same photographs


def test_the_pushed_model_predicts(ran, workplace):
    pushed = ran.metadata("Pusher", "pushed_model")
    assert pushed["pushed"] == 1
    assert Path(pushed["pushed_destination"]).parent == workplace / "work" / "serving"
    (workplace / "new.jpg").write_bytes(encode(crop(77, 60, 60, "flower.jpg"), "JPEG", quality=90))
    result = feedline("predict", workplace / "work" / "serving", workplace / "new.jpg", "--json")
    assert result.returncode == 0, result.stderr
    [prediction] = json.loads(result.stdout)["predictions"]
    assert prediction["text"] in ("china", "flower")
    assert 0.5 <= prediction["probability"] <= 1


def test_the_report_is_written(ran):
    page = Path(ran.uri("DatasetReport", "report")) / "report.html"
    assert "china" in page.read_text(encoding="utf-8")


def test_a_closed_gate_ends_its_container_with_one_message_and_nothing_after_it_runs(ran, compiled, executor, ir):
    spec = ir.load(compiled / "strict.yaml")
    with pytest.raises(ir.TaskFailed, match="DatasetGate ended with 3:") as failed:
        executor.run(spec, only={"DatasetGate", "Transform"}, earlier=ran)
    assert "small classes: " in str(failed.value)
    assert "Traceback" not in str(failed.value)


def test_the_evaluation_compares_with_the_model_that_was_named(ran, compiled, executor, ir):
    (compiled / "model").symlink_to(ran.uri("Trainer", "model"))
    again = executor.run(ir.load(compiled / "before.yaml"), only={"BlessedModel", "Evaluator"}, earlier=ran)
    assert again.order == ["BlessedModel", "Evaluator"]
    blessing = again.metadata("Evaluator", "blessing")
    assert blessing["baseline_model"] == str(compiled / "model")
    assert blessing["baseline_model_id"] != blessing["current_model_id"]


def test_an_ingest_that_was_killed_continues_in_the_next_attempt_and_in_the_next_run(ran, compiled, executor, ir):
    """No command gets SIGTERM. A new attempt has the directories of the old one, a new run has others."""
    work, seen = compiled / "work" / "work", []

    def examined() -> dict[Path, int]:
        with contextlib.suppress(FileNotFoundError):  # an ingest that ends removes them
            return {path: path.stat().st_mtime_ns for path in work.rglob("facts-*.parquet")}
        return {}

    def kill(attempt: int) -> bool:
        """Kills the first attempt when the images are examined, and the second one when it is further than that."""
        if attempt == 1:
            return any(work.rglob("done-*.json"))
        seen.append(examined())
        return any(b'"stage": "planning"' in path.read_bytes() for path in work.rglob("progress.json"))

    longer = ir.load(compiled / "longer.yaml")
    with pytest.raises(ir.TaskFailed, match="ImageExampleGen ended with -9"):
        executor.run(longer, only={"ImageExampleGen"}, kill={"ImageExampleGen": kill})
    assert seen[0]
    again = executor.run(longer, only={"ImageExampleGen"}, kill={"ImageExampleGen": lambda _: seen.append(examined())})
    assert all(facts == seen[0] for facts in filter(None, seen)), "nothing is examined twice"
    digests = [one.metadata("ImageExampleGen", "examples")["dataset_digest"] for one in (ran, again)]
    assert digests[0] == digests[1]


def test_a_training_that_was_killed_continues_in_the_next_attempt_and_in_the_next_run(ran, compiled, executor, ir):
    left: list[int] = []

    def newest() -> int:
        found = (compiled / "work" / "work").glob(".work-*/checkpoint-*/checkpoint.json")
        return max((int(path.parent.name.removeprefix("checkpoint-")) for path in found), default=0)

    def kill(attempt: int) -> bool:
        """Kills an attempt after it wrote a checkpoint, and notes the newest one of the attempt before."""
        if attempt > len(left):
            left.append(newest())
        return newest() > left[-1]

    longer = ir.load(compiled / "longer.yaml")
    with pytest.raises(ir.TaskFailed, match="Trainer ended with -9") as failed:
        executor.run(longer, only={"Trainer"}, earlier=ran, kill={"Trainer": kill})
    left.append(newest())
    trained = executor.run(longer, only={"Trainer"}, earlier=ran)
    for text, last in zip((str(failed.value), trained.logs["Trainer"][0]), left[1:], strict=True):
        [place] = re.findall(r"continuing at epoch (\d+) of \d+, step (\d+) of (\d+)", text)
        epoch, step, steps = map(int, place)
        assert (epoch - 1) * steps + step - 1 == last
    assert not newest()


def test_what_only_kubernetes_knows_is_a_second_document(compiled, tmp_path):
    more = {"disk_gb": 50, "secrets": {"key": "/key"}, "secret_env": {"TOKEN": "hub/token"}, "service_account": "me"}
    given = settings(compiled / "work", compiled / "photos", kubeflow=more)
    hint = compile_pipeline(given, str(tmp_path / "p.yaml"))
    assert "aiplatform" not in hint
    assert f'("{tmp_path / "p.yaml"}", service_account="me")' in hint
    pipeline, platform = yaml.safe_load_all((tmp_path / "p.yaml").read_text())
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == {
        label for label, one in pipeline["deploymentSpec"]["executors"].items() if "container" in one
    }
    [disk] = executors["Trainer_executor"]["genericEphemeralVolume"]
    assert (disk["size"], disk["mountPath"]) == ("50Gi", "/tmp")
    assert executors["Trainer_executor"]["secretAsVolume"] == [{"secretName": "key", "mountPath": "/key"}]
    [token] = executors["Trainer_executor"]["secretAsEnv"]
    assert token == {"secretName": "hub", "keyToEnv": [{"secretKey": "token", "envVar": "TOKEN"}]}
    with pytest.raises(OptionError, match="kubeflow.disk_gb is set, which Vertex AI does not have; leave it out"):
        compile_pipeline(given, str(tmp_path / "p.json"))


def test_containers_are_tried_again_importers_are_not(compiled, ir):
    def retried(name: str) -> set[str]:
        tasks = ir.load(compiled / name).root.dag.tasks
        return {task for task, one in tasks.items() if one.retry_policy.max_retry_count == 2}

    assert retried("plain.yaml") == COMPONENTS
    assert retried("longer.yaml") == set()


def test_a_training_writes_checkpoints_within_its_epochs(compiled):
    assert re.findall(r'"checkpoint_steps": (\d+)', (compiled / "plain.yaml").read_text()) == ["500"]


ADOPTED_DATA = ("AdoptedDataset", "StatisticsGen", "InferredSchema", "ExampleValidator", "DatasetGate")


def test_an_adopted_dataset_is_imported_and_another_one_in_its_place_is_noticed(compiled, executor, photos, ir):
    spec = ir.load(compiled / "adopted.yaml")
    adopted = executor.run(spec, only=ADOPTED_DATA)
    place = adopted.uri("AdoptedDataset", "examples")
    assert place == str(compiled / "adopted")
    digest = manifest.load(place).digest
    examples, verdict = adopted.metadata("AdoptedDataset", "examples"), adopted.metadata("DatasetGate", "verdict")
    assert examples["dataset_digest"] == verdict["dataset_digest"] == digest
    splits = ",".join(f"{name}={share}" for name, share in SPLITS.items())
    again = feedline("ingest", photos, "--out", place, "--splits", splits, "--shards", 3, "--overwrite")
    assert again.returncode == 0, again.stderr
    with pytest.raises(ir.TaskFailed, match="DatasetGate ended with 3:") as failed:
        executor.run(spec, only={"DatasetGate"}, earlier=adopted)
    assert f"another dataset was published in {place} since" in str(failed.value)


def test_inputs_get_the_types_that_the_component_declares_whether_one_came_or_none():
    def invocation(kind: dict) -> str:
        artifact = {"name": "7", "uri": "gs://bucket/examples", **kind}
        return json.dumps({"inputs": {"artifacts": {"examples": {"artifacts": [artifact]}}}, "outputs": {}})

    declared = {"instanceSchema": "title: tfx.Examples"}
    spec = json.dumps({"artifacts": {"examples": {"artifactType": declared}}})
    for came in ({}, {"type": {"schemaTitle": "system.Artifact"}}):
        given = ["x", "--json_serialized_invocation_args", invocation(came), "--json_serialized_inputs_spec_args", spec]
        filled = add_types([*given, "--runner=FnApiRunner"])
        assert json.loads(filled[2]) == json.loads(invocation({"type": declared}))
        assert (filled[0], filled[-1]) == ("x", "--runner=FnApiRunner")
    nothing = ["x", "--json_serialized_invocation_args", "{}", "--json_serialized_inputs_spec_args", "{}"]
    assert add_types(nothing) == nothing


@pytest.mark.parametrize(
    ("more", "out", "message"),
    [
        ({"kubeflow": {"image": ""}}, "p.yaml", "kubeflow.image is ''; name a container image such as"),
        ({"kubeflow": {"imag": "x"}}, "p.yaml", "there is no setting 'kubeflow.imag'; did you mean image?"),
        ({"kubeflow": {"cpus": -1}}, "p.yaml", "kubeflow.cpus is -1; it must be a number of at least 0"),
        ({"kubeflow": {"gpus": 1}}, "p.yaml", "kubeflow.gpus is 1 and kubeflow.gpu_type is ''; give both or neither"),
        ({"kubeflow": {"pipeline_root": "/mnt"}}, "p.yaml", "kubeflow.pipeline_root is '/mnt'; "),
        ({"kubeflow": {"pipeline_root": ""}}, "p.yaml", "root is '/work'; containers of TFX share artifacts through a"),
        (
            {"kubeflow": {"step_cpus": {"Traner": 1}}},
            "p.yaml",
            "there is no component 'kubeflow.step_cpus.Traner'; did",
        ),
        (
            {"kubeflow": {"gpus": 1, "step_gpus": {"Trainer": 2}, "gpu_type": "x"}},
            "p.yaml",
            "kubeflow.gpus and kubeflow.step_gpus.Trainer are both set",
        ),
        ({"kubeflow": {"gpus": 4, "gpu_type": "google.com/tpu"}}, "p.yaml", "the image has no libtpu, because its"),
        ({"train": {"strategy": "tpu"}}, "p.yaml", "train.strategy is 'tpu'; the image has no libtpu, because its"),
        ({"train": {"checkpoint_steps": 0}}, "p.yaml", "train.checkpoint_steps is 0; containers end without SIGTERM"),
        ({"kubeflow": {"secrets": {"key": "key"}}}, "p.yaml", "kubeflow.secrets.key is 'key'; name a directory"),
        ({"kubeflow": {"secret_env": {"A": "b"}}}, "p.yaml", "kubeflow.secret_env.A is 'b'; it must be SECRET/KEY"),
        ({"name": "My_photos"}, "p.yaml", "name is 'My_photos'; on Kubeflow it must have 1 to 128 characters"),
        ({}, "pipeline.txt", "--out pipeline.txt must end in .yaml"),
        (
            {"gate": {"drift_limits": {"brightness": 0.1}}},
            "p.yaml",
            "gate.drift_limits is {'brightness': 0.1}, and Kubeflow looks up no earlier dataset",
        ),
        (
            {"evaluate": {"max_drop": 0.1}},
            "p.yaml",
            "name one as kubeflow.baseline_model, or leave out evaluate.max_drop",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(more, out, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        compile_pipeline(settings(Path("/work"), Path("/photos"), **more), out)


def test_a_dataset_that_containers_cannot_read_is_refused():
    given = {**settings(Path("/work"), Path("/photos")), "dataset": "s3://bucket/dataset"}
    del given["ingest"]
    with pytest.raises(OptionError, match="containers of TFX read datasets from gs://BUCKET/DIR only"):
        compile_pipeline(given, "p.yaml")


def test_without_kfp_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "kfp", None)
    for name in [name for name in sys.modules if name.startswith(("kfp.", "tfx.orchestration.kubeflow"))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(OptionError, match=re.escape(stack.pip_install(".[tfx,kubeflow]"))):
        compile_pipeline(settings(Path("/work"), Path("/photos")), "p.yaml")
