"""Checks for `feedline ingest --runner dataflow`: this machine and a project of Google Cloud."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from beam_jobs.common.strings import size
from beam_jobs.errors import OptionError
from beam_jobs.runners import dataflow
from beam_jobs.runners.dataflow import Options
from pipeline import doctor
from pipeline.doctor import NETWORK_TIMEOUT_S, Check

_ENGINE = "dataflow"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_DATAFLOW = "https://dataflow.googleapis.com"
_COMPUTE = "https://compute.googleapis.com"
_DISK_GB = 25  # default disk of a worker, with the shuffle of batch jobs in the service
_STORAGE = "https://storage.googleapis.com"
_ADD_ENGINE = "add to pipeline.yaml: engine: {runner: dataflow, project: P, region: R, temp_location: gs://BUCKET/tmp}"

Response = tuple[int, dict[str, Any]]  # HTTP status and decoded JSON


def checks(settings: Mapping[str, Any]) -> Iterator[Check]:
    """Checks this machine, then the project of `engine.project`."""
    yield from doctor.package_checks("gcp")
    yield package()
    options = _engine_options(settings)
    if isinstance(options, OptionError):
        yield Check(name="section engine", ok=False, detail=str(options), remedy=_ADD_ENGINE)
    else:
        yield Check(name="section engine", ok=True, detail=f"project {options.project}, region {options.region}")
        yield from worker_image(options)
    session, check = credentials()
    yield check
    if session is None or isinstance(options, OptionError):
        return
    yield api(session, options)
    for name in ("temp_location", "staging_location"):
        if getattr(options, name):
            yield bucket(session, options, name)
    yield quota(session, options)


def package() -> Check:
    """Checks that a wheel for the workers can be built from the installed package."""
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = dataflow.build_wheel(directory)
            detail = f"{os.path.basename(path)}, {size(os.path.getsize(path))}"
    except (OSError, LookupError, ImportError) as error:
        remedy = doctor.install_command("--force-reinstall", "--no-deps", doctor.DISTRIBUTION)
        return Check(name="package", ok=False, detail=f"cannot be packed: {error}", remedy=remedy)
    return Check(name="package", ok=True, detail=detail)


def worker_image(options: Options) -> Iterator[Check]:
    """Checks the image of workers without public addresses, which cannot install packages without Cloud NAT."""
    if options.use_public_ips:
        return
    image = options.sdk_container_image
    example = f"{options.region}-docker.pkg.dev/{options.project}/feedline/worker"
    detail = image or "not set, but workers without public addresses cannot install Feedline"
    remedy = f"docker build -t {example} . && docker push {example}, then engine.sdk_container_image: {example}"
    yield Check(name="worker image", ok=bool(image), detail=detail, remedy=remedy, needed=False)


def credentials() -> tuple[Any, Check]:
    """Returns a session with the credentials of this machine, None without credentials, and their check."""
    login = "gcloud auth application-default login"
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        remedy = doctor.install_command("apache-beam[gcp]")
        return None, Check(name="credentials", ok=False, detail=f"cannot be read: {error}", remedy=remedy)
    result: list[Any] = []  # credentials and project, or an error

    def load_credentials() -> None:
        try:
            result.extend(google.auth.default(scopes=[_SCOPE]))
        except GoogleAuthError as error:
            result.append(error)

    # Without credentials, the library queries the metadata server of Google Cloud with a long timeout.
    thread = threading.Thread(target=load_credentials, daemon=True)
    thread.start()
    thread.join(NETWORK_TIMEOUT_S)
    if len(result) < 2:
        detail = " ".join(str(result[0]).split()) if result else f"no answer in {NETWORK_TIMEOUT_S:g} s"
        return None, Check(name="credentials", ok=False, detail=detail, remedy=login)
    account = getattr(result[0], "service_account_email", "") or "user account"
    return AuthorizedSession(result[0]), Check(name="credentials", ok=True, detail=account)


def api(session: Any, options: Options) -> Check:
    """Lists the jobs of the region, which checks project, region, API and permissions."""
    url = f"{_DATAFLOW}/v1b3/projects/{options.project}/locations/{options.region}/jobs?pageSize=1"
    status, content = _get(session, url)
    if status == 200:
        return Check(name="Dataflow API", ok=True, detail=f"answers for {options.project} in {options.region}")
    message = _error_message(status, content)
    if status == 403 and ("disabled" in message or "not been used" in message):
        remedy = f"gcloud services enable dataflow.googleapis.com --project {options.project}"
    elif status == 403:
        remedy = _grant_command(options, "roles/dataflow.admin")
    elif status in (400, 404):
        remedy = "gcloud projects list; gcloud compute regions list"
    else:
        remedy = f"curl {_DATAFLOW}" if status < 0 else "gcloud auth application-default login"
    return Check(name="Dataflow API", ok=False, detail=message, remedy=remedy)


def bucket(session: Any, options: Options, name: str) -> Check:
    """Checks that the bucket of a location exists."""
    bucket_name = getattr(options, name).removeprefix("gs://").partition("/")[0]
    storage = os.environ.get("STORAGE_EMULATOR_HOST", _STORAGE).rstrip("/")
    status, content = _get(session, f"{storage}/storage/v1/b/{bucket_name}")
    if status == 404:
        location = f"--project {options.project} --location {options.region}"
        remedy = f"gcloud storage buckets create gs://{bucket_name} {location}"
        return Check(name=name, ok=False, detail=f"there is no bucket {bucket_name}", remedy=remedy)
    if status != 200:
        remedy = _grant_command(options, "roles/storage.admin")
        return Check(name=name, ok=False, detail=_error_message(status, content), remedy=remedy)
    region = str(content.get("location", "an unknown region")).lower()
    return Check(name=name, ok=True, detail=f"gs://{bucket_name} in {region}")


def quota(session: Any, options: Options) -> Check:
    """Compares the free quota of the project in the region with the needs of the maximum number of workers."""
    url = f"{_COMPUTE}/compute/v1/projects/{options.project}/regions/{options.region}"
    status, content = _get(session, url)
    if status != 200:
        remedy = f"gcloud services enable compute.googleapis.com --project {options.project}"
        return Check(name="quota", ok=False, detail=_error_message(status, content), remedy=remedy, needed=False)
    free = {item["metric"]: item["limit"] - item["usage"] for item in content.get("quotas", ())}
    workers = options.max_num_workers
    needs = {  # name of the quota -> needed number
        "CPUS": workers * options.pool.cores,
        "DISKS_TOTAL_GB": workers * (options.disk_size_gb or _DISK_GB),
        "IN_USE_ADDRESSES": workers if options.use_public_ips else 0,
    }
    shortages = [
        f"{name}: {free[name]:g} free, {count} needed" for name, count in needs.items() if free.get(name, count) < count
    ]
    if shortages:
        possible = min(int(workers * free[name] / count) for name, count in needs.items() if count and name in free)
        remedy = f"set engine.max_num_workers to {max(1, possible)}, or request more at IAM & Admin > Quotas"
        return Check(name="quota", ok=False, detail=", ".join(shortages), remedy=remedy, needed=False)
    return Check(name="quota", ok=True, detail=f"enough for {workers} workers of {options.pool.cores} cores")


def _engine_options(settings: Mapping[str, Any]) -> Options | OptionError:
    """Returns the options in the section `engine`, or the error about it."""
    from beam_jobs.common.settings import from_mapping

    engine = settings.get("engine") or {}
    runner = engine.get("runner", _ENGINE) if isinstance(engine, Mapping) else engine
    if runner != _ENGINE:
        return OptionError(f"engine.runner is {runner!r}, not {_ENGINE}; set it to {_ENGINE}, with its settings")
    try:
        return from_mapping(Options, {key: engine[key] for key in engine if key != "runner"}, "engine")
    except OptionError as error:
        return error


def _get(session: Any, url: str) -> Response:
    """Returns the status and the content of a response; status -1 if there is none in time."""
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        response = session.get(url, timeout=NETWORK_TIMEOUT_S, max_allowed_time=NETWORK_TIMEOUT_S)
    except (RequestException, GoogleAuthError) as error:
        return -1, {"error": {"message": f"{url.partition('/v1')[0]} does not answer: {type(error).__name__}"}}
    try:
        content = response.json()
    except ValueError:
        content = {}
    return response.status_code, content if isinstance(content, dict) else {}


def _error_message(status: int, content: Mapping[str, Any]) -> str:
    error = content.get("error")
    message = error.get("message", "") if isinstance(error, Mapping) else ""
    return " ".join(str(message).split()) or f"status {status}"


def _grant_command(options: Options, role: str) -> str:
    account = options.service_account_email
    member = f"serviceAccount:{account}" if account else "user:YOU@EXAMPLE.COM"
    return f"gcloud projects add-iam-policy-binding {options.project} --member {member} --role {role}"
