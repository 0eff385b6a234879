"""Settings of Dataflow, what they become, and the graph of its jobs: all of it without a network."""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions, PipelineOptions, SetupOptions, WorkerOptions

from beam_jobs import ingest, stack
from beam_jobs.errors import FeedlineError, OptionError
from beam_jobs.options import LOCAL_BEAM_ARGS, ImageLimits, IngestOptions, PixelOptions
from beam_jobs.runners import cost_estimate, dataflow, dataflow_jobs
from beam_jobs.runners.cost_estimate import DataflowPool, Work
from beam_jobs.runners.dataflow import component_arguments, machine_cores
from beam_jobs.sources.image_reader import Reader
from beam_jobs.stages.dry_run import Listing, Sample, _work
from beam_jobs.stages.examine import ExamineTask
from beam_jobs.stages.transforms import ExamineBuckets, VerifyUnits, WriteShards
from beam_jobs.stages.write import WriteTask
from tests.beam_jobs.make_rows import sha
from tests.beam_jobs.runs import Recorder
from tests.doc_pages import text_of

NEEDED = {"project": "my-project-1", "region": "us-central1", "temp_location": "gs://bucket/tmp"}
WORK = "gs://my-bucket-of-photos/datasets/photos-2026/_work"
POOL = DataflowPool(region="us-central1", machine_type="n2-standard-4", cores=4, min_workers=0, max_workers=10)


@pytest.fixture
def no_network(monkeypatch):
    """Has every connection fail."""

    def refuse(*_):
        raise AssertionError("something asked the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def options(**values) -> dataflow.Options:
    return dataflow.Options(**{**NEEDED, **values})


def work(**values) -> Work:
    usual = {
        "images": 1_000_000,
        "read_bytes": 100_000_000_000,
        "written_bytes": 100_000_000_000,
        "buckets": 489,
        "shards": {"train": 704, "eval": 79},
        "core_seconds": 7000.0,
        "requests": 2_000_000,
        "remote": True,
    }
    return Work(**{**usual, **values})


def stages(work: str = WORK) -> list[beam.PTransform]:
    """Returns the jobs of an ingest, and that of `verify`."""
    reader = Reader(base="gs://my-bucket-of-photos/photos", max_bytes=1, work=work)
    examine = ExamineTask(reader=reader, limits=ImageLimits(), pixels=PixelOptions(), facts="all", threads=4)
    units = f"{work}/units/0123456789abcdef.jsonl"
    write = WriteShards(units, WriteTask(reader=reader, out=work[:-6]))
    return [ExamineBuckets(units, examine), write, VerifyUnits(work[:-6], f"{work}/reports", sha("0"), 0)]


def sent(stage: beam.PTransform, tmp_path, units: int = 0, **fields):
    """Returns a job as Beam's own runner would send it, up to the sending."""
    chosen = options(**fields)
    arguments = [*chosen.arguments(str(tmp_path)), "--dry_run=True"]
    pipeline = dataflow_jobs.Pipelines(arguments, "test", chosen.pool)()
    pipeline.units = units
    _ = pipeline | stage
    return pipeline.run()._result.job


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"project": "123456"}, "project is '123456'; it must be the id of a project"),
        ({"region": "us-central1-a"}, "which is a zone; name its region, us-central1"),
        ({"region": "Iowa"}, "region is 'Iowa'"),
        ({"temp_location": "gs://bucket"}, "temp_location is 'gs://bucket'; it must be a directory in a bucket"),
        ({"staging_location": "s3://b/x"}, "staging_location is 's3://b/x'"),
        ({"worker_machine_type": "large"}, "worker_machine_type is 'large'; name one"),
        ({"worker_machine_type": "n2-standard-0"}, "at least one whole core"),
        ({"num_workers": 11}, "num_workers is 11, above max_num_workers, 10"),
        ({"max_num_workers": 0}, "max_num_workers is 0"),
        ({"autoscaling_algorithm": "NONE"}, "num_workers is 0"),
        ({"autoscaling_algorithm": "FAST"}, "one of THROUGHPUT_BASED, NONE"),
        ({"vcpu_hour_price": -0.1}, "vcpu_hour_price is -0.1"),
        ({"disk_size_gb": 24}, "disk_size_gb is 24; it must be at least 25"),
        ({"service_account_email": "me"}, "NAME@my-project-1.iam.gserviceaccount.com"),
        ({"subnetwork": "default"}, "regions/us-central1/subnetworks/NAME"),
        ({"subnetwork": "regions/europe-west1/subnetworks/a"}, "is in europe-west1, the workers in us-central1"),
        ({"setup_file": "/nowhere/setup.py"}, "setup_file is '/nowhere/setup.py', which is not a file"),
        ({"setup_file": "pyproject.toml"}, "it must be the path of a setup.py"),
        ({"package": "feedline.zip"}, "it must be a wheel or a .tar.gz"),
        ({"package": "a.whl", "sdk_container_image": "x"}, "sdk_container_image and package exclude one another"),
        ({"labels": {"Team": "Vision"}}, "labels is 'Team=Vision'"),
        ({"job_name": "My Job"}, "job_name is 'My Job'"),
        ({"beam_args": ("--runner=FnApiRunner",)}, "beam_args contains '--runner=FnApiRunner'; remove it"),
        ({"beam_args": ("--machine_type=n1-standard-1",)}, "set worker_machine_type instead"),
        ({"beam_args": ("streaming",)}, "write arguments as --name=value"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused_in_one_line(values, problem):
    with pytest.raises(OptionError) as caught:
        options(**values)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_may_lie_on_this_machine():
    chosen = options(sdk_container_image="registry/feedline:1")
    chosen.check(IngestOptions(source="urls.csv", out="gs://b/out"))
    chosen.check(IngestOptions(source="urls.txt", source_kind="csv", out="gs://b/out"))


@pytest.mark.parametrize("given", ["", "package", "setup_file", "sdk_container_image"])
@pytest.mark.parametrize("name", [stack.LEGACY, stack.CURRENT])
def test_only_an_image_brings_the_legacy_stack_to_workers(monkeypatch, tmp_path, name, given):
    monkeypatch.setattr(stack, "name", lambda: name)
    path = tmp_path / ("setup.py" if given == "setup_file" else "feedline.whl")
    path.touch()
    is_refused = name == stack.LEGACY and given != "sdk_container_image"
    expected = pytest.raises(OptionError, match="sdk_container_image is not set; the legacy stack would put protobuf")
    with expected if is_refused else contextlib.nullcontext():
        options(**({given: str(path)} if given else {})).check(IngestOptions(source="gs://b/photos", out="gs://b/out"))


BEAM_ARGS = (
    "--runner=DataflowRunner",
    "--project=my-project-1",
    "--region=us-central1",
    "--temp_location=gs://bucket/a",
)


def test_components_of_a_pipeline_get_the_arguments_of_an_ingest(monkeypatch):
    monkeypatch.setattr(stack, "name", lambda: stack.CURRENT)
    given = (*BEAM_ARGS, "--num_workers=3", "--no_use_public_ips", "--labels=team=vision", "--dataflow_kms_key=k")
    found = PipelineOptions(component_arguments(given, "registry/feedline:1"))
    worker, cloud = found.view_as(WorkerOptions), found.view_as(GoogleCloudOptions)
    assert (worker.sdk_container_image, worker.num_workers, worker.max_num_workers) == ("registry/feedline:1", 3, 10)
    assert (worker.use_public_ips, cloud.labels, cloud.dataflow_kms_key) == (False, ["team=vision"], "k")
    assert found.view_as(SetupOptions).save_main_session is False
    aliases = ("--machine_type=n2-highmem-8", "--label=team=a", "--job_name=photos", "--use_public_ips=false")
    renamed = PipelineOptions(
        component_arguments((*BEAM_ARGS, *aliases, "--setup_file=setup.py"), "registry/feedline:1")
    )
    worker, cloud = renamed.view_as(WorkerOptions), renamed.view_as(GoogleCloudOptions)
    assert (worker.machine_type, worker.use_public_ips, worker.sdk_container_image) == ("n2-highmem-8", False, None)
    assert (cloud.labels, cloud.job_name) == (["team=a"], "photos")
    own = PipelineOptions(component_arguments((*BEAM_ARGS, "--sdk_container_image=own"), "registry/feedline:1"))
    assert own.view_as(WorkerOptions).sdk_container_image == "own"
    for other in (LOCAL_BEAM_ARGS, ("--runner=FlinkRunner", "--project=?", "--password", "x")):
        assert component_arguments(other, "") == list(other)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (BEAM_ARGS, "beam_args has no --sdk_container_image; workers of Dataflow run the components in an image"),
        (BEAM_ARGS[:-1], "beam_args.temp_location is missing"),
        ((*BEAM_ARGS, "--num_workers=many"), "beam_args.num_workers is the text 'many'; it must be a whole number"),
        ((*BEAM_ARGS, "--region=us-central1-a"), "which is a zone; name its region, us-central1"),
        ((*BEAM_ARGS, "--num_workers=["), r"beam_args contains '--num_workers=\[', which is not a YAML value"),
        ((*BEAM_ARGS, "--save_main_session"), "beam_args contains '--save_main_session'; remove it"),
        ((*BEAM_ARGS, "--setup_file=setup.py"), "sdk_container_image is not set; the legacy stack would put protobuf"),
    ],
)
def test_arguments_of_components_are_checked_before_a_run(monkeypatch, given, problem):
    monkeypatch.setattr(stack, "name", lambda: stack.LEGACY)
    with pytest.raises(OptionError, match=problem):
        component_arguments(given, "")


@pytest.mark.parametrize(
    ("units", "fields", "workers"),
    [(1, {}, 1), (5, {}, 2), (99, {}, 9), (999, {"max_num_workers": 300}, 250), (999, {"num_workers": 3}, 3)],
)
def test_a_job_begins_with_the_workers_that_its_units_can_use(tmp_path, units, fields, workers):
    job = sent(stages()[0], tmp_path, units, **fields)
    assert job.options.view_as(WorkerOptions).num_workers == workers
    assert ExamineBuckets("units", None, buckets=[None] * units).unit_count == units


@pytest.mark.parametrize(("name", "count"), [("n2d-highmem-16", 16), ("e2-custom-4-8192", 4)])
def test_the_name_of_a_machine_has_its_cores(name, count):
    assert machine_cores(name) == count


@pytest.mark.parametrize("stage", stages(), ids=["examine", "write", "verify"])
def test_jobs_are_small_and_hold_nothing_of_main(no_network, tmp_path, stage):
    job = sent(stage, tmp_path)
    graph = job.proto_pipeline
    assert graph.ByteSize() < 100_000
    assert len(job.json()) < 100_000
    found = dataflow_jobs.pickled_functions(graph)
    assert any(name.endswith(("/Examine", "/Write", "/Check")) for name in found)
    for code in found.values():
        assert "__main__" not in set(dataflow_jobs.pickled_words(code))


def test_the_graph_does_not_grow_with_the_units(photos, tmp_path):
    sizes = []
    for name, values in (("a", {}), ("b", {"bucket_images": 1, "shards": 6})):
        recorder = Recorder()
        ingest.run(IngestOptions(source=str(photos), out=str(tmp_path / name), **values), recorder)
        sizes.append([pipeline.to_runner_api().ByteSize() for pipeline in recorder.pipelines])
    # The code of a step is compressed, and the paths of the lists contain digests.
    assert all(abs(one - other) < 100 for one, other in zip(*sizes, strict=True))
    assert max(sizes[0]) < 100_000


def test_a_graph_that_is_too_large_says_what_makes_it_smaller(no_network, tmp_path, monkeypatch):
    monkeypatch.setattr(dataflow_jobs, "MAX_BYTES", 5_000)
    with pytest.raises(FeedlineError, match=r"Dataflow allows 0; it contains the options and class names: reduce them"):
        sent(stages()[1], tmp_path)


def test_code_of_main_is_refused(no_network, tmp_path):
    step = type("Step", (beam.DoFn,), {"__module__": "__main__", "process": lambda _, element: [element]})
    with pytest.raises(FeedlineError, match="contains code of __main__, which no worker can import"):
        sent("Make" >> beam.Create([1]) | "Step" >> beam.ParDo(step()), tmp_path)


@pytest.mark.parametrize("stage", [0, 1])
def test_work_files_on_this_machine_are_refused(no_network, tmp_path, stage):
    with pytest.raises(FeedlineError, match=r"/data/_work/.* is on this machine, where no worker can read it"):
        sent(stages(work="/data/_work")[stage], tmp_path)


def test_a_bill_adds_up():
    found = cost_estimate.estimate_dataflow_resources(work(core_seconds=36_000.0), POOL, 0.05)
    seconds = 36_000 / 0.7 / 40 + 600
    assert found.values["workers"] == 10
    assert found.values["seconds"] == pytest.approx(seconds, rel=0.01)
    hours = 10 * seconds / 3600
    assert found.values["worker_hours"] == pytest.approx(hours, rel=0.01)
    assert found.values["vcpu_hours"] == pytest.approx(4 * hours, rel=0.01)
    assert found.values["read_requests"] == 2_000_000 + 28 + 489 * 8 + 783 * 13
    listed = 1000 + 0.5 * 4 * seconds  # the work of 783 shards is 3,915 files
    assert found.values["write_requests"] == pytest.approx(44 + 489 * 4 + 783 * 5 + 0.3 * seconds + listed, abs=1)
    assert found.values["cost"] == pytest.approx(4 * hours * 0.05, rel=0.01)
    assert found.lines["requests"] == "2,000,000 to read, 11,000 to write, copy and list"
    assert found.lines["cost"] == "1 at 0.05 a vCPU hour, without requests and storage"


def test_each_job_is_estimated_with_the_workers_that_it_begins_with():
    found = options().estimate_resources(work(buckets=3, shards={"train": 9}))
    assert found.lines["workers"].startswith("1 to examine and 3 to write, at most 10: ")
    assert found.values["worker_hours"] == pytest.approx((7000 / 0.7 / 4 + 4 * 300) / 3600, rel=0.01)
    examining = 0.9 * (7000 - 2600) + 1300  # most of the computing, and half of 2,600 s of reading
    seconds = (examining + (7000 - examining) / 3) / 0.7 / 4 + 600
    assert found.values["seconds"] == pytest.approx(seconds, rel=0.01)


@pytest.mark.parametrize(("images", "most"), [(100_000, 10), (1_000_000, 10), (10_000_000, 50)])
def test_the_table_of_the_page_is_what_a_dry_run_says(images, most):
    of_images = {"images": images, "rejects": 0, "bytes": 56_000 * images}
    place = SimpleNamespace(uri="gs://bucket/photos/a.jpg", base="gs://bucket/photos")
    listing = Listing(**of_images, sized=images, hidden=0, hidden_names=(), candidates=(place,))
    sample = Sample(images=48, rejected=0, bytes=56_000, stored=56_000, megapixels=cost_estimate.SMALL_MEGAPIXELS)
    ingested = IngestOptions(source=place.base, out="gs://bucket/dataset")
    lines = options(max_num_workers=most).estimate_resources(_work(ingested, listing, sample, place)).lines
    workers, time, paid, reads = (lines[name].split() for name in ("workers", "time", "paid", "requests"))
    row = (f"{images:,}", str(most), f"{workers[0]}, {workers[4]}", f"{time[0]} min", paid[4], reads[0])
    assert f"| {' | '.join(row)} |" in text_of("dataflow")
