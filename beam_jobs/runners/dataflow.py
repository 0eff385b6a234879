"""Google Cloud Dataflow: the two jobs of an ingest run on machines that the service starts and stops.

The scan, the plan and the publishing happen where the command runs; the workers read images and write shards. Source
and output lie where both can reach them, in buckets. The workers get this very code: a wheel of the installed package,
a `setup.py`, or an image that holds it.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Annotated

from pydantic.dataclasses import dataclass

from beam_jobs import stack
from beam_jobs.common import settings
from beam_jobs.common.settings import STRICT, Count, NotNegative, OneOf, Positive
from beam_jobs.errors import OptionError
from beam_jobs.options import IngestOptions
from beam_jobs.runners import dataflow_checks, dataflow_cost, dataflow_package
from beam_jobs.runners.cost_estimate import Bill, Work

if TYPE_CHECKING:
    from beam_jobs.runners.beam_job import MakePipeline

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
    autoscaling_algorithm: Annotated[str, OneOf(dataflow_checks.ALGORITHMS)] = "THROUGHPUT_BASED"
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
        dataflow_checks.project(self.project)
        dataflow_checks.region(self.region)
        dataflow_checks.bucket_path("temp_location", self.temp_location)
        if self.staging_location:
            dataflow_checks.bucket_path("staging_location", self.staging_location)
        dataflow_checks.names(self.job_name, self.labels)
        dataflow_checks.cores(self.worker_machine_type)
        dataflow_checks.workers(self.autoscaling_algorithm, self.num_workers, self.max_num_workers, self.disk_size_gb)
        dataflow_checks.network(self.service_account_email, self.subnetwork, self.region, self.project)
        dataflow_checks.code(
            sdk_container_image=self.sdk_container_image, package=self.package, setup_file=self.setup_file
        )
        for argument in self.beam_args:
            dataflow_checks.argument(argument, settings.fields(Options))

    @property
    def worker_cores(self) -> int:
        """Virtual cores of a worker."""
        return dataflow_checks.cores(self.worker_machine_type)

    def check(self, ingest: IngestOptions) -> None:
        """Checks that the workers can reach what an ingest reads and writes.

        Raises:
          OptionError: source or output lies on the machine that the command runs on, or in a store that the workers
            have no client of.
        """
        dataflow_checks.reachable(ingest)
        if not (self.sdk_container_image or self.package or self.setup_file):
            dataflow_checks.packed_clients(ingest)

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
            values["extra_package"] = self.package or dataflow_package.build_wheel(directory)
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
        return dataflow_cost.bill(
            work,
            dataflow_cost.Pool(
                region=self.region,
                machine_type=self.worker_machine_type,
                cores=self.worker_cores,
                least=self.num_workers,
                most=self.num_workers if self.autoscaling_algorithm == "NONE" else self.max_num_workers,
            ),
            self.vcpu_hour_price,
        )
