"""Google Cloud Dataflow: the two jobs of an ingest run on machines that the service starts and stops.

The process of the command scans, plans and publishes; the workers read images and write shards. Source and output are
in buckets, which both can reach. The settings are checked before a request is sent.

The workers run the same code: from a wheel of the installed package, a `setup.py`, or a container image. The wheel is
written here from the installed files, without checkout, build tool or network; its direct dependencies are pinned to
the installed versions.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import yaml
from packaging.requirements import Requirement
from pydantic.dataclasses import dataclass

from beam_jobs import stack, storage
from beam_jobs.common import settings, yaml_text
from beam_jobs.common.settings import STRICT, Count, NotNegative, OneOf, Positive
from beam_jobs.errors import OptionError
from beam_jobs.options import TABLE_KINDS, IngestOptions
from beam_jobs.runners import cost_estimate
from beam_jobs.runners.cost_estimate import ResourceEstimate, Work

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline


ALGORITHMS = ("THROUGHPUT_BASED", "NONE")
MIN_DISK_GB = 25  # for operating system and package
_PROJECT = re.compile(r"(?:[a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][-_a-z0-9.]+[a-z0-9]/.+")
_JOB_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")
_SUBNETWORK = re.compile(r"(?:https://\S+/)?regions/(?P<region>[-a-z0-9]+)/subnetworks/[-a-z0-9]+")
# Arguments of Beam with another name in these settings, or empty for arguments that the engine sets.
_RESERVED_ARGUMENTS = {
    "machine_type": "worker_machine_type",
    "label": "labels",
    "extra_package": "package",
    "extra_packages": "package",
    "no_use_public_ips": "use_public_ips",
    **dict.fromkeys(("runner", "save_main_session", "streaming", "dry_run"), ""),
}


def check_bucket_path(name: str, value: str) -> None:
    """Raises `OptionError` unless the value is a directory in a bucket of Google Storage."""
    _match(name, value, _BUCKET_PATH, "a directory in a bucket, as gs://my-bucket/tmp")


def check_workers(algorithm: str, num_workers: int, max_num_workers: int, disk_gb: int) -> None:
    """Raises `OptionError` for numbers of workers or a disk size that are not possible."""
    if num_workers > max_num_workers:
        raise OptionError(f"num_workers is {num_workers}, more than max_num_workers, {max_num_workers}; raise that one")
    if algorithm == "NONE" and not num_workers:
        raise OptionError("autoscaling_algorithm is 'NONE' and num_workers is 0; set num_workers to at least 1")
    if 0 < disk_gb < MIN_DISK_GB:
        raise OptionError(f"disk_size_gb is {disk_gb}; it must be at least {MIN_DISK_GB}, or 0 for the default")


def check_network(account: str, subnetwork: str, region: str, project: str) -> None:
    """Raises `OptionError` for an invalid account or subnetwork."""
    if account and account.count("@") != 1:
        raise OptionError(f"service_account_email is {account!r}; write it as NAME@{project}.iam.gserviceaccount.com")
    if not subnetwork:
        return
    match = _SUBNETWORK.fullmatch(subnetwork)
    if not match:
        raise OptionError(f"subnetwork is {subnetwork!r}; write it as regions/{region}/subnetworks/NAME")
    if match["region"] != region:
        raise OptionError(f"subnetwork is in {match['region']}, the workers in {region}; name one of that region")


def check_argument(text: str, settings: Collection[str]) -> None:
    """Raises `OptionError` unless the text is an argument of Beam that is not a setting of the engine."""
    if not text.startswith("--"):
        raise OptionError(f"beam_args holds {text!r}; write arguments as --name=value")
    name = text[2:].partition("=")[0]
    setting = name if name in settings else _RESERVED_ARGUMENTS.get(name)
    if setting is not None:
        remedy = f"set {setting} instead" if setting else "remove it, the engine sets it"
        raise OptionError(f"beam_args holds {text!r}; {remedy}")


def check_reachable(ingest: IngestOptions) -> None:
    """Raises `OptionError` for a source or an output that workers cannot reach."""
    if not ingest.out.startswith("gs://"):
        raise OptionError(f"--out is {ingest.out!r}; workers of Dataflow write to a bucket, as gs://my-bucket/dataset")
    suffixes = tuple(f".{kind}" for kind in TABLE_KINDS)
    kind = ingest.source_kind
    # A table may be on this machine: the workers read only the images that it names.
    if kind in TABLE_KINDS or (kind == "auto" and ingest.source.lower().endswith(suffixes)):
        return
    if not storage.is_remote(ingest.source):
        raise OptionError(
            f"the source {ingest.source!r} is on this machine, where no Dataflow worker can read it; copy it with "
            "`gcloud storage cp --recursive` and give its gs:// address"
        )


def _match(name: str, value: str, pattern: re.Pattern[str], expected: str) -> None:
    if not pattern.fullmatch(value):
        raise OptionError(f"{name} is {value!r}; it must be {expected}")


_MACHINE_NAME = re.compile(r"[a-z]\d[a-z]?-(?:standard|highmem|highcpu)-(?P<cores>\d+)")
_CUSTOM_MACHINE = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cores>\d+)-\d+(?:-ext)?")


def machine_cores(name: str) -> int:
    """Returns the number of virtual cores of a machine type.

    Raises:
      OptionError: the name is no machine type with at least one core.
    """
    match = _CUSTOM_MACHINE.fullmatch(name) or _MACHINE_NAME.fullmatch(name)
    if not match or not int(match["cores"]):
        raise OptionError(
            f"worker_machine_type is {name!r}; name one of Compute Engine with at least one whole core, such as "
            "n2-standard-4, n2-highmem-8 or custom-4-16384"
        )
    return int(match["cores"])


_DISTRIBUTION = "feedline"
_PACKAGES = ("beam_jobs", "components", "feedline", "pipeline", "trainer")
_OMITTED_FIELDS = ("Provides-Extra", "License-File", "Dynamic")  # extras, and fields about files outside the wheel
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time of zip; a constant, so that equal code gives equal files


def build_wheel(directory: str) -> str:
    """Packs the installed package into a wheel in a directory, and returns its path; equal code gives equal bytes."""
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
    """Returns the direct dependencies of the package with their installed versions, without extras."""
    pins = []
    for text in metadata.requires(_DISTRIBUTION) or []:
        dependency = Requirement(text)
        if dependency.marker is None or dependency.marker.evaluate({"extra": ""}):  # workers have the same Python
            extras = f"[{','.join(sorted(dependency.extras))}]" if dependency.extras else ""
            pins.append(f"{dependency.name}{extras}=={metadata.version(dependency.name)}")
    return pins


def _wheel_metadata() -> str:
    installed = metadata.metadata(_DISTRIBUTION)
    omitted = (*_OMITTED_FIELDS, "Requires-Dist", "Description")
    names = [name for name in dict.fromkeys(installed) if name not in omitted]
    fields = [(name, value) for name in names for value in installed.get_all(name) or []]
    fields += [("Requires-Dist", requirement) for requirement in pinned_requirements()]
    return "".join(f"{name}: {value}\n" for name, value in fields)


def _wheel_sources() -> Iterator[tuple[str, bytes]]:
    """Yields the name in the wheel and the content of every file of the packages."""
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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(settings.Options):
    """Settings of the jobs, their workers and the code of the workers. 0 and empty leave a choice to the service.

    Attributes:
      project: id of the project that owns the jobs and pays for them.
      region: where the workers run; put the buckets there too, or every image is paid for as traffic between regions.
      temp_location: `gs://BUCKET/DIR` of temporary files.
      staging_location: `gs://BUCKET/DIR` that the code is staged in; `temp_location` when empty.
      worker_machine_type: Compute Engine type of a worker. A process a core holds TensorFlow and 32 images at most.
      num_workers: workers to begin with; 0 for the fewest that end the units of work in as many rounds as the most
        workers would.
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
      job_name: the jobs are called NAME-examine, NAME-write and NAME-verify.
      vcpu_hour_price: what you pay for a vCPU hour of a worker, its memory and disk included, in any currency;
        `--dry-run` then states a cost. 0 is no price.
      beam_args: further arguments for Beam, as `--dataflow_kms_key=...`.

    Raises:
      OptionError: a value is invalid; the message names it and what is allowed.
    """

    name: ClassVar[str] = "dataflow"
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
        _match("project", self.project, _PROJECT, "the id of a project (not its number or title), as my-project-1")
        outer, _, last = self.region.rpartition("-")
        if len(last) == 1 and _REGION.fullmatch(outer):
            raise OptionError(f"region is {self.region!r}, which is a zone; name its region, {outer}")
        _match("region", self.region, _REGION, "a region, as us-central1")
        check_bucket_path("temp_location", self.temp_location)
        if self.staging_location:
            check_bucket_path("staging_location", self.staging_location)
        _match("job_name", self.job_name, _JOB_NAME, "up to 50 of a-z, 0-9 and -, beginning with a letter")
        for key, value in self.labels.items():
            _match("labels", f"{key}={value}", _LABEL, "up to 63 of a-z, 0-9, - and _ each, as {team: vision}")
        machine_cores(self.worker_machine_type)
        check_workers(self.autoscaling_algorithm, self.num_workers, self.max_num_workers, self.disk_size_gb)
        check_network(self.service_account_email, self.subnetwork, self.region, self.project)
        self._check_code()
        for argument in self.beam_args:
            check_argument(argument, settings.fields(Options))

    def _check_code(self) -> None:
        """Raises `OptionError` for several sources of the code of the workers, or a missing file."""
        names = [name for name in ("sdk_container_image", "package", "setup_file") if getattr(self, name)]
        if len(names) > 1:
            raise OptionError(
                f"{' and '.join(names)} exclude one another: the workers get the code in one way; give one"
            )
        if self.setup_file and os.path.basename(self.setup_file) != "setup.py":
            raise OptionError(f"setup_file is {self.setup_file!r}; it must be the path of a setup.py")
        if self.package and not self.package.endswith((".whl", ".tar.gz")):
            raise OptionError(
                f"package is {self.package!r}; it must be a wheel or a .tar.gz, as `pip wheel` makes them"
            )
        for name, path in (("setup_file", self.setup_file), ("package", self.package)):
            if path and not os.path.isfile(path):
                raise OptionError(f"{name} is {path!r}, which is not a file")

    def check(self, ingest: IngestOptions) -> None:
        """Checks that the workers can reach what an ingest reads and writes.

        Raises:
          OptionError: source or output is on the machine of the command, or in a store without a client on the workers,
            or the code cannot run in the image of the workers.
        """
        check_reachable(ingest)
        self.check_stack()
        # Workers with the default package do not have the extra `aws`.
        if ingest.source.startswith("s3://") and not (self.sdk_container_image or self.package or self.setup_file):
            raise OptionError(
                f"the source {ingest.source!r} is in S3, which workers cannot read with the default package; "
                "set sdk_container_image to an image built with --build-arg EXTRAS=gcp,aws"
            )

    def check_stack(self) -> None:
        """Raises `OptionError` on the legacy stack without an image: each other way installs the same requirements."""
        if stack.name() == stack.LEGACY and not self.sdk_container_image:
            # Its `google.api_core` imports a module of protobuf that version 3 does not have.
            raise OptionError(
                f"sdk_container_image is not set; the legacy stack would put protobuf {metadata.version('protobuf')} "
                "under the Google packages of Beam's image, which need 5 or later: build the image in the first lines "
                "of Dockerfile, or use the current stack"
            )

    def arguments(self, directory: str) -> list[str]:
        """Returns the arguments of Beam for a job; the default source of the code is a wheel, packed in `directory`."""
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
        # With its default pickler Beam would send all objects of `__main__`, some of which cannot be pickled.
        switches.append("--no_save_main_session")
        switches.append("--experiments=disable_logging_submission_environment")  # which runs pip, which may be missing
        return [f"--{key}={value}" for key, value in values.items() if value] + labels + switches + list(self.beam_args)

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine`. It checks that there are credentials, and sends no request to the service."""
        try:
            from beam_jobs.runners import dataflow_jobs
            from beam_jobs.storage.object_stores import gcs
        except ImportError as error:
            raise OptionError(f"Dataflow cannot be reached ({error}); {stack.pip_install('.[gcp]')}") from error
        if "--no_auth" not in self.beam_args and (reason := gcs.missing_login()):
            raise OptionError(reason)
        with tempfile.TemporaryDirectory(prefix="feedline-dataflow-") as directory:
            yield dataflow_jobs.Pipelines(self.arguments(directory), self.job_name, self.pool)

    def estimate_resources(self, work: Work) -> ResourceEstimate:
        """Estimates machines, time, vCPU hours and requests of some work, and the cost if a price is set."""
        return cost_estimate.estimate_dataflow_resources(work, self.pool, self.vcpu_hour_price)

    @property
    def pool(self) -> cost_estimate.DataflowPool:
        """The workers of a job."""
        return cost_estimate.DataflowPool(
            region=self.region,
            machine_type=self.worker_machine_type,
            cores=machine_cores(self.worker_machine_type),
            min_workers=self.num_workers,
            max_workers=self.num_workers if self.autoscaling_algorithm == "NONE" else self.max_num_workers,
        )


def component_arguments(arguments: Sequence[str], image: str) -> list[str]:
    """Returns the arguments of Beam for the components of a pipeline, checked and completed as those of an ingest.

    Args:
      arguments: `beam_args` of the pipeline; those of another runner are returned as they are.
      image: container image of the workers, unless the arguments name one; empty for none. Workers need one, because
        TFX would send them its own package without Feedline.

    Raises:
      OptionError: an argument is invalid or missing.
    """
    runner = next((text for text in arguments if text.startswith("--runner=")), "")
    if runner.lower() not in ("--runner=dataflowrunner", "--runner=dataflow"):
        return list(arguments)
    values: dict[str, Any] = {"labels": {}}
    others, option_fields = [], settings.fields(Options)
    for text in arguments:
        name, _, value = text.removeprefix("--").partition("=")
        setting = _RESERVED_ARGUMENTS.get(name) or name
        if name == "no_use_public_ips":
            values["use_public_ips"] = False
        elif setting == "labels":
            key, _, label = value.partition("=")
            values["labels"][key] = label
        elif setting in option_fields and setting not in ("vcpu_hour_price", "package"):  # which Beam does not know
            try:
                values[setting] = yaml_text.parse_value(value, option_fields[setting].hint is str)
            except yaml.YAMLError as error:
                raise OptionError(f"beam_args holds {text!r}, which is not a YAML value") from error
        elif text != runner:
            others.append(text)
    if not values.get("setup_file"):
        values.setdefault("sdk_container_image", image)
    options = settings.from_mapping(Options, {**values, "beam_args": others}, "beam_args")
    if not (options.sdk_container_image or options.setup_file):
        raise OptionError(
            "beam_args has no --sdk_container_image; workers of Dataflow run the components in an image with Feedline, "
            "see the first lines of Dockerfile"
        )
    options.check_stack()
    return [*options.arguments(""), *([f"--job_name={options.job_name}"] if "job_name" in values else [])]
