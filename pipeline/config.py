"""The configuration of a pipeline: one value, composed of the options of its parts, read from YAML or built in code."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from beam_jobs import validate
from beam_jobs.errors import OptionError
from beam_jobs.options import LOCAL_BEAM_ARGS, IngestOptions
from beam_jobs.storage import is_remote
from beam_jobs.suggest import unknown
from components.dataset_gate.limits import GateLimits
from trainer.options import InputOptions, TrainOptions

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions:
    """When a model is good enough to be pushed.

    Attributes:
      min_accuracy: accuracy on the eval split below which the model is not blessed, 0-1. 0 pushes any model.
    """

    min_accuracy: float = 0.0

    def __post_init__(self) -> None:
        validate.share("min_accuracy", self.min_accuracy)


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Everything a pipeline is told.

    Attributes:
      name: of the pipeline, in ML Metadata.
      root: directory of everything the pipeline writes.
      ingest: where the images come from and how they become a dataset.
      schema: reviewed schema file; empty infers one and says so.
      gate: what the dataset may be.
      input: how shards become batches.
      train: how the model is trained.
      evaluate: when it is good enough.
      beam_args: arguments of the Beam runner.
    """

    root: str
    ingest: IngestOptions
    name: str = "feedline"
    schema: str = ""
    gate: GateLimits = field(default_factory=GateLimits)
    input: InputOptions = field(default_factory=InputOptions)
    train: TrainOptions = field(default_factory=TrainOptions)
    evaluate: EvaluateOptions = field(default_factory=EvaluateOptions)
    beam_args: tuple[str, ...] = LOCAL_BEAM_ARGS

    def __post_init__(self) -> None:
        if is_remote(self.root):
            raise OptionError(f"root is {self.root!r}; the local runner needs a local directory")
        if self.schema and not os.path.isfile(self.schema):
            raise OptionError(f"schema is {self.schema!r}, which is not a file; leave it out to infer one")
        if len(self.ingest.splits) < 2:
            only = next(iter(self.ingest.splits))
            raise OptionError(f"splits names only {only}; a model is evaluated on the second, as in train=0.9,eval=0.1")

    def resolved(self) -> PipelineConfig:
        """Returns the same configuration with absolute paths, so that it means the same from any directory."""
        source = self.ingest.source if is_remote(self.ingest.source) else os.path.abspath(self.ingest.source)
        return dataclasses.replace(
            self, root=os.path.abspath(self.root), ingest=dataclasses.replace(self.ingest, source=source)
        )

    @property
    def metadata_path(self) -> str:
        """The ML Metadata database."""
        return os.path.join(self.root, "metadata.sqlite")

    @property
    def artifacts_dir(self) -> str:
        """Where components put their outputs."""
        return os.path.join(self.root, "artifacts")

    @property
    def serving_dir(self) -> str:
        """Where pushed models land, one numbered directory a version."""
        return os.path.join(self.root, "serving")


def load(path: str) -> dict[str, Any]:
    """Reads a YAML file of settings.

    Raises:
      OptionError: it cannot be read or is not a mapping.
    """
    try:
        with open(path, encoding="utf-8") as stream:
            values = yaml.safe_load(stream)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"config {path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise OptionError(f"config {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise OptionError(f"config {path} must hold a mapping such as `train: {{epochs: 10}}`")
    return values


def build(settings: Mapping[str, Any]) -> PipelineConfig:
    """Builds a configuration from nested settings, the content of a `pipeline.yaml`.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type; the message names it.
    """
    ingest = settings.get("ingest", {})
    if not isinstance(ingest, Mapping):
        raise OptionError(f"ingest is {ingest!r}; it must be a mapping of settings")
    for name in ("out", "overwrite"):
        if name in ingest:
            raise OptionError(f"ingest.{name} is not for a pipeline: it puts each dataset into a directory of its own")
    config = from_mapping(PipelineConfig, {**settings, "ingest": {**ingest, "out": ""}}, "")
    return config.resolved()


def from_mapping(cls: type[T], values: Any, where: str) -> T:
    """Builds a dataclass from a mapping, nested dataclasses included.

    Args:
      cls: a dataclass.
      values: field name -> value.
      where: name of the mapping in errors, such as `train`.

    Raises:
      OptionError: a key is unknown, missing or of the wrong type.
    """
    if not isinstance(values, Mapping):
        raise OptionError(f"{where} is {values!r}; it must be a mapping of settings")
    fields = {item.name: item for item in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in fields:
            raise OptionError(unknown("setting", key, fields, f"{where}." if where else ""))
    for name, item in fields.items():
        if item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING and name not in values:
            raise OptionError(f"{_dotted(where, name)} is missing; it has no default")
    return cls(**{key: _convert(hints[key], value, _dotted(where, key)) for key, value in values.items()})


def _convert(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_mapping(hint, value, where)
    origin = typing.get_origin(hint)
    if origin is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if origin is not None and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    wanted = hint.__name__ if origin is None else str(hint)
    raise OptionError(f"{where} is {value!r}; it must be of type {wanted}")


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)
