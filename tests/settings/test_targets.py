"""What the settings of targets change: the jobs that a runner gets, and the files that `feedline compile` writes."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
import yaml

from beam_jobs.runners import flink_job_server
from pipeline.cli.ingest import parse_engine
from pipeline.runners import airflow
from pipeline.runners import kubeflow as run_kubeflow
from tests.beam_jobs.runners.test_dataflow import NEEDED, work
from tests.beam_jobs.web_server import body, serving
from tests.engines.flink_parts import program
from tests.make_images import class_folders
from tests.settings.flink_service import job_server
from tests.settings.table import Row, row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@dataclasses.dataclass(frozen=True)
class FlinkJob:
    """What Flink got.

    Attributes:
      runner: of Beam.
      java: arguments of the job server.
      options: of the job.
      environments: what starts its workers.
      sent: how often the job was sent.
      log_dir: names of the files in `log_dir`.
    """

    runner: str
    java: list[str]
    options: dict[str, Any]
    environments: list[str]
    sent: int
    log_dir: list[str]


@dataclasses.dataclass(frozen=True)
class DataflowJob:
    """What Dataflow would get, and the estimate. `options` of Beam are those that are set."""

    runner: str
    options: dict[str, Any]
    names: list[str]
    cost: float | None


def option(name: str) -> Callable[[Any], Any]:
    return lambda job: job.options.get(name)


def limit(job: Mapping[str, Any], name: str, component: str = "Trainer") -> Any:
    """A limit of the container of a component in a compiled file; None when it has none."""
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    return executors[f"{component}_executor"]["container"].get("resources", {}).get(name)


def of_platform(job: Mapping[str, Any]) -> dict[str, Any]:
    """What only Kubernetes knows of the container of the Trainer."""
    deployment = job["platform"].get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
    return dict(deployment.get("executors", {}).get("Trainer_executor", {}))


def retries(job: Mapping[str, Any]) -> int:
    return int(job["pipelineSpec"]["root"]["dag"]["tasks"]["Trainer"]["retryPolicy"]["maxRetryCount"])


def work_dirs(job: Mapping[str, Any]) -> set[str]:
    """The directories of unfinished work, of the ingest and of the training."""
    tasks = job["pipelineSpec"]["root"]["dag"]["tasks"]

    def value(task: str, name: str) -> str:
        return str(tasks[task]["inputs"]["parameters"][name]["runtimeValue"]["constant"])

    return {value("ImageExampleGen", "work_dir"), json.loads(value("Trainer", "custom_config"))["work_dir"]}


def imported(job: Mapping[str, Any]) -> list[str]:
    """What is imported from outside, by its place."""
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    found = (one["importer"]["artifactUri"]["constant"] for one in executors.values() if "importer" in one)
    return sorted(found)


def images(job: Mapping[str, Any]) -> set[str]:
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    return {one["container"]["image"] for one in executors.values() if "container" in one}


def root(job: Mapping[str, Any]) -> str:
    return str(job["runtimeConfig"]["gcsOutputDirectory"])


def beam_option(setting: str, value: Any, usual: Any, name: str = "", **more: Any) -> Row:
    """Returns the row of a setting of Dataflow that becomes an option of Beam, `name` where it differs."""
    return row(f"dataflow.{setting}", value, option(name or setting), (usual, value), **more)


IMAGE = "registry/feedline:1"
SUBNETWORK = "regions/us-central1/subnetworks/inner"
# Without credentials, and nothing is sent.
LOCAL = ["--no_auth", "--dataflow_endpoint=http://localhost:1"]
GPU = {"kubeflow.gpu_type": "nvidia.com/gpu"}
IN_A_CLUSTER = {"flink.flink_master": "CLUSTER"}
FETCHED = {"flink.job_server_jar": ""}
WHEEL = {"dataflow.sdk_container_image": ""}

ROWS = [
    row("engine.runner", "flink", lambda found: found, ("FnApiRunner", "FlinkRunner"), first=("local",)),
    row(
        "flink.flink_master",
        "CLUSTER",
        lambda job: (job.options["flink_master"], job.java[job.java.index("--flink-master") + 1]),
        lambda before, after: before == ("[local]",) * 2 and after[0] == after[1] != "[local]",
    ),
    row(
        "flink.flink_version",
        "1.20",
        lambda job: [name for name in job.java if name.endswith(".jar")],
        lambda before, after: "1.19" in before[0] and "1.20" in after[0],
        given=FETCHED,
    ),
    row("flink.parallelism", 3, lambda job: int(job.options["parallelism"]), (7, 3), given=IN_A_CLUSTER),
    row(
        "flink.job_server_jar",
        "JAR",
        lambda job: [os.path.basename(name) for name in job.java if name.endswith(".jar")],
        lambda before, after: before != after == ["own.jar"],
        first=("",),
    ),
    row("flink.worker_command", "WORKER", lambda job: "own-worker" in job.environments[0], (False, True)),
    row("flink.worker_pool", "localhost:50000", lambda job: "external" in job.environments[0], (False, True)),
    row("flink.workers", 2, lambda job: int(job.options["sdk_worker_parallelism"]), (7, 2), given=IN_A_CLUSTER),
    row("flink.retries", 1, lambda job: job.sent, (4, 2)),
    row(
        "flink.java_memory",
        "300m",
        lambda job: [word for word in job.java if word.startswith("-Xmx")],
        (["-Xmx1g"], ["-Xmx300m"]),
    ),
    row("flink.log_dir", "LOGS", lambda job: "flink.log" in job.log_dir, (False, True)),
    beam_option("project", "my-project-2", "my-project-1", first=("my-project-1",)),
    beam_option("region", "europe-west4", "us-central1", first=("us-central1",)),
    beam_option("temp_location", "gs://bucket/b", "gs://bucket/a", first=("gs://bucket/a",)),
    beam_option("staging_location", "gs://bucket/code", "gs://bucket/tmp"),
    beam_option("worker_machine_type", "n2-highmem-8", "n2-standard-4", name="machine_type"),
    beam_option("num_workers", 3, None),
    beam_option("max_num_workers", 30, 10),
    beam_option("autoscaling_algorithm", "NONE", "THROUGHPUT_BASED", given={"dataflow.num_workers": 3}),
    beam_option("disk_size_gb", 50, None),
    beam_option("service_account_email", "me@my-project-1.iam.gserviceaccount.com", None),
    beam_option("subnetwork", SUBNETWORK, None),
    beam_option("use_public_ips", False, None, given={"dataflow.subnetwork": SUBNETWORK}),
    beam_option("sdk_container_image", "registry/feedline:2", IMAGE, first=(IMAGE,)),
    row(
        "dataflow.package",
        "PACKAGE",
        lambda job: [os.path.basename(name) for name in job.options["extra_packages"]],
        lambda before, after: before != after == ["own-1.0.tar.gz"],
        given=WHEEL,
    ),
    row(
        "dataflow.setup_file",
        "SETUP",
        lambda job: os.path.basename(job.options.get("setup_file") or ""),
        ("", "setup.py"),
        given=WHEEL,
    ),
    row("dataflow.labels", {"team": "vision"}, option("labels"), (None, ["team=vision"])),
    row(
        "dataflow.job_name",
        "photos",
        lambda job: job.names,
        (["feedline-examine", "feedline-write"], ["photos-examine", "photos-write"]),
    ),
    row("dataflow.vcpu_hour_price", 0.05, lambda job: job.cost, lambda before, after: before is None and after > 0),
    row(
        "dataflow.beam_args", [*LOCAL, "--dataflow_kms_key=k"], option("dataflow_kms_key"), (None, "k"), first=(LOCAL,)
    ),
    row("kubeflow.image", "registry/feedline:2", images, ({IMAGE}, {"registry/feedline:2"}), first=(IMAGE,)),
    row(
        "kubeflow.pipeline_root", "gs://bucket/elsewhere", root, ("gs://bucket/work/artifacts", "gs://bucket/elsewhere")
    ),
    row("kubeflow.display_name", "Photos", lambda job: job["displayName"], ("feedline", "Photos")),
    row("kubeflow.baseline_dataset", "gs://bucket/before", imported, ([], ["gs://bucket/before"])),
    row("kubeflow.baseline_model", "gs://bucket/model", imported, ([], ["gs://bucket/model"])),
    row("kubeflow.cpus", 4.0, lambda job: limit(job, "cpuLimit"), (None, 4.0)),
    row("kubeflow.memory_gb", 16.0, lambda job: limit(job, "memoryLimit"), (None, 16.0)),
    row(
        "kubeflow.gpus",
        2,
        lambda job: int(limit(job, "accelerator")["count"]),
        (1, 2),
        first=(1,),
        given=GPU,
        same=lambda job: limit(job, "accelerator", "DatasetGate"),
    ),
    row(
        "kubeflow.gpu_type",
        "NVIDIA_TESLA_T4",
        lambda job: limit(job, "accelerator")["type"],
        ("nvidia.com/gpu", "NVIDIA_TESLA_T4"),
        first=("nvidia.com/gpu",),
        given={"kubeflow.gpus": 1},
    ),
    row("kubeflow.step_cpus", {"Trainer": 8.0}, lambda job: limit(job, "cpuLimit"), (None, 8.0)),
    row("kubeflow.step_memory_gb", {"Trainer": 64.0}, lambda job: limit(job, "memoryLimit"), (None, 64.0)),
    row(
        "kubeflow.step_gpus",
        {"DatasetGate": 1},
        lambda job: limit(job, "accelerator", "DatasetGate") is not None,
        (False, True),
        given={**GPU, "kubeflow.gpus": 1},
    ),
    row("kubeflow.disk_gb", 50, lambda job: "genericEphemeralVolume" in of_platform(job), (False, True)),
    row("kubeflow.retries", 5, retries, (2, 5)),
    row(
        "kubeflow.work_dir",
        "gs://bucket/unfinished",
        work_dirs,
        ({"gs://bucket/work/work"}, {"gs://bucket/unfinished"}),
    ),
    row("kubeflow.service_account", "me", lambda job: "service_account" in job["hint"], (False, True)),
    row("kubeflow.secrets", {"key": "/key"}, lambda job: "secretAsVolume" in of_platform(job), (False, True)),
    row("kubeflow.secret_env", {"TOKEN": "hub/token"}, lambda job: "secretAsEnv" in of_platform(job), (False, True)),
    row("airflow.schedule", "@daily", lambda dag: dag["schedule"], (None, "@daily")),
    row("airflow.retries", 5, lambda dag: dag["retries"], (2, 5)),
    row("airflow.retry_delay_s", 9.0, lambda dag: dag["retry_delay_s"], (60.0, 9.0)),
    row(
        "airflow.environment",
        "ENVIRONMENT",
        lambda dag: Path(dag["python"]).parts[-3:],
        (Path(sys.prefix, "bin", "python3").parts[-3:], ("environment", "bin", "python3")),
    ),
    row(
        "airflow.image",
        "registry/feedline:2",
        lambda dag: dag["pod"]["image"],
        (IMAGE, "registry/feedline:2"),
        first=(IMAGE,),
        given={"airflow.pod_template": "POD"},
    ),
    row(
        "airflow.pod_template",
        "OTHER_POD",
        lambda dag: dag["pod"]["pod_template_dict"]["metadata"]["name"],
        ("first", "second"),
        first=("POD",),
        given={"airflow.image": IMAGE},
    ),
]


def jars(cache: Path) -> None:
    """Puts job servers where those that were fetched before are."""
    for version in ("1.19", "1.20"):
        jar = cache / "feedline" / "jars" / os.path.basename(flink_job_server.published_jar(version))
        jar.parent.mkdir(parents=True, exist_ok=True)
        jar.write_bytes(b"jar")
        jar.with_name(f"{jar.name}.sha512").write_text(hashlib.sha512(b"jar").hexdigest())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that settings here name, under the name they name it by."""
    place = tmp_path_factory.mktemp("targets")
    program(place / "own-worker", "exit 0")
    (place / "own.jar").touch()
    (place / "own-1.0.tar.gz").touch()
    (place / "setup.py").touch()
    (place / "environment" / "bin").mkdir(parents=True)
    program(place / "environment" / "bin" / "feedline", "exit 0")
    for file, name in (("pod.yaml", "first"), ("other.yaml", "second")):
        (place / file).write_text(f"kind: Pod\nmetadata: {{name: {name}}}\n")
    overview = json.dumps({"flink-version": "1.19.3", "slots-total": 7}).encode()
    jars(place / "cache")
    with serving({"/overview": body(overview)}) as cluster, pytest.MonkeyPatch.context() as patch:
        (place / "url").write_text(cluster.url(""))
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        yield place


NAMED = {
    "JAR": "own.jar",
    "WORKER": "own-worker",
    "LOGS": "logs",
    "PACKAGE": "own-1.0.tar.gz",
    "SETUP": "setup.py",
    "ENVIRONMENT": "environment",
    "POD": "pod.yaml",
    "OTHER_POD": "other.yaml",
}


def section(settings: Mapping[str, Any], target: str, workplace: Path) -> dict[str, Any]:
    """Returns the section of a target, with places of this machine for the words in capitals."""
    places: dict[Any, str] = {name: str(workplace / file) for name, file in NAMED.items()}
    places["CLUSTER"] = (workplace / "url").read_text()
    found = {key.partition(".")[2]: value for key, value in settings.items() if key.startswith(f"{target}.")}
    return {name: places.get(value, value) if isinstance(value, str) else value for name, value in found.items()}


def run_flink(settings: Mapping[str, Any], workplace: Path) -> FlinkJob:
    """Sends a job, as `feedline ingest` would."""
    given = {"runner": "flink", "job_server_jar": str(workplace / "own.jar"), **section(settings, "flink", workplace)}
    if given.get("worker_pool") is None:
        given.setdefault("worker_command", str(program(workplace / "worker", "exit 0")))
    home = workplace / "java" / str(len(list(workplace.glob("java/*"))))
    with job_server(home) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(home))
        with pytest.raises(RuntimeError), parse_engine(None, [], given).open() as make, make() as pipeline:
            _ = pipeline | beam.Create([1])
    logs = workplace / "logs"
    return FlinkJob(
        runner=type(pipeline.runner).__name__,
        java=(home / "arguments").read_text().split("\n"),
        options=server.options,
        environments=server.environments,
        sent=server.sent,
        log_dir=os.listdir(logs) if logs.is_dir() and "log_dir" in given else [],
    )


def run_dataflow(settings: Mapping[str, Any], workplace: Path) -> DataflowJob:
    """Makes the jobs and does not send them."""
    usual = {**NEEDED, "beam_args": LOCAL, "sdk_container_image": IMAGE}
    engine = parse_engine(None, [], {"runner": "dataflow", **usual, **section(settings, "dataflow", workplace)})
    with engine.open() as make:
        jobs = [make() for _ in range(2)]
    for job, stage in zip(jobs, ("examining", "writing"), strict=True):
        job.stage = stage
        job.configure()
    options = [job.options.get_all_options(drop_default=True) for job in jobs]
    return DataflowJob(
        runner=type(jobs[0].runner).__name__,
        options=options[0],
        names=[found["job_name"] for found in options],
        cost=engine.estimate_resources(work()).values.get("cost"),
    )


def run_engine(settings: Mapping[str, Any], workplace: Path) -> str:
    """Returns the name of the runner of Beam that the section `engine` leads to."""
    runner = settings["engine.runner"]
    if runner == "flink":
        return run_flink({}, workplace).runner
    with parse_engine(None, [], {"runner": runner}).open() as make:
        return type(make().runner).__name__


def run_kubeflow_compiler(settings: Mapping[str, Any], workplace: Path) -> dict[str, Any]:
    """Returns the compiled file."""
    kubeflow = {"image": IMAGE, **section(settings, "kubeflow", workplace)}
    given = {"root": "gs://bucket/work", "ingest": {"source": "gs://bucket/photos"}, "kubeflow": kubeflow}
    hint = run_kubeflow.compile(given, str(workplace / "job.yaml"))
    platform = [*yaml.safe_load_all((workplace / "job.yaml").read_text()), {}][1]
    for name in ("disk_gb", "secrets", "secret_env"):  # Vertex AI has none, so the other format refuses them
        kubeflow.pop(name, None)
    run_kubeflow.compile(given, str(workplace / "job.json"))
    return {**json.loads((workplace / "job.json").read_text()), "platform": platform, "hint": hint}


def run_airflow_compiler(settings: Mapping[str, Any], workplace: Path) -> dict[str, Any]:
    """Returns the arguments that the compiled file makes its DAG with."""
    source = class_folders(workplace / "photos", 1)
    given = {"root": str(workplace / "work"), "ingest": {"source": str(source)}}
    airflow.compile({**given, "airflow": section(settings, "airflow", workplace)}, str(workplace / "dag.py"))
    last = ast.parse((workplace / "dag.py").read_text()).body[-1]
    assert isinstance(last, ast.Assign)
    assert isinstance(last.value, ast.Call)
    return {str(word.arg): ast.literal_eval(word.value) for word in last.value.keywords}


RUNS: dict[str, Callable[[Mapping[str, Any], Path], Any]] = {
    "engine": run_engine,
    "flink": run_flink,
    "dataflow": run_dataflow,
    "kubeflow": run_kubeflow_compiler,
    "airflow": run_airflow_compiler,
}


@pytest.fixture(scope="module")
def run(workplace: Path) -> Callable[[str, Mapping[str, Any]], Any]:
    """Takes a target and settings; what they led to is kept."""
    done: dict[str, Any] = {}

    def once(target: str, settings: Mapping[str, Any]) -> Any:
        name = json.dumps([target, settings], sort_keys=True)
        if name not in done:
            done[name] = RUNS[target](settings, workplace)
        return done[name]

    return once


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_setting_of_a_target_changes_what_the_target_gets(row: Row, run: Callable[[str, Mapping[str, Any]], Any]):
    target = row.setting.partition(".")[0]
    row.check(lambda settings: run(target, settings))
