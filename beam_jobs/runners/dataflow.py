"""Google Cloud Dataflow: the two jobs of an ingest run on machines that the service starts and stops.

The scan, the plan and the publishing happen where the command runs; the workers read images and write shards. Source
and output lie where both can reach them, in buckets. The settings are checked before a request is sent.

The workers get this very code: a wheel of the installed package, a `setup.py`, or an image that holds it. The wheel is
packed file by file, so it needs no checkout, no build tool and no network; its direct dependencies are pinned to the
versions that are installed here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from packaging.requirements import Requirement
from pydantic.dataclasses import dataclass

from beam_jobs import stack, storage
from beam_jobs.common import settings
from beam_jobs.common.settings import STRICT, Count, NotNegative, OneOf, Positive
from beam_jobs.errors import OptionError
from beam_jobs.options import TABLE_KINDS, IngestOptions
from beam_jobs.runners import cost_estimate
from beam_jobs.runners.cost_estimate import Bill, Work

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline


ALGORITHMS = ("THROUGHPUT_BASED", "NONE")
LEAST_DISK_GB = 25
_PROJECT = re.compile(r"(?:[a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][-_a-z0-9.]+[a-z0-9]/.+")
_JOB_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")
_SUBNETWORK = re.compile(r"(?:https://\S+/)?regions/(?P<region>[-a-z0-9]+)/subnetworks/[-a-z0-9]+")
# Arguments of Beam that are settings here under another name, or that would undo what is promised of every job.
_TAKEN = {
    "machine_type": "worker_machine_type",
    "label": "labels",
    "extra_package": "package",
    "extra_packages": "package",
    "no_use_public_ips": "use_public_ips",
    **dict.fromkeys(("runner", "save_main_session", "streaming", "dry_run"), ""),
}


def check_project(value: str) -> None:
    """Raises `OptionError` unless the value can be the id of a project."""
    _match("project", value, _PROJECT, "the id of a project (not its number or title), as my-project-1")


def check_region(value: str) -> None:
    """Raises `OptionError` unless the value can be a region."""
    outer, _, last = value.rpartition("-")
    if len(last) == 1 and _REGION.fullmatch(outer):
        raise OptionError(f"region is {value!r}, which is a zone; name its region, {outer}")
    _match("region", value, _REGION, "a region, as us-central1")


def check_bucket_path(name: str, value: str) -> None:
    """Raises `OptionError` unless the value is a directory in a bucket of Google Storage."""
    _match(name, value, _BUCKET_PATH, "a directory in a bucket, as gs://my-bucket/tmp")


def check_names(job_name: str, labels: Mapping[str, str]) -> None:
    """Raises `OptionError` for a name of jobs or a label that the service does not take."""
    _match("job_name", job_name, _JOB_NAME, "up to 50 of a-z, 0-9 and -, beginning with a letter")
    for key, value in labels.items():
        _match("labels", f"{key}={value}", _LABEL, "up to 63 of a-z, 0-9, - and _ each, as {team: vision}")


def check_workers(algorithm: str, least: int, most: int, disk_gb: int) -> None:
    """Raises `OptionError` for numbers of machines or sizes of their disks that cannot be."""
    if least > most:
        raise OptionError(f"num_workers is {least}, more than max_num_workers, {most}; raise that one")
    if algorithm == "NONE" and not least:
        raise OptionError("autoscaling_algorithm is 'NONE' and num_workers is 0; say how many workers there should be")
    if 0 < disk_gb < LEAST_DISK_GB:
        raise OptionError(f"disk_size_gb is {disk_gb}; system and package need {LEAST_DISK_GB}, 0 is the default")


def check_network(account: str, subnetwork: str, region: str, project: str) -> None:
    """Raises `OptionError` for an account or a subnetwork that cannot be."""
    if account and account.count("@") != 1:
        raise OptionError(f"service_account_email is {account!r}; write it as NAME@{project}.iam.gserviceaccount.com")
    if not subnetwork:
        return
    found = _SUBNETWORK.fullmatch(subnetwork)
    if not found:
        raise OptionError(f"subnetwork is {subnetwork!r}; write it as regions/{region}/subnetworks/NAME")
    if found["region"] != region:
        raise OptionError(f"subnetwork lies in {found['region']}, the workers in {region}; name one of that region")


def check_code(*, sdk_container_image: str, package: str, setup_file: str) -> None:
    """Raises `OptionError` unless the workers get the code in one way, and what is named is there."""
    ways = {"sdk_container_image": sdk_container_image, "package": package, "setup_file": setup_file}
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise OptionError(f"{' and '.join(given)} exclude one another: the workers get the code in one way; give one")
    if setup_file and os.path.basename(setup_file) != "setup.py":
        raise OptionError(f"setup_file is {setup_file!r}; it must be the path of a setup.py")
    if package and not package.endswith((".whl", ".tar.gz")):
        raise OptionError(f"package is {package!r}; it must be a wheel or a .tar.gz, as `pip wheel` makes them")
    for name, path in (("setup_file", setup_file), ("package", package)):
        if path and not os.path.isfile(path):
            raise OptionError(f"{name} is {path!r}, which is not a file")


def check_argument(text: str, settings: Collection[str]) -> None:
    """Raises `OptionError` unless the text is an argument of Beam that is not a setting of the engine too."""
    if not text.startswith("--"):
        raise OptionError(f"beam_args holds {text!r}; write arguments as --name=value")
    name = text[2:].partition("=")[0]
    ours = name if name in settings else _TAKEN.get(name)
    if ours is not None:
        raise OptionError(f"beam_args holds {text!r}; {f'set {ours} instead' if ours else 'the engine decides that'}")


def check_reachable(ingest: IngestOptions) -> None:
    """Raises `OptionError` for a source or an output that workers cannot reach."""
    if not ingest.out.startswith("gs://"):
        raise OptionError(f"--out is {ingest.out!r}; workers of Dataflow write to a bucket, as gs://my-bucket/dataset")
    ends = tuple(f".{kind}" for kind in TABLE_KINDS)
    kind = ingest.source_kind
    # A table may lie here: the workers only read the images that it names.
    if kind in TABLE_KINDS or (kind == "auto" and ingest.source.lower().endswith(ends)):
        return
    if not storage.is_remote(ingest.source):
        raise OptionError(
            f"the source {ingest.source!r} lies on this machine, where no worker of Dataflow reads it; copy it with "
            "`gcloud storage cp --recursive` and give its gs:// address"
        )


def check_packed_clients(ingest: IngestOptions) -> None:
    """Raises `OptionError` for a source in S3, where workers install what is packed here: that leaves out extras."""
    if ingest.source.startswith("s3://"):
        raise OptionError(
            f"the source {ingest.source!r} lies in S3, which workers cannot read with what they install by default; "
            "set sdk_container_image to an image built with --build-arg EXTRAS=gcp,aws"
        )


def _match(name: str, value: str, pattern: re.Pattern[str], wanted: str) -> None:
    if not pattern.fullmatch(value):
        raise OptionError(f"{name} is {value!r}; it must be {wanted}")


_MACHINE_NAME = re.compile(r"[a-z]\d[a-z]?-(?:standard|highmem|highcpu)-(?P<cores>\d+)")
_CUSTOM_MACHINE = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cores>\d+)-\d+(?:-ext)?")


def cores_of(name: str) -> int:
    """Returns the virtual cores of the machine type that a name stands for.

    Raises:
      OptionError: it is no such name.
    """
    found = _CUSTOM_MACHINE.fullmatch(name) or _MACHINE_NAME.fullmatch(name)
    if not found or not int(found["cores"]):
        raise OptionError(
            f"worker_machine_type is {name!r}; name one of Compute Engine with at least one whole core, such as "
            "n2-standard-4, n2-highmem-8 or custom-4-16384"
        )
    return int(found["cores"])


_DISTRIBUTION = "feedline"
_PACKAGES = ("beam_jobs", "components", "pipeline", "trainer")
_LEFT_OUT = ("Provides-Extra", "License-File", "Dynamic")  # of no use in a worker, or about files that are not in it
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that zip knows: equal code is an equal file


def build_wheel(directory: str) -> str:
    """Packs the installed package into a wheel, byte for byte the same for the same code.

    Args:
      directory: where to put it.

    Returns:
      the path of the wheel.
    """
    version = metadata.version(_DISTRIBUTION)
    info = f"{_DISTRIBUTION}-{version}.dist-info"
    path = os.path.join(directory, f"{_DISTRIBUTION}-{version}-py3-none-any.whl")
    files = dict(_wheel_sources())
    files[f"{info}/METADATA"] = _wheel_metadata().encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: feedline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/top_level.txt"] = "".join(f"{name}\n" for name in _PACKAGES).encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nfeedline = pipeline.entry:main\n"
    files[f"{info}/RECORD"] = _wheel_record(files, f"{info}/RECORD").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return path


def pinned_requirements() -> list[str]:
    """Returns the direct dependencies of the package, fixed to what is installed here; extras are left out."""
    found = []
    for text in metadata.requires(_DISTRIBUTION) or []:
        asked = Requirement(text)
        if asked.marker is None or asked.marker.evaluate({"extra": ""}):  # workers have the Python of this process
            extras = f"[{','.join(sorted(asked.extras))}]" if asked.extras else ""
            found.append(f"{asked.name}{extras}=={metadata.version(asked.name)}")
    return found


def _wheel_metadata() -> str:
    known = metadata.metadata(_DISTRIBUTION)
    names = [name for name in dict.fromkeys(known) if name not in (*_LEFT_OUT, "Requires-Dist", "Description")]
    kept = [(name, value) for name in names for value in known.get_all(name) or []]
    kept += [("Requires-Dist", requirement) for requirement in pinned_requirements()]
    return "".join(f"{name}: {value}\n" for name, value in kept)


def _wheel_sources() -> Iterator[tuple[str, bytes]]:
    """Yields name in the wheel and content of every file of the packages."""
    root = Path(__file__).parent.parent.parent
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path.read_bytes()


def _wheel_record(files: dict[str, bytes], own_name: str) -> str:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{own_name},,\n"


_JOBS = ("examine", "write")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(settings.Options):
    """Where the jobs run, on what, and how the code gets there. 0 and empty leave a choice to the service.

    Attributes:
      project: id of the project that owns the jobs and pays for them.
      region: where the workers run; put the buckets there too, or every image is paid for as traffic between regions.
      temp_location: `gs://BUCKET/DIR` of temporary files.
      staging_location: `gs://BUCKET/DIR` that the code is staged in; `temp_location` when empty.
      worker_machine_type: Compute Engine type of a worker. A process a core holds TensorFlow and 32 images at most.
      num_workers: workers to begin with.
      max_num_workers: workers at most. The service would go to hundreds; this is a limit on the bill.
      autoscaling_algorithm: `THROUGHPUT_BASED`, or `NONE` for exactly `num_workers`.
      disk_size_gb: disk of a worker. It holds the operating system and the image; shards stream through.
      service_account_email: account that the workers act as.
      subnetwork: `regions/REGION/subnetworks/NAME`.
      use_public_ips: whether workers have public addresses; without them the subnetwork needs Private Google Access.
      sdk_container_image: image that the workers start, with Feedline in it; see `Dockerfile`.
      package: wheel or source archive of Feedline that the workers install instead of one of the installed package.
      setup_file: `setup.py` of a checkout that the workers install instead.
      labels: labels of the jobs.
      job_name: the jobs are called NAME-examine and NAME-write.
      vcpu_hour_price: what you pay for a vCPU hour of a worker, its memory and disk included, in any currency;
        `--dry-run` then states a cost. 0 is no price.
      beam_args: further arguments for Beam, as `--dataflow_kms_key=...`.

    Raises:
      OptionError: a value cannot be right; the message names it and what is allowed.
    """

    project: str
    region: str
    temp_location: str
    staging_location: str = ""
    worker_machine_type: str = "n2-standard-4"
    num_workers: Count = 0
    max_num_workers: Positive = 10
    autoscaling_algorithm: Annotated[str, OneOf(ALGORITHMS)] = "THROUGHPUT_BASED"
    disk_size_gb: Count = 0
    service_account_email: str = ""
    subnetwork: str = ""
    use_public_ips: bool = True
    sdk_container_image: str = ""
    package: str = ""
    setup_file: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    job_name: str = "feedline"
    vcpu_hour_price: NotNegative = 0.0
    beam_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_project(self.project)
        check_region(self.region)
        check_bucket_path("temp_location", self.temp_location)
        if self.staging_location:
            check_bucket_path("staging_location", self.staging_location)
        check_names(self.job_name, self.labels)
        cores_of(self.worker_machine_type)
        check_workers(self.autoscaling_algorithm, self.num_workers, self.max_num_workers, self.disk_size_gb)
        check_network(self.service_account_email, self.subnetwork, self.region, self.project)
        check_code(sdk_container_image=self.sdk_container_image, package=self.package, setup_file=self.setup_file)
        for argument in self.beam_args:
            check_argument(argument, settings.fields(Options))

    @property
    def worker_cores(self) -> int:
        """Virtual cores of a worker."""
        return cores_of(self.worker_machine_type)

    def check(self, ingest: IngestOptions) -> None:
        """Checks that the workers can reach what an ingest reads and writes.

        Raises:
          OptionError: source or output lies on the machine that the command runs on, or in a store that the workers
            have no client of.
        """
        check_reachable(ingest)
        if not (self.sdk_container_image or self.package or self.setup_file):
            check_packed_clients(ingest)

    def arguments(self, directory: str) -> list[str]:
        """Returns the arguments of Beam for a job; packs the code into `directory` where it is not given."""
        values = {
            "runner": "DataflowRunner",
            "project": self.project,
            "region": self.region,
            "temp_location": self.temp_location,
            "staging_location": self.staging_location or self.temp_location,
            "worker_machine_type": self.worker_machine_type,
            "num_workers": self.num_workers,
            "max_num_workers": self.max_num_workers,
            "autoscaling_algorithm": self.autoscaling_algorithm,
            "disk_size_gb": self.disk_size_gb,
            "service_account_email": self.service_account_email,
            "subnetwork": self.subnetwork,
            "sdk_container_image": self.sdk_container_image,
            "setup_file": self.setup_file,
        }
        if not self.sdk_container_image and not self.setup_file:
            values["extra_package"] = self.package or build_wheel(directory)
        switches = [] if self.use_public_ips else ["--no_use_public_ips"]
        labels = [f"--labels={key}={value}" for key, value in self.labels.items()]
        # With its default pickler Beam would ship everything in `__main__`, and so fail on what a command line holds.
        switches.append("--no_save_main_session")
        switches.append("--experiments=disable_logging_submission_environment")  # it runs pip, which need not be here
        return [f"--{key}={value}" for key, value in values.items() if value] + labels + switches + list(self.beam_args)

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine`. Nothing is asked of the service yet, but there must be credentials to ask with."""
        try:
            from beam_jobs.runners import dataflow_jobs
        except ImportError as error:
            raise OptionError(f"Dataflow cannot be reached ({error}); {stack.pip_install('.[gcp]')}") from error
        if "--no_auth" not in self.beam_args:
            dataflow_jobs.check_credentials()
        with tempfile.TemporaryDirectory(prefix="feedline-dataflow-") as directory:
            arguments = self.arguments(directory)
            names = [f"--job_name={self.job_name}-{job}" for job in _JOBS]
            yield dataflow_jobs.pipelines(arguments, names)

    def bill(self, work: Work) -> Bill:
        """Returns what some work takes: machines, time, vCPU hours and requests, and money where there is a price."""
        return cost_estimate.dataflow_bill(
            work,
            cost_estimate.DataflowPool(
                region=self.region,
                machine_type=self.worker_machine_type,
                cores=self.worker_cores,
                least=self.num_workers,
                most=self.num_workers if self.autoscaling_algorithm == "NONE" else self.max_num_workers,
            ),
            self.vcpu_hour_price,
        )
