"""Kubeflow Pipelines and Vertex AI Pipelines: compiles the pipeline to a file that both can run.

TFX compiles the pipeline, with these differences. Resolvers are omitted, because Kubeflow has no ML Metadata for them;
the settings name the baselines. Artifact types of Feedline get names that are valid in Kubeflow. Containers start with
`pipeline.runners.kubeflow_container`, which maps these names to classes. ImageExampleGen is never cached: Kubeflow does
not run its driver, which detects changed images. An adopted dataset is imported, because the launcher of Kubeflow
rejects the output of a container outside of the pipeline root. A failed container is retried, and continues from
unfinished work in a directory that all runs share.
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

_BUCKET_SCHEME = "gs://"
_CHECKPOINT_STEPS = 500  # evicted trainings resume from a periodic checkpoint: the launcher forwards no SIGTERM
_DISK_MOUNT = "/tmp"  # noqa: S108 - in a container; Kubeflow copies inputs to /gcs, on another volume
_YAML_SUFFIXES, _JSON_SUFFIX = (".yaml", ".yml"), ".json"
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
      image: container image of every component, with Feedline and its extras `tfx`, `kubeflow` and `gcp`.
      pipeline_root: directory of the artifacts, `gs://BUCKET/DIR`; empty is `artifacts` in the root.
      display_name: display name of the runs; empty is the name of the pipeline.
      baseline_dataset: published dataset for the drift checks of the gate; empty for none.
      baseline_model: directory of the artifact `model` of an earlier run, which contains `Format-Serving`, as the
        baseline of the evaluation; empty for none.
      cpus: maximum number of CPU cores of a container; 0 is the default of the cluster.
      memory_gb: maximum memory of a container in GB; 0 is the default of the cluster.
      gpus: number of GPUs of the Trainer, 0 or more, and default of `train.gpus`: the Trainer fails if it finds fewer.
      gpu_type: type of the GPUs, such as `nvidia.com/gpu` on Kubeflow and `NVIDIA_TESLA_T4` on Vertex AI.
      step_cpus: component -> maximum number of CPU cores, instead of `cpus`, such as `{Trainer: 16}`.
      step_memory_gb: component -> maximum memory in GB, instead of `memory_gb`.
      step_gpus: component -> number of GPUs, for other components than the Trainer.
      disk_gb: size in GB of a volume for the temporary files of each container, not on Vertex AI; 0 is the node's disk.
      retries: number of further attempts of a container that failed, 0 or more.
      work_dir: directory of unfinished work, `gs://BUCKET/DIR`, which all runs share; empty is `work` in the root.
      service_account: service account of the runs, an argument in the command that `compile` prints.
      secrets: Kubernetes secret -> directory of every container at which its files are mounted.
      secret_env: environment variable of every container -> `SECRET/KEY`, a key of a Kubernetes secret.

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
        """Name of the first set setting that Vertex AI does not support; empty if there is none."""
        return next((name for name in ("disk_gb", "secrets", "secret_env") if getattr(self, name)), "")


def compile(settings: Mapping[str, Any], out: str) -> str:  # noqa: A001 - common name of all targets
    """Writes the pipeline as a file, without network access except to a remote adopted dataset.

    Args:
      settings: nested settings of a `pipeline.yaml`; `kubeflow` holds the fields of `KubeflowOptions`.
      out: file to write: `.yaml` for a PipelineSpec, for Kubeflow and Vertex AI; `.json` for a PipelineJob, only for
        Vertex AI.

    Returns:
      the next step and remarks, as one line.

    Raises:
      UsageError: a setting cannot be used, or the file cannot be written.
    """
    values = dict(settings)
    options = from_mapping(KubeflowOptions, values.pop(OPTIONS_KEY, {}), OPTIONS_KEY)
    if isinstance(train := values.get("train", {}), Mapping):
        # Without `gpus`, the Trainer would silently use the CPU if TensorFlow found no GPU.
        gpus = options.gpus or options.step_gpus.get(_TRAINER, 0)
        values["train"] = {"checkpoint_steps": _CHECKPOINT_STEPS, "gpus": gpus, **train}
    config = configuration.build(values)
    if not out.endswith((*_YAML_SUFFIXES, _JSON_SUFFIX)):
        raise OptionError(f"--out {out} must end in .yaml, for Kubeflow and Vertex AI, or in .json, only for Vertex AI")
    disk.check_file("--out", out)
    root = options.pipeline_root or config.artifacts_dir
    _check_placeholders(config, options)
    _check_settings(config, options, root)
    if out.endswith(_JSON_SUFFIX) and options.kubernetes_only:
        raise OptionError(f"kubeflow.{options.kubernetes_only} is set, which Vertex AI does not have; leave it out")
    job = _compile_job(config, options, root)
    spec = job["pipelineSpec"]
    # Kubeflow reads the settings for Kubernetes from a second YAML document.
    documents = [spec, *([_platform_spec(spec, options)] if options.kubernetes_only else [])]
    content = json.dumps(job, indent=2, sort_keys=True) if out.endswith(_JSON_SUFFIX) else yaml.safe_dump_all(documents)
    disk.write_file("--out", out, content.encode())
    return f"{_run_hint(options, options.display_name or config.name, out)}{''.join(_notes(config))}"


def _platform_spec(spec: Mapping[str, Any], options: KubeflowOptions) -> dict[str, Any]:
    """Returns the PlatformSpec, with the volumes and secrets of every container."""
    container_settings: dict[str, Any] = {}
    if options.disk_gb:
        volume: dict[str, Any] = {"volumeName": "scratch", "mountPath": _DISK_MOUNT, "size": f"{options.disk_gb}Gi"}
        volume |= {"accessModes": ["ReadWriteOnce"], "defaultStorageClass": True}
        container_settings["genericEphemeralVolume"] = [volume]
    if options.secrets:
        mounts = options.secrets.items()
        container_settings["secretAsVolume"] = [{"secretName": name, "mountPath": mount} for name, mount in mounts]
    if options.secret_env:
        keys = {variable: source.split("/") for variable, source in options.secret_env.items()}
        container_settings["secretAsEnv"] = [
            {"secretName": name, "keyToEnv": [{"secretKey": key, "envVar": variable}]}
            for variable, (name, key) in keys.items()
        ]
    executors = spec["deploymentSpec"]["executors"].items()
    # Copies, because YAML would write a shared object as an anchor with aliases.
    configs = {label: copy.deepcopy(container_settings) for label, executor in executors if "container" in executor}
    return {"platforms": {"kubernetes": {"deploymentSpec": {"executors": configs}}}}


def _run_hint(options: KubeflowOptions, name: str, out: str) -> str:
    """Returns a hint how to run the compiled file."""
    account = f'service_account="{options.service_account}"' if options.service_account else ""
    vertex = f'aiplatform.PipelineJob(display_name="{name}", template_path="{out}").submit({account})'
    if out.endswith(_JSON_SUFFIX):
        return f"run it on Vertex AI: {vertex}"
    arguments = f'"{out}", {account}' if account else f'"{out}"'
    kubeflow = "run it on Kubeflow, in its web page or with kfp.Client(host=URL).create_run_from_pipeline_package"
    alternative = "" if options.kubernetes_only else f", or on Vertex AI: {vertex}"
    return f"{kubeflow}({arguments}){alternative}"


def _notes(config: PipelineConfig) -> Iterator[str]:
    """Yields remarks that are appended to the hint."""
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
    if not root.startswith(_BUCKET_SCHEME):
        name = "kubeflow.pipeline_root" if options.pipeline_root else "root"
        raise OptionError(
            f"{name} is {options.pipeline_root or config.root!r}; containers of TFX share artifacts through a bucket, "
            f"set it to {_BUCKET_SCHEME}BUCKET/DIR"
        )
    if storage.is_remote(config.dataset) and not config.dataset.startswith(_BUCKET_SCHEME):
        raise OptionError(
            f"dataset is {config.dataset!r}; containers of TFX read datasets from {_BUCKET_SCHEME}BUCKET/DIR only"
        )
    if config.train.strategy == "tpu":
        raise OptionError(f"train.strategy is 'tpu'; {_NO_TPU}")
    if not config.train.checkpoint_steps:
        raise OptionError("train.checkpoint_steps is 0; containers end without SIGTERM, set it to at least 1")
    drift_settings = ("max_drift_l_infinity", "max_drift_jensen_shannon", "drift_limits")
    limits, default = config.gate, GateLimits()
    changed = next((name for name in drift_settings if getattr(limits, name) != getattr(default, name)), "")
    if changed and not options.baseline_dataset:
        raise OptionError(
            f"gate.{changed} is {getattr(limits, changed)!r}, and Kubeflow looks up no earlier dataset; name one as "
            f"kubeflow.baseline_dataset, or leave out gate.{changed}"
        )
    if config.evaluate.max_drop is not None and not options.baseline_model:
        raise OptionError(
            f"evaluate.max_drop is {config.evaluate.max_drop}, and Kubeflow looks up no blessed model; name one "
            "as kubeflow.baseline_model, or leave out evaluate.max_drop"
        )


def _compile_job(config: PipelineConfig, options: KubeflowOptions, root: str) -> dict[str, Any]:
    """Returns the compiled pipeline as a PipelineJob in JSON values."""
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
    """Replaces the artifact types of Feedline by subclasses whose names are valid in Kubeflow."""
    titles = {path: title for title, path in TYPES.items()}
    for node in pipeline.components:
        for channel in node.outputs.values():
            artifact_type = channel.type
            title = titles.get(f"{artifact_type.__module__}.{artifact_type.__name__}")
            if title:
                channel.type = type(artifact_type.__name__, (artifact_type,), {"TYPE_NAME": title})


def _limit_resources(pipeline: Pipeline, options: KubeflowOptions) -> None:
    from kfp.pipeline_spec import pipeline_spec_pb2
    from tfx.dsl.components.base.base_component import BaseComponent

    component_ids = [node.id for node in pipeline.components if isinstance(node, BaseComponent)]
    for setting in ("step_cpus", "step_memory_gb", "step_gpus"):
        for name in getattr(options, setting):
            if name not in component_ids:
                raise OptionError(unknown("component", name, component_ids, f"kubeflow.{setting}."))
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
