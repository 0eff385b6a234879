"""Runs the two jobs of an ingest on Google Cloud Dataflow, on machines that the service starts and stops.

The process of the command scans the source, plans the splits and publishes the dataset; the workers read images and
write shards. The source and the output are in buckets. The settings are checked before a request is sent.

The workers install Feedline from a wheel or a `setup.py`, or have it in their container image. By default, this module
packs the installed files into a wheel, without a checkout, a build tool or the network; its direct dependencies are
pinned to the installed versions.
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
MIN_DISK_GB = 25  # space for the operating system and the package
_PROJECT = re.compile(r"(?:[a-z][-a-z0-9.]*[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_BUCKET_PATH = re.compile(r"gs://[a-z0-9][-_a-z0-9.]+[a-z0-9]/.+")
_JOB_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?")
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")
_SUBNETWORK = re.compile(r"(?:https://\S+/)?regions/(?P<region>[-a-z0-9]+)/subnetworks/[-a-z0-9]+")
# Argument of Beam -> name of the setting that replaces it; empty for arguments that the engine sets itself.
_RESERVED_ARGUMENTS = {
    "machine_type": "worker_machine_type",
    "label": "labels",
    "extra_package": "package",
    "extra_packages": "package",
    "no_use_public_ips": "use_public_ips",
    **dict.fromkeys(("runner", "save_main_session", "streaming", "dry_run"), ""),
}


def check_bucket_path(name: str, value: str) -> None:
    """Raises `OptionError` unless the value of the setting `name` is a directory in a bucket of Google Storage."""
    _check(name, value, _BUCKET_PATH, "a directory in a bucket, such as gs://my-bucket/tmp")


def check_workers(algorithm: str, num_workers: int, max_num_workers: int, disk_gb: int) -> None:
    """Raises `OptionError` for numbers of workers or a disk size that are not possible."""
    if num_workers > max_num_workers:
        raise OptionError(f"num_workers is {num_workers}, above max_num_workers, {max_num_workers}; raise the latter")
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
        raise OptionError(f"subnetwork is in {match['region']}, the workers in {region}; name one in {region}")


def check_argument(text: str, setting_names: Collection[str]) -> None:
    """Raises `OptionError` unless the text has the form `--name=value` and corresponds to none of the settings."""
    if not text.startswith("--"):
        raise OptionError(f"beam_args contains {text!r}; write arguments as --name=value")
    name = text[2:].partition("=")[0]
    setting = name if name in setting_names else _RESERVED_ARGUMENTS.get(name)
    if setting is not None:
        remedy = f"set {setting} instead" if setting else "remove it, because the engine sets it"
        raise OptionError(f"beam_args contains {text!r}; {remedy}")


def check_reachable(ingest: IngestOptions) -> None:
    """Raises `OptionError` for a source or an output that workers cannot reach."""
    if not ingest.out.startswith("gs://"):
        raise OptionError(f"--out is {ingest.out!r}; Dataflow workers write to buckets, such as gs://my-bucket/dataset")
    suffixes = tuple(f".{kind}" for kind in TABLE_KINDS)
    kind = ingest.source_kind
    # A table may be on this machine: the workers read only the images that are listed in it.
    if kind in TABLE_KINDS or (kind == "auto" and ingest.source.lower().endswith(suffixes)):
        return
    if not storage.is_remote(ingest.source):
        raise OptionError(
            f"the source {ingest.source!r} is on this machine, where no Dataflow worker can read it; copy it with "
            "`gcloud storage cp --recursive` and give its gs:// address"
        )


def _check(name: str, value: str, pattern: re.Pattern[str], expected: str) -> None:
    if not pattern.fullmatch(value):
        raise OptionError(f"{name} is {value!r}; it must be {expected}")


_MACHINE_NAME = re.compile(r"[a-z]\d[a-z]?-(?:standard|highmem|highcpu)-(?P<cores>\d+)")
_CUSTOM_MACHINE = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cores>\d+)-\d+(?:-ext)?")


def machine_cores(name: str) -> int:
    """Returns the number of virtual cores of a machine type.

    Raises:
      OptionError: the name is not that of a machine type with at least one whole core.
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
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time in a zip file; a constant, so that equal code gives equal wheels


def build_wheel(directory: str) -> str:
    """Packs the installed package into a wheel in a directory, and returns its path; equal code gives equal bytes."""
    version = metadata.version(_DISTRIBUTION)
    info_dir = f"{_DISTRIBUTION}-{version}.dist-info"
    path = os.path.join(directory, f"{_DISTRIBUTION}-{version}-py3-none-any.whl")
    files = dict(_wheel_sources())
    files[f"{info_dir}/METADATA"] = _wheel_metadata().encode()
    files[f"{info_dir}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: feedline\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info_dir}/top_level.txt"] = "".join(f"{name}\n" for name in _PACKAGES).encode()
    files[f"{info_dir}/entry_points.txt"] = b"[console_scripts]\nfeedline = pipeline.entry:main\n"
    files[f"{info_dir}/RECORD"] = _wheel_record(files, f"{info_dir}/RECORD").encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, data)
    return path


def pinned_requirements() -> list[str]:
    """Returns the direct dependencies of the package at their installed versions, except those of its extras."""
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
    """Yields path in the wheel and content of every file of the packages."""
    root = Path(__file__).parent.parent.parent
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(root).as_posix(), path.read_bytes()


def _wheel_record(files: dict[str, bytes], record_name: str) -> str:
    lines = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(data)}\n")
    return "".join(lines) + f"{record_name},,\n"  # without a hash of itself


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Options(settings.Options):
    """Settings of the jobs, their workers and the code of the workers. With 0 or an empty text, the service chooses.

    Attributes:
      project: id of the project that owns the jobs and pays for them.
      region: region of the workers. The buckets should be in it, because traffic between regions is charged.
      temp_location: `gs://BUCKET/DIR` of temporary files.
      staging_location: `gs://BUCKET/DIR` to which the code is uploaded; `temp_location` when empty.
      worker_machine_type: machine type of a worker. Each core runs a process with TensorFlow and at most 32 images.
      num_workers: initial number of workers; 0 for the smallest number with as few rounds as `max_num_workers`. In a
        round, each core processes one batch of images or one shard.
      max_num_workers: maximum number of workers, which limits the cost: the service would start hundreds.
      autoscaling_algorithm: `THROUGHPUT_BASED`, or `NONE` for exactly `num_workers`.
      disk_size_gb: disk size of a worker in GB, for the operating system and the container image; shards are streamed.
      service_account_email: service account of the workers.
      subnetwork: `regions/REGION/subnetworks/NAME`.
      use_public_ips: whether workers have public IP addresses; otherwise the subnetwork needs Private Google Access.
      sdk_container_image: container image of the workers, with Feedline; see `Dockerfile`.
      package: wheel or source archive of Feedline for the workers; by default, a wheel of the installed package.
      setup_file: `setup.py` of a checkout of Feedline for the workers, instead of `package`.
      labels: labels of the jobs.
      job_name: the jobs are named NAME-examine, NAME-write and NAME-verify.
      vcpu_hour_price: price of a vCPU hour of a worker with its memory and disk, in any currency, from which
        `--dry-run` estimates the cost; 0 for no estimate.
      beam_args: further arguments of Beam, such as `--dataflow_kms_key=...`.

    Raises:
      OptionError: a value is invalid; the message gives the value and the allowed values.
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
        _check("project", self.project, _PROJECT, "the id of a project (not its number or title), such as my-project-1")
        region, _, zone_letter = self.region.rpartition("-")
        if len(zone_letter) == 1 and _REGION.fullmatch(region):
            raise OptionError(f"region is {self.region!r}, which is a zone; name its region, {region}")
        _check("region", self.region, _REGION, "a region, such as us-central1")
        check_bucket_path("temp_location", self.temp_location)
        if self.staging_location:
            check_bucket_path("staging_location", self.staging_location)
        _check("job_name", self.job_name, _JOB_NAME, "up to 50 of a-z, 0-9 and -, the first a letter")
        for key, value in self.labels.items():
            _check("labels", f"{key}={value}", _LABEL, "up to 63 of a-z, 0-9, - and _ each, such as {team: vision}")
        machine_cores(self.worker_machine_type)
        check_workers(self.autoscaling_algorithm, self.num_workers, self.max_num_workers, self.disk_size_gb)
        check_network(self.service_account_email, self.subnetwork, self.region, self.project)
        self._check_code()
        for argument in self.beam_args:
            check_argument(argument, settings.fields(Options))

    def _check_code(self) -> None:
        """Raises `OptionError` if the code of the workers has several sources, or if its file does not exist."""
        sources = [name for name in ("sdk_container_image", "package", "setup_file") if getattr(self, name)]
        if len(sources) > 1:
            raise OptionError(
                f"{' and '.join(sources)} exclude one another: each of them provides the code of the workers; give one"
            )
        if self.setup_file and os.path.basename(self.setup_file) != "setup.py":
            raise OptionError(f"setup_file is {self.setup_file!r}; it must be the path of a setup.py")
        if self.package and not self.package.endswith((".whl", ".tar.gz")):
            raise OptionError(
                f"package is {self.package!r}; it must be a wheel or a .tar.gz; build a wheel with `pip wheel`"
            )
        for name, path in (("setup_file", self.setup_file), ("package", self.package)):
            if path and not os.path.isfile(path):
                raise OptionError(f"{name} is {path!r}, which is not a file")

    def check(self, ingest: IngestOptions) -> None:
        """Checks that the workers can read the source and write the output of an ingest.

        Raises:
          OptionError: the source or the output is on this machine, or in a store for which the workers have no client,
            or the code cannot run in the container image of the workers.
        """
        check_reachable(ingest)
        self.check_stack()
        # The default package is installed without the extra `aws`.
        if ingest.source.startswith("s3://") and not (self.sdk_container_image or self.package or self.setup_file):
            raise OptionError(
                f"the source {ingest.source!r} is in S3, which workers cannot read with the default package; "
                "set sdk_container_image to an image built with --build-arg EXTRAS=gcp,aws"
            )

    def check_stack(self) -> None:
        """Raises `OptionError` for the legacy stack without a container image: it conflicts with Beam's own image."""
        if stack.name() == stack.LEGACY and not self.sdk_container_image:
            # `google.api_core` in Beam's image imports a module that protobuf 3 does not have.
            raise OptionError(
                f"sdk_container_image is not set; the legacy stack would put protobuf {metadata.version('protobuf')} "
                "into Beam's image, whose Google packages need 5 or later; build an image as in the first lines of "
                "Dockerfile, or use the current stack"
            )

    def arguments(self, directory: str) -> list[str]:
        """Returns the arguments of Beam for a job; without another source of the code, packs a wheel in `directory`."""
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
        # With its default pickler, Beam would pickle all objects of `__main__`, but some cannot be pickled.
        switches.append("--no_save_main_session")
        switches.append("--experiments=disable_logging_submission_environment")  # the log would need pip
        return [f"--{key}={value}" for key, value in values.items() if value] + labels + switches + list(self.beam_args)

    @contextlib.contextmanager
    def open(self) -> Iterator[MakePipeline]:
        """See `Engine.open`. Checks that there are credentials, without a request to the service."""
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
        """Returns the estimated machines, time, vCPU hours, requests and, if a price is set, cost of an ingest."""
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
    """Returns the arguments of Beam for the components of a pipeline, validated and completed like those of an ingest.

    Args:
      arguments: `beam_args` of the pipeline; arguments of another runner than Dataflow are returned unchanged.
      image: default container image of the workers; empty for none. Workers need a container image, because TFX would
        send them its own package without Feedline.

    Raises:
      OptionError: an argument is invalid or missing.
    """
    runner = next((text for text in arguments if text.startswith("--runner=")), "")
    if runner.lower() not in ("--runner=dataflowrunner", "--runner=dataflow"):
        return list(arguments)
    values: dict[str, Any] = {"labels": {}}
    other_arguments, option_fields = [], settings.fields(Options)
    for text in arguments:
        name, _, value = text.removeprefix("--").partition("=")
        setting = _RESERVED_ARGUMENTS.get(name) or name
        if name == "no_use_public_ips":
            values["use_public_ips"] = False
        elif setting == "labels":
            key, _, label = value.partition("=")
            values["labels"][key] = label
        elif setting in option_fields and setting not in ("vcpu_hour_price", "package"):  # these are no options of Beam
            try:
                values[setting] = yaml_text.parse_value(value, option_fields[setting].hint is str)
            except yaml.YAMLError as error:
                raise OptionError(f"beam_args contains {text!r}, which is not a YAML value") from error
        elif text != runner:
            other_arguments.append(text)
    if not values.get("setup_file"):
        values.setdefault("sdk_container_image", image)
    options = settings.from_mapping(Options, {**values, "beam_args": other_arguments}, "beam_args")
    if not (options.sdk_container_image or options.setup_file):
        raise OptionError(
            "beam_args has no --sdk_container_image; workers of Dataflow run the components in an image with Feedline, "
            "see the first lines of Dockerfile"
        )
    options.check_stack()
    return [*options.arguments(""), *([f"--job_name={options.job_name}"] if "job_name" in values else [])]
