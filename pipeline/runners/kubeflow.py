"""Kubeflow Pipelines and Vertex AI Pipelines: compiles the pipeline to a file that both can run.

TFX compiles the pipeline, with three differences. Resolvers are left out, because Kubeflow has no ML Metadata for them:
the settings name the baselines. Our artifact types get names that are valid in Kubeflow, and containers start through
`pipeline.runners.kubeflow_container`, which maps them to classes. ImageExampleGen is never cached, because its driver,
which detects changed images, does not run there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import yaml
from pydantic.dataclasses import dataclass

from beam_jobs import stack, storage
from beam_jobs.common.settings import STRICT, Count, NotNegative, Options, from_mapping
from beam_jobs.errors import OptionError
from beam_jobs.storage import disk
from components.dataset_gate.limits import GateLimits
from pipeline import config as configuration
from pipeline.config import PipelineConfig
from pipeline.runners.kubeflow_container import COMMAND, TYPES

if TYPE_CHECKING:
    from tfx import v1 as tfx

OPTIONS_KEY = "kubeflow"
UNCACHED = "ImageExampleGen"

_STORE = "gs://"
_YAML, _JSON = (".yaml", ".yml"), ".json"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")
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
      gpus: number of accelerators of the Trainer, 0 or more. Unless they are TPUs, it is also the default of
        `train.gpus`, so that the Trainer ends if TensorFlow finds fewer.
      gpu_type: type of the accelerators, such as `nvidia.com/gpu` on Kubeflow and `NVIDIA_TESLA_T4` on Vertex AI.

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

    def __post_init__(self) -> None:
        if not self.image or self.image.split() != [self.image]:
            raise OptionError(
                f"kubeflow.image is {self.image!r}; name a container image such as europe-docker.pkg.dev/P/R/feedline:1"
            )
        if bool(self.gpus) != bool(self.gpu_type):
            raise OptionError(
                f"kubeflow.gpus is {self.gpus} and kubeflow.gpu_type is {self.gpu_type!r}; give both or neither"
            )


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
    if options.gpus and "tpu" not in options.gpu_type.lower() and isinstance(train := values.get("train", {}), Mapping):
        values["train"] = {"gpus": options.gpus, **train}  # else it would train on the CPU beside them, without a word
    config = configuration.build(values)
    if not out.endswith((*_YAML, _JSON)):
        raise OptionError(f"--out {out} must end in .yaml, for Kubeflow and Vertex AI, or in .json, only for Vertex AI")
    disk.check_file("--out", out)
    root = options.pipeline_root or config.artifacts_dir
    _check_placeholders(config, options)
    _check_settings(config, options, root)
    job = _job(config, options, root)
    content = json.dumps(job, indent=2, sort_keys=True) if out.endswith(_JSON) else yaml.safe_dump(job["pipelineSpec"])
    disk.write_file("--out", out, content.encode())
    return f"{_run_hint(options.display_name or config.name, out)}{''.join(_notes(config))}"


def _run_hint(name: str, out: str) -> str:
    """Returns a hint how to run a file."""
    vertex = f'aiplatform.PipelineJob(display_name="{name}", template_path="{out}").submit()'
    if out.endswith(_JSON):
        return f"run it on Vertex AI: {vertex}"
    kubeflow = f'kfp.Client(host=URL).create_run_from_pipeline_package("{out}")'
    return f"run it on Kubeflow, in its web page or with {kubeflow}, or on Vertex AI: {vertex}"


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
    from pipeline.pipeline import Baselines, create_pipeline

    pipeline = create_pipeline(config, Baselines(dataset=options.baseline_dataset, model=options.baseline_model))
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
    job["pipelineSpec"]["root"]["dag"]["tasks"][UNCACHED]["cachingOptions"] = {}
    return job


def _name_types(pipeline: tfx.dsl.Pipeline) -> None:
    titles = {path: title for title, path in TYPES.items()}
    for node in pipeline.components:
        for channel in node.outputs.values():
            kind = channel.type
            title = titles.get(f"{kind.__module__}.{kind.__name__}")
            if title:
                channel.type = type(kind.__name__, (kind,), {"TYPE_NAME": title})


def _limit_resources(pipeline: tfx.dsl.Pipeline, options: KubeflowOptions) -> None:
    from kfp.pipeline_spec import pipeline_spec_pb2
    from tfx.dsl.components.base.base_component import BaseComponent

    for node in pipeline.components:
        limits = pipeline_spec_pb2.PipelineDeploymentConfig.PipelineContainerSpec.ResourceSpec(
            cpu_limit=options.cpus, memory_limit=options.memory_gb
        )
        if options.gpus and node.id == _TRAINER:
            limits.accelerator.type, limits.accelerator.count = options.gpu_type, options.gpus
        if isinstance(node, BaseComponent) and limits.ListFields():
            node.with_platform_config(limits)
