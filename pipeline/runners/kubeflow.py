"""Kubeflow Pipelines and Vertex AI Pipelines: the whole pipeline as one file, in the format that both of them run.

TFX compiles the pipeline, with three differences. Nodes that ask ML Metadata what came before are left out, because
Kubeflow has none for them: what a run is compared with is named in the settings. Types of our own get a name that is
legal there, and containers start through `pipeline.runners.kubeflow_container`, which knows them. And ImageExampleGen
is never served from the cache: our driver, which looks at the images before the cache is asked, does not run there, so
that changed images would go unnoticed.
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
    """What only Kubeflow has to know: the mapping `kubeflow` of the settings.

    Attributes:
      image: container image that every component runs in, with Feedline and its extras `tfx`, `kubeflow` and `gcp`.
      pipeline_root: where artifacts go, `gs://BUCKET/DIR`; empty is `artifacts` in the root.
      display_name: of the runs; empty is the name of the pipeline.
      baseline_dataset: published dataset that the gate measures drift from; empty measures none.
      baseline_model: directory of the `model` of an earlier run, which holds `Format-Serving`; the evaluation compares
        with it. Empty compares with none.
      cpus: most CPU cores of a container; 0 leaves it to the cluster.
      memory_gb: most memory of a container in GB; 0 leaves it to the cluster.
      gpus: accelerators of the Trainer, 0 or more.
      gpu_type: their type, such as `nvidia.com/gpu` on Kubeflow and `NVIDIA_TESLA_T4` on Vertex AI.

    Raises:
      OptionError: a value is out of range; the message names it and what is allowed.
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


def compile(settings: Mapping[str, Any], out: str) -> str:  # noqa: A001 - the name the command calls on every target
    """Writes the pipeline as a file; asks nothing over the network, unless a remote dataset is adopted.

    Args:
      settings: nested, of a `pipeline.yaml`; `kubeflow` holds the fields of `KubeflowOptions`.
      out: file to write: `.yaml` holds a PipelineSpec, for Kubeflow and Vertex AI; `.json` a PipelineJob, which only
        Vertex AI takes.

    Returns:
      one line: what to do next.

    Raises:
      UsageError: a setting cannot be used, or the file cannot be written.
    """
    values = dict(settings)
    options = from_mapping(KubeflowOptions, values.pop(OPTIONS_KEY, {}), OPTIONS_KEY)
    config = configuration.build(values)
    if not out.endswith((*_YAML, _JSON)):
        raise OptionError(
            f"--out {out} must end in .yaml, for Kubeflow and Vertex AI, or in .json, for Vertex AI alone"
        )
    disk.check_file("--out", out)
    root = options.pipeline_root or config.artifacts_dir
    _check_placeholders(config, options)
    _check(config, options, root)
    job = _job(config, options, root)
    content = json.dumps(job, indent=2, sort_keys=True) if out.endswith(_JSON) else yaml.safe_dump(job["pipelineSpec"])
    disk.write_file("--out", out, content.encode())
    return f"{_start(options.display_name or config.name, out)}{''.join(_notes(config))}"


def _start(name: str, out: str) -> str:
    """Returns the lines of Python that run a file."""
    vertex = f'aiplatform.PipelineJob(display_name="{name}", template_path="{out}").submit()'
    if out.endswith(_JSON):
        return f"run it on Vertex AI: {vertex}"
    kubeflow = f'kfp.Client(host=URL).create_run_from_pipeline_package("{out}")'
    return f"run it on Kubeflow, in its web page or with {kubeflow}, or on Vertex AI: {vertex}"


def _notes(config: PipelineConfig) -> Iterator[str]:
    if config.schema and not config.schema_is_reviewed:
        yield f"; schema {config.schema} is not there: the run infers one, review it and compile again"
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
    words = {name: (value, configuration.placeholder_in_path(value)) for name, value in paths.items()}
    words["kubeflow.image"] = options.image, configuration.placeholder_in_image(options.image)
    for name, (value, word) in words.items():
        if word:
            raise OptionError(f"{name} is {value!r}; replace {word} by your name")


def _check(config: PipelineConfig, options: KubeflowOptions, root: str) -> None:
    if not _NAME.fullmatch(config.name):
        raise OptionError(
            f"name is {config.name!r}; on Kubeflow it is made of a-z, 0-9 and -, up to 128 of them, - not in front"
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
    set_ = next((name for name in drift if getattr(limits, name) != getattr(default, name)), "")
    if set_ and not options.baseline_dataset:
        raise OptionError(
            f"gate.{set_} is {getattr(limits, set_)!r}, and on Kubeflow no dataset before is looked up; name it as "
            f"kubeflow.baseline_dataset, or leave out gate.{set_}"
        )
    if config.evaluate.max_drop is not None and not options.baseline_model:
        raise OptionError(
            f"evaluate.max_drop is {config.evaluate.max_drop}, and on Kubeflow no blessed model is looked up; name it "
            "as kubeflow.baseline_model, or leave out evaluate.max_drop"
        )


def _job(config: PipelineConfig, options: KubeflowOptions, root: str) -> dict[str, Any]:
    """Returns a PipelineJob as JSON values."""
    try:
        import kfp  # noqa: F401 - seconds sooner than TFX would find out
        from tfx.orchestration.kubeflow.v2 import kubeflow_v2_dag_runner
    except ImportError as error:
        remedy = stack.pip_install(".[tfx,kubeflow]")
        raise OptionError(f"the target kubeflow needs {error.name}; {remedy}") from error
    from pipeline.pipeline import Baselines, create_pipeline

    pipeline = create_pipeline(config, Baselines(dataset=options.baseline_dataset, model=options.baseline_model))
    _name_types(pipeline)
    _limit_resources(pipeline, options)
    # Version 2.1 of the format is the one that Kubeflow Pipelines takes; its 2.0 is for Vertex AI alone.
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
