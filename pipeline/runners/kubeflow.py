"""Kubeflow Pipelines and Vertex AI Pipelines: compiles the pipeline to a file that both can run.

TFX compiles the pipeline, with these differences. Resolvers are left out, because Kubeflow has no ML Metadata for them:
the settings name the baselines. Our artifact types get names that are valid in Kubeflow, and containers start through
`pipeline.runners.kubeflow_container`, which maps them to classes. ImageExampleGen is never cached, because its driver,
which detects changed images, does not run there. An adopted dataset is imported, because the launcher of Kubeflow
rejects the output of a container outside of the pipeline root. Every container is tried again after a failure, and work
that is not finished lies in one directory for all runs, where the next attempt continues.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

import yaml
from pydantic.dataclasses import dataclass

from beam_jobs import stack, storage
from beam_jobs.common.settings import STRICT, Count, NotNegative, Options, from_mapping
from beam_jobs.common.strings import unknown
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk
from components.dataset_gate.limits import GateLimits
from pipeline import config as configuration
from pipeline.config import PipelineConfig
from pipeline.runners.kubeflow_container import COMMAND, TYPES

if TYPE_CHECKING:
    from tfx.orchestration.pipeline import Pipeline

OPTIONS_KEY = "kubeflow"
UNCACHED = "ImageExampleGen"

_STORE = "gs://"
_CHECKPOINT_STEPS = 500  # the launcher passes no SIGTERM on, so the last checkpoint is what an evicted training has
_DISK_MOUNT = "/tmp"  # noqa: S108 - of a container; inputs are copied to /gcs, where Kubeflow has a volume of its own
_YAML, _JSON = (".yaml", ".yml"), ".json"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
_NO_TPU = (
    "the image has no libtpu, because its TensorFlow has no package for TPUs; "
    "train on GPUs, or on a TPU machine with `feedline run`"
)
_SECRET_KEY = re.compile(r"[^/\s]+/[^/\s]+")
_TRAINER = "Trainer"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class KubeflowOptions(Options):
    """Settings of Kubeflow: the section `kubeflow`.

    Attributes:
      image: container image that every component runs in, with Feedline and its extras `tfx`, `kubeflow` and `gcp`.
      pipeline_root: directory of the artifacts, `gs://BUCKET/DIR`; empty is `artifacts` in the root.
      display_name: display name of the runs; empty is the name of the pipeline.
      baseline_dataset: published dataset for the drift checks of the gate; empty for none.
      baseline_model: directory of the `model` of an earlier run, with `Format-Serving`, to compare with in the
        evaluation; empty for none.
      cpus: maximum number of CPU cores of a container; 0 is the default of the cluster.
      memory_gb: maximum memory of a container in GB; 0 is the default of the cluster.
      gpus: number of GPUs of the Trainer, 0 or more; also the default of `train.gpus`, so that the Trainer ends if
        TensorFlow finds fewer.
      gpu_type: type of the GPUs, such as `nvidia.com/gpu` on Kubeflow and `NVIDIA_TESLA_T4` on Vertex AI.
      step_cpus: component -> maximum number of CPU cores that takes the place of `cpus`, such as `{Trainer: 16}`.
      step_memory_gb: component -> maximum memory in GB that takes the place of `memory_gb`.
      step_gpus: component -> number of GPUs, for others than the Trainer.
      disk_gb: size of a volume for the temporary files of each container, in GB; 0 is the disk of the node. Only
        Kubeflow has such volumes.
      retries: number of further attempts of a container that failed, 0 or more.
      work_dir: directory of unfinished work, `gs://BUCKET/DIR`, which all runs share; empty is `work` in the root.
      service_account: service account of the runs; the command that `compile` prints names it.
      secrets: secret of Kubernetes -> directory in which every container finds its files.
      secret_env: environment variable of every container -> `SECRET/KEY` of Kubernetes.

    Raises:
      OptionError: a value is out of range; the message gives the value and the allowed values.
    """

    image: str
    pipeline_root: str = ""
    display_name: str = ""
    baseline_dataset: str = ""
    baseline_model: str = ""
    cpus: NotNegative = 0.0
    memory_gb: NotNegative = 0.0
    gpus: Count = 0
    gpu_type: str = ""
    step_cpus: Mapping[str, NotNegative] = field(default_factory=dict)
    step_memory_gb: Mapping[str, NotNegative] = field(default_factory=dict)
    step_gpus: Mapping[str, Count] = field(default_factory=dict)
    disk_gb: Count = 0
    retries: Count = 2
    work_dir: str = ""
    service_account: str = ""
    secrets: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.image or self.image.split() != [self.image]:
            raise OptionError(
                f"kubeflow.image is {self.image!r}; name a container image such as europe-docker.pkg.dev/P/R/feedline:1"
            )
        if bool(self.gpus or any(self.step_gpus.values())) != bool(self.gpu_type):
            raise OptionError(
                f"kubeflow.gpus is {self.gpus} and kubeflow.gpu_type is {self.gpu_type!r}; give both or neither"
            )
        if "tpu" in self.gpu_type.lower():
            raise OptionError(f"kubeflow.gpu_type is {self.gpu_type!r}; {_NO_TPU}")
        if self.gpus and _TRAINER in self.step_gpus:
            raise OptionError(f"kubeflow.gpus and kubeflow.step_gpus.{_TRAINER} are both set; give one of them")
        for name, mount in self.secrets.items():
            if not mount.startswith("/"):
                raise OptionError(
                    f"kubeflow.secrets.{name} is {mount!r}; name a directory of the container, as in /key"
                )
        for name, source in self.secret_env.items():
            if not _SECRET_KEY.fullmatch(source):
                raise OptionError(f"kubeflow.secret_env.{name} is {source!r}; it must be SECRET/KEY")

    @property
    def kubernetes_only(self) -> str:
        """The first setting with a value that Vertex AI has nothing for; empty when there is none."""
        return next((name for name in ("disk_gb", "secrets", "secret_env") if getattr(self, name)), "")


def compile(settings: Mapping[str, Any], out: str) -> str:  # noqa: A001 - common name of all targets
    """Writes the pipeline as a file, without network access except to a remote adopted dataset.

    Args:
      settings: nested settings of a `pipeline.yaml`; `kubeflow` holds the fields of `KubeflowOptions`.
      out: file to write: `.yaml` for a PipelineSpec, for Kubeflow and Vertex AI; `.json` for a PipelineJob, only for
        Vertex AI.

    Returns:
      a line with the next step.

    Raises:
      UsageError: a setting cannot be used, or the file cannot be written.
    """
    values = dict(settings)
    options = from_mapping(KubeflowOptions, values.pop(OPTIONS_KEY, {}), OPTIONS_KEY)
    if isinstance(train := values.get("train", {}), Mapping):
        # Without the number it would train on the CPU beside accelerators, without a word.
        gpus = options.gpus or options.step_gpus.get(_TRAINER, 0)
        values["train"] = {"checkpoint_steps": _CHECKPOINT_STEPS, "gpus": gpus, **train}
    config = configuration.build(values)
    if not out.endswith((*_YAML, _JSON)):
        raise OptionError(f"--out {out} must end in .yaml, for Kubeflow and Vertex AI, or in .json, only for Vertex AI")
    disk.check_file("--out", out)
    root = options.pipeline_root or config.artifacts_dir
    _check_placeholders(config, options)
    _check_settings(config, options, root)
    if out.endswith(_JSON) and options.kubernetes_only:
        raise OptionError(f"kubeflow.{options.kubernetes_only} is set, which Vertex AI does not have; leave it out")
    job = _job(config, options, root)
    spec = job["pipelineSpec"]
    # Kubeflow reads what only Kubernetes knows from a second document.
    documents = [spec, *([_kubernetes(spec, options)] if options.kubernetes_only else [])]
    content = json.dumps(job, indent=2, sort_keys=True) if out.endswith(_JSON) else yaml.safe_dump_all(documents)
    disk.write_file("--out", out, content.encode())
    return f"{_run_hint(options, options.display_name or config.name, out)}{''.join(_notes(config))}"


def _kubernetes(spec: Mapping[str, Any], options: KubeflowOptions) -> dict[str, Any]:
    """Returns the volumes and secrets of every container as a PlatformSpec."""
    settings: dict[str, Any] = {}
    if options.disk_gb:
        volume: dict[str, Any] = {"volumeName": "scratch", "mountPath": _DISK_MOUNT, "size": f"{options.disk_gb}Gi"}
        volume |= {"accessModes": ["ReadWriteOnce"], "defaultStorageClass": True}
        settings["genericEphemeralVolume"] = [volume]
    if options.secrets:
        mounts = options.secrets.items()
        settings["secretAsVolume"] = [{"secretName": name, "mountPath": mount} for name, mount in mounts]
    if options.secret_env:
        keys = {variable: source.split("/") for variable, source in options.secret_env.items()}
        settings["secretAsEnv"] = [
            {"secretName": name, "keyToEnv": [{"secretKey": key, "envVar": variable}]}
            for variable, (name, key) in keys.items()
        ]
    executors = spec["deploymentSpec"]["executors"].items()
    # Copies, because YAML would write references to one object.
    labels = {label: copy.deepcopy(settings) for label, executor in executors if "container" in executor}
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": labels}}}}


def _run_hint(options: KubeflowOptions, name: str, out: str) -> str:
    """Returns a hint how to run a file."""
    account = f'service_account="{options.service_account}"' if options.service_account else ""
    vertex = f'aiplatform.PipelineJob(display_name="{name}", template_path="{out}").submit({account})'
    if out.endswith(_JSON):
        return f"run it on Vertex AI: {vertex}"
    arguments = f'"{out}", {account}' if account else f'"{out}"'
    kubeflow = "run it on Kubeflow, in its web page or with kfp.Client(host=URL).create_run_from_pipeline_package"
    either = "" if options.kubernetes_only else f", or on Vertex AI: {vertex}"
    return f"{kubeflow}({arguments}){either}"


def _notes(config: PipelineConfig) -> Iterator[str]:
    if config.schema and not config.schema_is_reviewed:
        yield f"; schema {config.schema} does not exist: the run infers one, review it and compile again"
    if not storage.is_remote(config.root):
        yield f"; models are pushed to {config.serving_dir}, which must be a volume of the containers"


def _check_placeholders(config: PipelineConfig, options: KubeflowOptions) -> None:
    paths = {
        "root": config.root,
        "kubeflow.pipeline_root": options.pipeline_root,
        "ingest.source" if config.ingest else "dataset": config.pattern,
        "kubeflow.baseline_dataset": options.baseline_dataset,
        "kubeflow.baseline_model": options.baseline_model,
        "kubeflow.work_dir": options.work_dir,
    }
    placeholders = {name: (value, configuration.placeholder_in_path(value)) for name, value in paths.items()}
    placeholders["kubeflow.image"] = options.image, configuration.placeholder_in_image(options.image)
    for name, (value, placeholder) in placeholders.items():
        if placeholder:
            raise OptionError(f"{name} is {value!r}; replace {placeholder} by your name")


def _check_settings(config: PipelineConfig, options: KubeflowOptions, root: str) -> None:
    if not _NAME.fullmatch(config.name):
        raise OptionError(
            f"name is {config.name!r}; on Kubeflow it must have 1 to 128 characters a-z, 0-9 and -, the first not -"
        )
    if not root.startswith(_STORE):
        name = "kubeflow.pipeline_root" if options.pipeline_root else "root"
        raise OptionError(
            f"{name} is {options.pipeline_root or config.root!r}; containers of TFX share artifacts through a bucket, "
            f"set it to {_STORE}BUCKET/DIR"
        )
    if storage.is_remote(config.dataset) and not config.dataset.startswith(_STORE):
        raise OptionError(
            f"dataset is {config.dataset!r}; containers of TFX read datasets from {_STORE}BUCKET/DIR only"
        )
    if config.train.strategy == "tpu":
        raise OptionError(f"train.strategy is 'tpu'; {_NO_TPU}")
    if not config.train.checkpoint_steps:
        raise OptionError("train.checkpoint_steps is 0; containers end without SIGTERM, set it to at least 1")
    drift = ("max_drift_l_infinity", "max_drift_jensen_shannon", "drift_limits")
    limits, default = config.gate, GateLimits()
    limit = next((name for name in drift if getattr(limits, name) != getattr(default, name)), "")
    if limit and not options.baseline_dataset:
        raise OptionError(
            f"gate.{limit} is {getattr(limits, limit)!r}, and Kubeflow looks up no earlier dataset; name one as "
            f"kubeflow.baseline_dataset, or leave out gate.{limit}"
        )
    if config.evaluate.max_drop is not None and not options.baseline_model:
        raise OptionError(
            f"evaluate.max_drop is {config.evaluate.max_drop}, and Kubeflow looks up no blessed model; name one "
            "as kubeflow.baseline_model, or leave out evaluate.max_drop"
        )


def _job(config: PipelineConfig, options: KubeflowOptions, root: str) -> dict[str, Any]:
    """Returns a PipelineJob as JSON values."""
    try:
        import kfp  # noqa: F401 - fails faster than the import of TFX
        from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner
    except ImportError as error:
        remedy = stack.pip_install(".[tfx,kubeflow]")
        raise OptionError(f"the target kubeflow needs {error.name}; {remedy}") from error
    from pipeline.pipeline import Service, create_pipeline

    service = Service(
        baseline_dataset=options.baseline_dataset,
        baseline_model=options.baseline_model,
        work_dir=options.work_dir or storage.join(config.root if storage.is_remote(config.root) else root, "work"),
        image=options.image,
    )
    pipeline = create_pipeline(config, service)
    _name_types(pipeline)
    _limit_resources(pipeline, options)
    # Kubeflow Pipelines reads version 2.1 of the format; version 2.0 is only for Vertex AI.
    settings = kubeflow_v2_dag_runner.KubeflowV2DagRunnerConfig(
        display_name=options.display_name or config.name,
        default_image=options.image,
        default_commands=list(COMMAND),
        use_pipeline_spec_2_1=True,
    )
    job: dict[str, Any] = kubeflow_v2_dag_runner.KubeflowV2DagRunner(settings).run(pipeline, write_out=False)
    job["runtimeConfig"]["gcsOutputDirectory"] = job["pipelineSpec"]["defaultPipelineRoot"] = root
    executors = job["pipelineSpec"]["deploymentSpec"]["executors"]
    for name, task in job["pipelineSpec"]["root"]["dag"]["tasks"].items():
        if name == UNCACHED:
            task["cachingOptions"] = {}
        if options.retries and "container" in executors.get(f"{name}_executor", {}):
            task["retryPolicy"] = {"maxRetryCount": options.retries, "backoffDuration": "30s", "backoffFactor": 2.0}
    return job


def _name_types(pipeline: Pipeline) -> None:
    titles = {path: title for title, path in TYPES.items()}
    for node in pipeline.components:
        for channel in node.outputs.values():
            kind = channel.type
            title = titles.get(f"{kind.__module__}.{kind.__name__}")
            if title:
                channel.type = type(kind.__name__, (kind,), {"TYPE_NAME": title})


def _limit_resources(pipeline: Pipeline, options: KubeflowOptions) -> None:
    from kfp.pipeline_spec import pipeline_spec_pb2
    from tfx.dsl.components.base.base_component import BaseComponent

    ids = [node.id for node in pipeline.components if isinstance(node, BaseComponent)]
    for setting in ("step_cpus", "step_memory_gb", "step_gpus"):
        for name in getattr(options, setting):
            if name not in ids:
                raise OptionError(unknown("component", name, ids, f"kubeflow.{setting}."))
    gpus = {_TRAINER: options.gpus, **options.step_gpus}
    for node in pipeline.components:
        limits = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec(
            cpu_limit=options.step_cpus.get(node.id, options.cpus),
            memory_limit=options.step_memory_gb.get(node.id, options.memory_gb),
        )
        if gpus.get(node.id):
            limits.accelerator.type, limits.accelerator.count = options.gpu_type, gpus[node.id]
        if isinstance(node, BaseComponent) and limits.ListFields():
            node.with_platform_config(limits)
