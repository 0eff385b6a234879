"""The configuration of a pipeline, composed of the options of its parts, and the search for placeholders in it.

A placeholder is a word of an example, such as BUCKET in `gs://BUCKET/DIR`, that the user has to replace.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from pydantic.dataclasses import dataclass as options

from beam_jobs import storage
from beam_jobs.common import yaml_text
from beam_jobs.common.settings import STRICT, Options, fields, from_mapping, not_a_section
from beam_jobs.dataset.schemas import check_column
from beam_jobs.errors import OptionError
from beam_jobs.options import LOCAL_BEAM_ARGS, IngestOptions
from beam_jobs.runners.dataflow import component_arguments
from beam_jobs.sources import spans
from beam_jobs.storage import is_remote
from components.dataset_gate.limits import GateLimits
from components.evaluation.results import EvaluateOptions
from components.image_example_gen import check_dataset
from trainer.input.columns import TransformOptions
from trainer.options import InputOptions, TrainOptions

# Valid names of buckets and images contain no capitals and no brackets.
_PLACEHOLDER = re.compile(r"[A-Z][A-Z0-9_-]*|.*[<>{}$].*")


def placeholder_in_path(path: str) -> str:
    """Returns the bucket of a remote path if it is a placeholder, else an empty string."""
    bucket = path.partition("://")[2].partition("/")[0]
    return bucket if is_remote(path) and _PLACEHOLDER.fullmatch(bucket) else ""


def placeholder_in_image(image: str) -> str:
    """Returns the first placeholder in the name of a container image; empty when there is none."""
    parts = (re.split("[:@]", part)[0] for part in image.split("/"))
    return next((part for part in parts if _PLACEHOLDER.fullmatch(part)), "")


LOCK_NAME, LOG_NAME = ".lock", "run.log"  # file names in the root
# Sections for targets, the systems that run the pipeline; each target checks its own section.
TARGET_SECTIONS = ("engine", "kubeflow", "airflow")
# Ingest settings that a pipeline does not allow, because it writes each dataset into a new directory.
NOT_IN_A_PIPELINE = tuple(name for name, option in fields(IngestOptions).items() if not option.field.in_pipeline)


@dataclass(frozen=True, kw_only=True)
class DataShape:
    """Properties of the data that the pipeline needs before it runs.

    Attributes:
      splits: names of the splits, in order; the first is for training, the second for evaluation.
      extra: names of the user columns, without `extra/`.
      facts: kind of the image facts, `all` or `basic`.
      is_weighted: whether records contain the weight of their image.
      raw_side_px: height and width of stored pixels; None when records contain image files.
      label_kind: label kind of an adopted dataset, one of `types.LABEL_KINDS`; empty for an ingest.
    """

    splits: tuple[str, ...]
    extra: tuple[str, ...]
    facts: str
    is_weighted: bool
    raw_side_px: int | None
    label_kind: str


@options(frozen=True, kw_only=True, config=STRICT)
class PipelineConfig(Options):
    """All settings of a pipeline.

    Attributes:
      name: name of the pipeline in ML Metadata; runs with the same name share their cache.
      root: directory for all files that the pipeline writes. The local runner does not accept a remote one, such as
        `gs://bucket/work`.
      ingest: source of the images and options of the dataset; None when `dataset` is adopted instead.
      dataset: published dataset to use instead of an ingest; it is not copied.
      span: number that replaces `{SPAN}` in the source or the dataset; None selects the newest span.
      version: number that replaces `{VERSION}` in the same path; None selects the newest version of the span.
      schema: reviewed schema file. If it does not exist, the first run writes it, for review; empty infers a schema in
        every run.
      gate: limits of the dataset.
      transform: preprocessing of user columns.
      input: options of the input pipeline.
      train: options of the training.
      evaluate: limits of the model.
      beam_args: arguments of the Beam runner of the components; the default runs Beam in the process of the component.
        Arguments for Dataflow are checked and completed like the settings of `engine`.
    """

    root: str
    ingest: IngestOptions | None = None
    dataset: str = ""
    span: int | None = None
    version: int | None = None
    name: str = "feedline"
    schema: str = ""
    gate: GateLimits = field(default_factory=GateLimits)
    transform: TransformOptions = field(default_factory=TransformOptions)
    input: InputOptions = field(default_factory=InputOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions)
    beam_args: tuple[str, ...] = LOCAL_BEAM_ARGS

    def __post_init__(self) -> None:
        if not self.root:
            raise OptionError("root is empty; name a directory for everything the pipeline writes")
        if (self.ingest is None) == (not self.dataset):
            conflict = "neither images nor a dataset" if self.ingest is None else "both images and a dataset"
            raise OptionError(f"the configuration has {conflict}; set ingest.source, or dataset to a published dataset")
        if self.schema and not os.path.isfile(self.schema):
            self._check_new_schema()
        spans.check(self.pattern, self.span, self.version)
        if self.train.strategy == "multi_worker":
            raise OptionError(
                "train.strategy is multi_worker, and a pipeline runs in one process; start `trainer.job.fit` on every "
                "worker, with a dataset that `feedline ingest` wrote",
                ["train.strategy"],
            )
        component_arguments(self.beam_args, image="placeholder")  # only checks; `create_pipeline` sets the image
        if self.ingest:
            self.data()  # checks the options; an adopted dataset is read later

    @property
    def pattern(self) -> str:
        """The source or the adopted dataset, with its placeholders for span and version."""
        return self.ingest.source if self.ingest else self.dataset

    @property
    def schema_is_reviewed(self) -> bool:
        """Whether the schema file exists; if not, a run infers a schema."""
        return bool(self.schema) and os.path.isfile(self.schema)

    def resolved(self) -> PipelineConfig:
        """Returns the same configuration with absolute paths."""
        ingest = self.ingest and dataclasses.replace(self.ingest, source=_absolute_if_local(self.ingest.source))
        return dataclasses.replace(
            self,
            root=_absolute_if_local(self.root),
            ingest=ingest,
            dataset=self.dataset and _absolute_if_local(self.dataset),
            schema=self.schema and os.path.abspath(self.schema),
        )

    def _check_new_schema(self) -> None:
        if os.path.exists(self.schema) or not os.path.isdir(os.path.dirname(os.path.abspath(self.schema))):
            raise OptionError(
                f"schema is {self.schema!r}, which is not a file, and cannot be created; name an existing "
                "file, or a new file in an existing directory"
            )

    def resolved_source(self) -> str:
        """Returns the path of the images or of the adopted dataset, with span and version filled in.

        Raises:
          SourceError: the span or version does not exist.
        """
        return spans.resolve(self.pattern, self.span, self.version).source

    def data(self) -> DataShape:
        """Returns the properties of the data; those of an ingest come from its options, the source is not read.

        Raises:
          UsageError: settings do not fit the data, or the adopted dataset cannot be used.
          CorruptDataset: the adopted dataset is damaged.
        """
        if self.ingest:
            splits, options, label_kind = tuple(self.ingest.splits), self.ingest.to_json(), ""
        else:
            dataset = check_dataset(self.resolved_source())
            splits, options, label_kind = tuple(dataset.splits), dict(dataset.options), dataset.label_kind
        columns, pixels = options["columns"], options["pixels"]
        shape = DataShape(
            splits=splits,
            extra=tuple(columns["extra"]),
            facts=options["facts"],
            is_weighted=bool(columns["weight"]),
            raw_side_px=pixels["side_px"] if pixels["policy"] == "raw" else None,
            label_kind=label_kind,
        )
        self._check_settings_fit(shape)
        return shape

    def _check_settings_fit(self, data: DataShape) -> None:
        """Raises `OptionError` when settings need other splits, facts or user columns than the data has."""
        if len(data.splits) < 2:
            raise OptionError(
                f"ingest.splits has only {data.splits[0]}; evaluation needs a second split, as in train=0.9,eval=0.1"
            )
        if data.facts != "all":
            raise OptionError("facts is basic; statistics and normalisation need facts: all")
        for name in self.input.columns:
            check_column(name, data.extra, "input.columns")
        self.transform.check(data.extra)
        self.evaluate.check(data.extra)

    @property
    def metadata_path(self) -> str:
        """The path of the ML Metadata database."""
        return storage.join(self.root, "metadata.sqlite")

    @property
    def artifacts_dir(self) -> str:
        """The directory of the outputs of the components."""
        return storage.join(self.root, "artifacts")

    @property
    def serving_dir(self) -> str:
        """The directory of pushed models, with a numbered directory for each version."""
        return storage.join(self.root, "serving")


def load(path: str) -> dict[str, Any]:
    """Reads a YAML file of settings.

    Raises:
      OptionError: the file cannot be read or does not contain a mapping.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            values = yaml_text.parse(stream)
    except FileNotFoundError as error:
        raise OptionError(f"config {path} cannot be read: it does not exist; `feedline init` creates one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"config {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise OptionError(f"config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise OptionError(f"config {path} must contain a mapping such as `train: {{epochs: 10}}`")
    return values


def build(settings: Mapping[str, Any]) -> PipelineConfig:
    """Builds a configuration from nested settings, the content of a `pipeline.yaml`.

    Args:
      settings: nested settings; the sections in `TARGET_SECTIONS` are ignored.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type; the message names it.
    """
    settings = {key: value for key, value in settings.items() if key not in TARGET_SECTIONS}
    if "ingest" not in settings:
        return from_mapping(PipelineConfig, settings, "").resolved()
    ingest = settings["ingest"]
    if not isinstance(ingest, Mapping):
        raise not_a_section("ingest", ingest)
    for name in NOT_IN_A_PIPELINE:
        if name in ingest:
            message = f"ingest.{name} is not allowed in a pipeline, which writes each dataset into a new directory"
            raise OptionError(f"{message}; remove it", [f"ingest.{name}"])
    return from_mapping(PipelineConfig, {**settings, "ingest": {**ingest, "out": ""}}, "").resolved()


def _absolute_if_local(path: str) -> str:
    return path if storage.is_remote(path) else os.path.abspath(path)
