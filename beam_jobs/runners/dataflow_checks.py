"""What the settings of Dataflow may be, checked before a request is sent to the service."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from beam_jobs import storage
from beam_jobs.errors import OptionError
from beam_jobs.options import TABLE_KINDS, IngestOptions

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


def project(value: str) -> None:
    """Raises `OptionError` unless the value can be the id of a project."""
    _match("project", value, _PROJECT, "the id of a project (not its number or title), as my-project-1")


def region(value: str) -> None:
    """Raises `OptionError` unless the value can be a region."""
    outer, _, last = value.rpartition("-")
    if len(last) == 1 and _REGION.fullmatch(outer):
        raise OptionError(f"region is {value!r}, which is a zone; name its region, {outer}")
    _match("region", value, _REGION, "a region, as us-central1")


def bucket_path(name: str, value: str) -> None:
    """Raises `OptionError` unless the value is a directory in a bucket of Google Storage."""
    _match(name, value, _BUCKET_PATH, "a directory in a bucket, as gs://my-bucket/tmp")


def names(job_name: str, labels: Mapping[str, str]) -> None:
    """Raises `OptionError` for a name of jobs or a label that the service does not take."""
    _match("job_name", job_name, _JOB_NAME, "up to 50 of a-z, 0-9 and -, beginning with a letter")
    for key, value in labels.items():
        _match("labels", f"{key}={value}", _LABEL, "up to 63 of a-z, 0-9, - and _ each, as {team: vision}")


def workers(algorithm: str, least: int, most: int, disk_gb: int) -> None:
    """Raises `OptionError` for numbers of machines or sizes of their disks that cannot be."""
    if least > most:
        raise OptionError(f"num_workers is {least}, more than max_num_workers, {most}; raise that one")
    if algorithm == "NONE" and not least:
        raise OptionError("autoscaling_algorithm is 'NONE' and num_workers is 0; say how many workers there should be")
    if 0 < disk_gb < LEAST_DISK_GB:
        raise OptionError(f"disk_size_gb is {disk_gb}; system and package need {LEAST_DISK_GB}, 0 is the default")


def network(account: str, subnetwork: str, region: str, project: str) -> None:
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


def code(*, sdk_container_image: str, package: str, setup_file: str) -> None:
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


def argument(text: str, settings: Collection[str]) -> None:
    """Raises `OptionError` unless the text is an argument of Beam that is not a setting of the engine too."""
    if not text.startswith("--"):
        raise OptionError(f"beam_args holds {text!r}; write arguments as --name=value")
    name = text[2:].partition("=")[0]
    ours = name if name in settings else _TAKEN.get(name)
    if ours is not None:
        raise OptionError(f"beam_args holds {text!r}; {f'set {ours} instead' if ours else 'the engine decides that'}")


def reachable(ingest: IngestOptions) -> None:
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


def packed_clients(ingest: IngestOptions) -> None:
    """Raises `OptionError` for a source in S3, where workers install what is packed here: that leaves out extras."""
    if ingest.source.startswith("s3://"):
        raise OptionError(
            f"the source {ingest.source!r} lies in S3, which workers cannot read with what they install by default; "
            "set sdk_container_image to an image built with --build-arg EXTRAS=gcp,aws"
        )


def _match(name: str, value: str, pattern: re.Pattern[str], wanted: str) -> None:
    if not pattern.fullmatch(value):
        raise OptionError(f"{name} is {value!r}; it must be {wanted}")


_NAME = re.compile(r"[a-z]\d[a-z]?-(?:standard|highmem|highcpu)-(?P<cores>\d+)")
_CUSTOM = re.compile(r"(?:[a-z]\d[a-z]?-)?custom-(?P<cores>\d+)-\d+(?:-ext)?")


def cores(name: str) -> int:
    """Returns the virtual cores of the machine type that a name stands for.

    Raises:
      OptionError: it is no such name.
    """
    found = _CUSTOM.fullmatch(name) or _NAME.fullmatch(name)
    if not found or not int(found["cores"]):
        raise OptionError(
            f"worker_machine_type is {name!r}; name one of Compute Engine with at least one whole core, such as "
            "n2-standard-4, n2-highmem-8 or custom-4-16384"
        )
    return int(found["cores"])
