"""A whole ingest through the engine of Dataflow: staged in a bucket, run by workers that hold nothing but the wheel."""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import subprocess
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator
from google.auth.credentials import CredentialsWithRegionalAccessBoundary

from beam_jobs import storage
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.ingest import run
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from beam_jobs.runners import LocalEngine, cost_estimate, dataflow, dataflow_jobs
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages import dry_run, resume, transforms
from beam_jobs.stages.examine import ExamineTask
from beam_jobs.stages.transforms import ExamineBuckets, VerifyUnits, WriteShards
from beam_jobs.stages.verify_job import verify_on_runner
from beam_jobs.stages.write import WriteTask
from pipeline.cli import dataflow_template
from tests.beam_jobs.runs import remote_shards, shards_under
from tests.command import feedline
from tests.engines import clean_venv, dataflow_service
from tests.engines.flink_processes import wait_until
from tests.stores import emulators
from tests.stores.tap import Asked

pytestmark = pytest.mark.cluster

IMAGE = {"sdk_container_image": "registry/feedline:1"}  # the command refuses the wheel of the legacy stack
PROJECT = {"project": "my-project-1", "region": "us-central1"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> str:
    return dataflow.build_wheel(str(tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def worker_python(wheel, tmp_path_factory) -> str:
    return clean_venv.make(tmp_path_factory.mktemp("worker") / "venv", wheel)


@pytest.fixture
def bucket(monkeypatch, tmp_path) -> Iterator[emulators.Bucket]:
    pytest.importorskip("gcp_storage_emulator", reason="the emulator of Google Storage is not installed")
    with emulators.gcs(monkeypatch, tmp_path) as made:
        yield made


@pytest.fixture
def service(worker_python, tmp_path, monkeypatch) -> Iterator[dataflow_service.Service]:
    # Beam takes no address of the service that has a port in it.
    monkeypatch.setattr(PipelineOptionsValidator, "validate_endpoint_url", lambda *_: True)
    # And its credentials ask Google where they may be used, in the background.
    monkeypatch.setattr(
        CredentialsWithRegionalAccessBoundary, "_is_regional_access_boundary_lookup_required", lambda _: False
    )
    with dataflow_service.serving(tmp_path, worker_python) as made:
        yield made


def engine(bucket, service, **more) -> dataflow.Options:
    arguments = (f"--dataflow_endpoint={service.url}",)
    return dataflow.Options(**PROJECT, temp_location=f"{bucket.url}/tmp", beam_args=arguments, **more)


def options(source: str, out: str, **more) -> IngestOptions:
    return IngestOptions(**{"source": source, "out": out, "splits": {"train": 0.7, "eval": 0.3}, "shards": 2, **more})


def staged(job) -> list[str]:
    """Returns the addresses of the packages that the workers of a job are to install."""
    pool = job.description["environment"]["workerPools"][0]
    return [package["location"].replace("storage.googleapis.com", "gs:/") for package in pool["packages"]]


def payloads(directory: Path) -> list[str]:
    """Writes the pickled code of both jobs into files."""
    from apache_beam import Pipeline
    from apache_beam.options.pipeline_options import PipelineOptions

    reader = Reader(base="gs://photos/all", max_bytes=1, work="gs://photos/out/_work")
    examine = ExamineTask(reader=reader, limits=ImageLimits(), pixels=PixelOptions(), facts="all", threads=1)
    write = WriteTask(reader=reader, out="gs://photos/out")
    files = []
    stages = (
        ExamineBuckets("gs://photos/list", examine),
        WriteShards("gs://photos/list", write),
        VerifyUnits("gs://photos/out", "gs://photos/work", "digest", 1),
    )
    for stage in stages:
        pipeline = Pipeline(options=PipelineOptions(["--runner=FnApiRunner", "--pickle_library=cloudpickle"]))
        _ = pipeline | stage
        for code in dataflow_jobs.pickled_functions(pipeline.to_runner_api()).values():
            files.append(directory / f"{len(files)}.pickle")
            files[-1].write_bytes(code)
    return [str(path) for path in files]


def test_every_step_loads_where_only_the_wheel_is_installed(worker_python, tmp_path):
    command = [worker_python, "-I", "-W", "ignore", str(dataflow_service.WORKER), "load", *payloads(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    steps = {f"beam_jobs.stages.transforms.{name}" for name in ("_Examine", "_Write", "_Check")}
    assert steps <= set(found["steps"].values())
    assert found["from"].startswith(str(Path(worker_python).parent.parent))
    assert not found["tfx"]


def test_workers_write_the_bytes_that_this_process_writes(photos, dataset, bucket, service):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    chosen = engine(bucket, service, labels={"team": "vision"}, num_workers=2, use_public_ips=False)
    with chosen.open() as make_pipeline:
        run(options(source, out), make_pipeline)
    assert remote_shards(out) == shards_under(dataset)
    with chosen.open() as make_pipeline:
        result = verify_on_runner(out, make_pipeline, f"{bucket.url}/reports")
    assert (result.records, result.problems) == (24, [])
    assert not list(storage.list_objects(f"{bucket.url}/reports"))
    names = [job.description["name"] for job in service.jobs]
    assert names == ["feedline-examine", "feedline-write", "feedline-verify"]
    for job in service.jobs:
        pool = job.description["environment"]["workerPools"][0]
        assert pool["numWorkers"] == 2
        assert pool["autoscalingSettings"]["maxNumWorkers"] == 10
        assert pool["machineType"] == "n2-standard-4"
        assert pool["ipConfiguration"] in ("WORKER_IP_PRIVATE", 2)  # newer clients send the number of the name
        assert job.description["labels"] == {"team": "vision"}
        (package,) = [path for path in staged(job) if path.endswith(".whl")]
        code = zipfile.ZipFile(io.BytesIO(storage.read_bytes(package))).read("beam_jobs/stages/transforms.py")
        assert code == Path(transforms.__file__).read_bytes()
        assert not any("main_session" in path for path in staged(job))


@pytest.mark.parametrize(("bucket_images", "shards"), [(12, 4), (2, 1)])
def test_an_ingest_asks_a_slow_store_as_often_as_the_dry_run_says_and_copies_only_what_is_large(
    photos, bucket, bucket_images, shards
):
    """A copy costs requests, and what is deleted is kept and paid for a week where a bucket has soft deletion."""
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    chosen = options(source, out, bucket_images=bucket_images, shards=shards)
    work = dry_run.estimate(chosen, LocalEngine()).work
    bucket.tap.asked.clear()
    bucket.tap.sent.clear()
    bucket.tap.refuse = lambda _: time.sleep(0.1) or 0
    start = time.monotonic()
    run(chosen)
    reads, writes = cost_estimate.store_requests(work, time.monotonic() - start, on_workers=False)
    methods = Counter("POST" if "prefix=" in asked.path else asked.method for asked in bucket.tap.asked)
    assert methods["GET"] == pytest.approx(reads, abs=6)
    assert methods["POST"] == pytest.approx(writes, abs=6)
    assert sum(size for path, size in bucket.tap.sent.items() if "/o/photos/" in path) == 2 * work.read_bytes
    pattern = re.compile(r"/(?:rewriteTo|copyTo)/b/[^/]+/o/out/([^?]+)")
    copied = [found[1] for asked in bucket.tap.asked if (found := pattern.search(asked.path))]
    assert Counter(re.sub(r"\d+", "N", name) for name in copied) == {
        "_work/feedline.json": 1,  # finds out about the right to delete
        "_work/rejects.parquet": 1,
        "rejects.parquet": 1,
        "Split-train/data-N-of-N.tfrecord": shards,
        "Split-eval/data-N-of-N.tfrecord": shards,
        "images/part-train-N.parquet": shards,
        "images/part-eval-N.parquet": shards,
    }
    names = [asked.path.partition("?")[0] for asked in bucket.tap.asked if asked.method == "GET"]
    reads = Counter(name for name in names if "/photos/" in name)
    assert len(reads) == len(list(photos.rglob("*.*")))
    assert set(reads.values()) == {2}  # one request examines an image, and one writes it


# What `service` does in this process, in the processes of the command that a worker starts.
PATCHED = """
import sys
if "ingest" in sys.orig_argv:
    from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator as Validator
    from google.auth.credentials import CredentialsWithRegionalAccessBoundary as Credentials
    Validator.validate_endpoint_url = lambda *_: True
    Credentials._is_regional_access_boundary_lookup_required = lambda _: False
"""


@pytest.fixture
def patched_commands(worker_python) -> Iterator[None]:
    (packages,) = Path(worker_python).parent.parent.glob("lib/python*/site-packages")
    hook = packages / "sitecustomize.py"
    hook.write_text(PATCHED)
    yield
    hook.unlink()


def launched(template: str, service) -> dataflow_service.Job:
    """Sends the job of a template, as the service itself does, and waits for its end."""
    url = f"{service.url}v1b3/projects/my-project-1/locations/us-central1/jobs"
    with urlopen(Request(url, data=storage.read_bytes(template), method="POST"), timeout=30):
        job = service.jobs[0]
    wait_until(lambda: job.state != "JOB_STATE_RUNNING", 240, lambda: job.log)
    return job


@pytest.mark.usefixtures("patched_commands")
def test_a_template_runs_the_whole_ingest_on_workers(photos, dataset, bucket, service):
    source, out, config = bucket.put_tree("photos", photos), f"{bucket.url}/out", f"{bucket.url}/pipeline.yaml"
    settings = {"splits": {"train": 0.7, "eval": 0.3}, "shards": 2}
    endpoint = f"--dataflow_endpoint={service.url}"
    storage.write_bytes(config, json.dumps({"ingest": settings, "engine": {"beam_args": [endpoint], **IMAGE}}).encode())
    parameters = [
        f"--source={source}",
        f"--out={out}",
        f"--config={config}",
        "--arguments=--runner-option num_workers=2",
    ]
    project = [f"--{name}={value}" for name, value in PROJECT.items()]
    template = f"{bucket.url}/template"
    made = [*project, f"--temp_location={bucket.url}/tmp", "--job_name=photos", f"--template_location={template}"]
    dataflow_template.launch([*parameters, *made])
    assert not service.jobs
    job = launched(template, service)
    assert job.state == "JOB_STATE_DONE", job.log
    names = [job.description["name"] for job in service.jobs]
    workers = [job.description["environment"]["workerPools"][0]["numWorkers"] for job in service.jobs]
    assert (names, workers) == (["photos", "photos-examine", "photos-write"], [1, 2, 2])
    assert remote_shards(out) == shards_under(dataset)


@pytest.mark.parametrize("cause", ["Root cause: SDK disconnect", r"OSError: \[Errno 5\] .* 'gs://.*/units/\w+\.jsonl'"])
def test_a_job_that_fails_is_told_in_one_line_with_the_place_of_its_logs(photos, bucket, service, cause):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    if cause.startswith("Root"):
        service.python = "/bin/false"
    bucket.tap.refuse = lambda asked: 403 * ("units" in asked.path and "alt=media" in asked.path)
    with engine(bucket, service).open() as make_pipeline, pytest.raises(FeedlineError) as caught:
        run(options(source, out), make_pipeline)
    text = str(caught.value)
    assert re.match(f"a job on Dataflow failed: {cause}; its logs are at https://", text)
    assert service.jobs[0].id in text
    assert "\n" not in text


@pytest.fixture
def interruptible():
    """SIGINT counts in this process; what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def interrupted_at_the_first_request(service) -> Iterator[None]:
    def interrupt():
        wait_until(lambda: service.jobs, 60)
        service.jobs[0].watched.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # as Ctrl-C does, it ends a sleep

    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    yield
    thread.join(60)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_stops_the_job_that_would_go_on_and_be_paid_for(photos, bucket, service):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    service.freezes = True  # a job that ends by itself meanwhile would need no stop
    interrupted = interrupted_at_the_first_request(service)
    with engine(bucket, service).open() as make_pipeline, interrupted, pytest.raises(KeyboardInterrupt):
        run(options(source, out), make_pipeline)
    assert [job.state for job in service.jobs] == ["JOB_STATE_CANCELLED"]
    assert not storage.exists(f"{out}/_work/job.json")


@pytest.mark.usefixtures("interruptible")
def test_a_job_that_was_left_is_followed_by_the_same_command_and_respected_by_others(photos, dataset, bucket, service):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    service.freezes = True
    asked: list[str] = []

    def leave(text: str) -> bool:
        asked.append(text)
        return True

    chosen = engine(bucket, service)
    with (
        chosen.open() as make_pipeline,
        interrupted_at_the_first_request(service),
        pytest.raises(KeyboardInterrupt, match="google.com.* continues; run the same command to reattach to it"),
    ):
        run(options(source, out), make_pipeline, leave=leave)
    [job] = service.jobs
    assert asked == [f"the job on Dataflow at https://console.cloud.google.com/dataflow/jobs/us-central1/{job.id}"]
    assert job.state == "JOB_STATE_RUNNING"

    others = pytest.raises(
        OptionError, match=f"{job.id} belongs to an ingest with other options; repeat that command, or"
    )
    with chosen.open() as make_pipeline, others:
        run(options(source, out, seed=7), make_pipeline)
    with pytest.raises(OptionError, match=f"{job.id} of an earlier .* run; use that command's runner, or"):
        run(options(source, out))

    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("reattached"):
            service.freezes = False
            job.thaw()

    with chosen.open() as make_pipeline:
        run(options(source, out), make_pipeline, say)
    assert lines[0] == f"reattached to {asked[0]}"
    names = [job.description["name"] for job in service.jobs]
    assert names == ["feedline-examine", "feedline-examine", "feedline-write"]
    assert all(job.state == "JOB_STATE_DONE" for job in service.jobs)
    assert remote_shards(out) == shards_under(dataset)


def test_the_same_command_follows_the_job_of_one_that_still_runs_and_ends_with_it(photos, bucket, service):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    service.freezes = True
    lines: list[str] = []

    def refuse(asked: Asked) -> int:
        """Answers as Google does to a condition that the emulator knows nothing of."""
        conditional = "ifGenerationMatch=0" in asked.path and asked.path.endswith("/.feedline-lock")
        return 412 * (conditional and storage.exists(f"{out}/.feedline-lock"))

    bucket.tap.refuse = refuse

    def say(line: str) -> None:
        lines.append(line)
        if line.startswith("reattached"):
            service.freezes = False
            service.jobs[0].thaw()

    with ThreadPoolExecutor(1) as threads, engine(bucket, service).open() as make_pipeline:
        first = threads.submit(run, options(source, out), make_pipeline)
        try:
            wait_until(lambda: storage.exists(f"{out}/_work/job.json"), 60)
            with pytest.raises(OptionError, match=f"{out} is in use by another ingest: process"):
                run(options(source, out, seed=7), make_pipeline)
            second = run(options(source, out), make_pipeline, say)
            assert second == first.result()
        finally:
            for job in service.jobs:  # a frozen one would be waited for without an end
                job.stop()
    assert lines[0].startswith(f"waiting   for another process with the same command: {out} is in use by another ")
    assert lines[1].startswith("reattached to the job on Dataflow at https://")
    assert [job.description["name"] for job in service.jobs] == ["feedline-examine", "feedline-write"]


def test_what_no_worker_can_read_is_tried_in_two_more_jobs(photos, bucket, service, monkeypatch):
    monkeypatch.setattr(resume, "WAITS_S", (0.0, 0.0))
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    bucket.tap.refuse = lambda asked: 403 * ("photos/china" in asked.path and "alt=media" in asked.path)
    with engine(bucket, service).open() as make_pipeline, pytest.raises(FeedlineError, match="could not be read"):
        run(options(source, out), make_pipeline)
    assert [job.description["name"] for job in service.jobs] == ["feedline-examine"] * 3


def test_a_refusal_of_the_service_says_what_to_do(photos, bucket, service, capfd):
    source, out = bucket.put_tree("photos", photos), f"{bucket.url}/out"
    service.refusal = (403, "Dataflow API has not been used in project my-project-1 before or it is disabled.")
    with engine(bucket, service).open() as make_pipeline, pytest.raises(FeedlineError) as caught:
        run(options(source, out), make_pipeline)
    assert "disabled. (403); enable the API with `gcloud services enable" in str(caught.value)
    assert "Traceback" not in capfd.readouterr().err


def test_a_dry_run_estimates_and_writes_nothing(photos, bucket):
    source = bucket.put_tree("photos", photos)
    before = bucket.names()
    settings = [f"{key}={value}" for key, value in {**PROJECT, **IMAGE, "temp_location": f"{bucket.url}/tmp"}.items()]
    chosen = [f"--runner-option={setting}" for setting in (*settings, "vcpu_hour_price=0.5")]
    done = feedline(
        "ingest", source, "--out", f"{bucket.url}/out", "--dry-run", "--json", "--runner", "dataflow", *chosen
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["work"]["images"], found["work"]["requests"]) == (24, 48)
    assert found["estimate"]["cost"] == pytest.approx(0.5 * found["estimate"]["vcpu_hours"], rel=0.01)
    assert bucket.names() == before


def test_credentials_are_asked_for_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    chosen = dataflow.Options(**PROJECT, temp_location="gs://bucket/tmp")
    with pytest.raises(OptionError, match="gcloud auth application-default login"), chosen.open():
        pass
