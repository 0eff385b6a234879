"""Datasets prepared by TensorFlow Datasets, read without that package: their metadata are two JSON files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from beam_jobs import storage
from beam_jobs.dataset import record
from beam_jobs.errors import SourceError
from beam_jobs.options import TableColumns
from beam_jobs.sources.base import OnHidden, ignore
from beam_jobs.sources.containers import container_at
from beam_jobs.sources.tfrecord import DEFAULTS, ExampleFile, ExampleSource, Layout, layout_of

_INFO, _FEATURES = "dataset_info.json", "features.json"
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"  # file names of shards, for metadata without a template
_FORMAT = "tfrecord"
_USUAL_FEATURES = {"image": record.ENCODED, "label": record.LABEL}  # usual features by role, as in datasets of Feedline
_IMAGE, _CLASS, _CLASSES, _OTHER = "Image", "ClassLabel", "Sequence of ClassLabel", "other"  # kinds of features


class TfdsSource(ExampleSource):
    """A prepared dataset: the directory of a version, such as `mnist/3.0.1`, that holds `dataset_info.json`.

    Where the columns `image` and `label` are not features, the image is `image/encoded`, else the only feature of type
    Image; the label is `image/class/label`, else the only feature of type ClassLabel, else the only sequence of them. A
    sequence makes the dataset multi-label. Names of nested features are joined by `/`. The splits of the dataset are
    used when a split column is named that is not a feature.
    """

    @property
    def base(self) -> str:
        """Directory of the dataset."""
        return self.path

    @property
    def label_kind(self) -> str:
        """Kind of the labels, which columns and features determine; one of `types.LABEL_KINDS`."""
        return self._resolve_columns(self._kinds_by_feature()).label_kind

    def files(self, on_hidden: OnHidden = ignore) -> list[ExampleFile]:
        """See `ExampleSource`."""
        info = self._read_json(_INFO)
        file_format = info.get("fileFormat", _FORMAT)
        if file_format != _FORMAT:
            raise SourceError(
                f"{self.path} has the format {file_format}; prepare it with `tfds build --file_format={_FORMAT}`, or "
                f"convert it with `tfds convert_format --dataset_version_dir={self.path} --out_file_format={_FORMAT}`"
            )
        try:
            return [file for split in info["splits"] for file in self._shard_files(split, info["name"])]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged_error(_INFO, error) from error

    def layout(self, observed: Mapping[str, type | None]) -> Layout:
        """See `ExampleSource`."""
        kinds = self._kinds_by_feature()
        class_names = {name: self._read_class_names(name) for name, kind in kinds.items() if kind in (_CLASS, _CLASSES)}
        columns = self._resolve_columns(kinds)
        is_file_split = bool(columns.split) and columns.split not in observed
        return layout_of(self.path, columns, observed, is_file_split=is_file_split, class_names=class_names)

    def _shard_files(self, split: Mapping[str, Any], dataset_name: str) -> Iterator[ExampleFile]:
        lengths = [int(length) for length in split.get("shardLengths", ())]
        digits = max(5, len(str(len(lengths))))
        for index, length in enumerate(lengths):
            if not length:
                continue  # an empty shard has no file
            shard, count = f"{index:0{digits}}", f"{len(lengths):0{digits}}"
            name = split.get("filepathTemplate", _TEMPLATE)
            for variable, value in (
                ("DATASET", dataset_name),
                ("SPLIT", split["name"]),
                ("FILEFORMAT", _FORMAT),
                ("SHARD_INDEX", shard),
                ("NUM_SHARDS", count),
                ("SHARD_X_OF_Y", f"{shard}-of-{count}"),
            ):
                name = name.replace("{" + variable + "}", value)
            if name.startswith("/") or ".." in name.split("/"):
                raise ValueError(f"a shard is called {name!r}")
            container = container_at(storage.join(self.path, name), self.path)
            yield ExampleFile(container=container, split=split["name"], records=length)

    def _resolve_columns(self, kinds: Mapping[str, str]) -> TableColumns:
        """Returns the columns; features replace the default columns that the dataset does not have."""
        columns = self.columns
        if columns.image == DEFAULTS.image and columns.image not in kinds:
            columns = replace(columns, image=self._only_feature(kinds, _IMAGE, "image"))
        if columns.label_kind != "single" or columns.label != DEFAULTS.label:
            return columns
        label = columns.label
        if label not in kinds:
            label = self._only_feature(kinds, _CLASS if _CLASS in kinds.values() else _CLASSES, "label")
        return replace(columns, labels=label) if kinds[label] == _CLASSES else replace(columns, label=label)

    def _only_feature(self, kinds: Mapping[str, str], feature_type: str, role: str) -> str:
        """Returns the usual feature of a role, else the only one of a type, or raises `SourceError`."""
        names = [name for name, kind in kinds.items() if kind == feature_type]
        if _USUAL_FEATURES[role] in names:
            return _USUAL_FEATURES[role]
        if len(names) != 1:
            candidates = ", ".join(map(repr, names or kinds)) or "none"
            count = f"{len(names)} features of type {feature_type}" if names else f"no feature of type {feature_type}"
            raise SourceError(
                f"{self.path} has {count} and none named {role!r}; name the {role} column, one of {candidates}"
            )
        return names[0]

    def _kinds_by_feature(self) -> dict[str, str]:
        try:
            return dict(_flatten(self._read_json(_FEATURES), ""))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._damaged_error(_FEATURES, error) from error

    def _read_class_names(self, feature: str) -> tuple[str, ...]:
        path = storage.join(self.path, feature.replace("/", "-") + ".labels.txt")
        if not storage.exists(path):
            return ()  # the feature declares only its number of classes
        try:
            lines = storage.read_at_most(path, storage.MAX_JSON_BYTES).decode().split("\n")
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}; prepare the dataset again") from error
        return tuple(line.strip() for line in lines if line.strip())

    def _read_json(self, name: str) -> dict[str, Any]:
        path = storage.join(self.path, name)
        try:
            values = storage.read_json(path)
        except OSError as error:
            raise SourceError(
                f"{path} cannot be read: {error.strerror or error}; give the directory of a version of a prepared "
                "dataset, such as mnist/3.0.1"
            ) from error
        except ValueError as error:
            raise self._damaged_error(name, error) from error
        if not isinstance(values, dict):
            raise self._damaged_error(name, "it is not a JSON object")
        return values

    def _damaged_error(self, name: str, error: object) -> SourceError:
        reason = repr(error) if isinstance(error, KeyError) else str(error)
        return SourceError(f"{storage.join(self.path, name)} is not valid TFDS metadata: {reason}; prepare it again")


def _flatten(feature: Mapping[str, Any], name: str) -> Iterator[tuple[str, str]]:
    """Yields name and kind of every feature; the names of nested features are joined by `/`."""
    children = _children(feature)
    if children is None:
        yield name, _feature_kind(feature)
        return
    for child, inner in sorted(children.items()):
        yield from _flatten(inner, f"{name}/{child}" if name else child)


def _feature_kind(feature: Mapping[str, Any]) -> str:
    kind = _python_class(feature)
    if kind == "Sequence":
        inner = feature["sequence"]["feature"] if "sequence" in feature else feature["content"]["feature"]
        return _CLASSES if _python_class(inner) == _CLASS else _OTHER
    return kind if kind in (_IMAGE, _CLASS) else _OTHER


def _children(feature: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if _python_class(feature) != "FeaturesDict":
        return None
    # Datasets prepared before 2022 nest `type` and `content`.
    return feature["featuresDict"]["features"] if "featuresDict" in feature else feature["content"]


def _python_class(feature: Mapping[str, Any]) -> str:
    return (feature["pythonClassName"] if "pythonClassName" in feature else feature["type"]).rpartition(".")[2]
