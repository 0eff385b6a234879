"""Parquet export: a row per image, including the image, and the metadata that Hugging Face `datasets` reads."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.dataset import record, tfds_metadata
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset
from beam_jobs.export.formats import ExportedFile, Sample
from beam_jobs.options import About

# Limits of a row group, which is completely in memory when it is written and when it is read.
ROW_GROUP_IMAGES = 100
ROW_GROUP_BYTES = 16 << 20


class Parquet:
    """Files `data/SPLIT-00000-of-00002.parquet`, ..., and a `README.md` that lists the splits, as on the Hub."""

    def __init__(self, directory: str, dataset: Manifest, about: About) -> None:
        """Reads the features of the dataset; `about` has the properties for the dataset card.

        Raises:
          CorruptDataset: `features.json` of the dataset cannot be read.
        """
        self._about = about
        self._columns = make_columns(directory, dataset)
        self._schema = make_schema(self._columns)

    def file_name(self, split: str, index: int, count: int) -> str:
        """Returns the name of a file."""
        return f"data/{split}-{index:05d}-of-{count:05d}.parquet"

    @contextlib.contextmanager
    def open(self, path: str) -> Iterator[_RowWriter]:
        """Opens a file for writing; it gets its name when the block succeeds."""
        # Images do not compress, and the other columns are small.
        settings = {"compression": "none", "use_dictionary": False}
        with storage.atomic_writer(path) as stream, pq.ParquetWriter(stream, self._schema, **settings) as writer:
            rows = _RowWriter(writer, self._schema, self._columns)
            yield rows
            rows.flush()

    def metadata_files(self, files: Mapping[str, tuple[ExportedFile, ...]]) -> dict[str, bytes]:
        """Returns the dataset card of the Hub, whose front matter assigns the files to splits."""
        paths = [{"split": tfds_metadata.split_name(split), "path": f"data/{split}-*.parquet"} for split in files]
        configs = {"configs": [{"config_name": "default", "data_files": paths}]}
        front_matter = strings.to_json({**_front_matter(self._about), **configs})  # is valid YAML, too
        return {"README.md": f"---\n{front_matter}\n---\n{_card_text(self._about)}".encode()}


# Licences that the Hub lists by their SPDX identifier in lower case; other licences have identifiers of the Hub.
# https://huggingface.co/docs/hub/repositories-licenses
_HUB_LICENSE = re.compile(
    r"mit|apache-2\.0|isc|mpl-2\.0|ms-pl|cc0-1\.0|cc-by(-nc)?(-sa|-nd)?-4\.0|bsd-[23]-clause|"
    r"cdla-(permissive-[12]|sharing-1)\.0|e(p|c)l-2\.0|etalab-2\.0|eupl-1\.[12]"
)


def _front_matter(about: About) -> dict[str, Any]:
    """Returns the non-empty properties under their names on the Hub."""
    hub_license = about.license.lower() if _HUB_LICENSE.fullmatch(about.license.lower()) else ""
    other_license = "" if hub_license else about.license
    properties = {
        "pretty_name": about.title,
        "license": hub_license or ("other" if other_license else ""),
        "license_name": other_license,
        "license_link": about.license_url if other_license else "",
    }
    return {name: value for name, value in properties.items() if value}


def _card_text(about: About) -> str:
    authors = ", ".join((*about.creators, *about.organizations))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", about.citation)), default=0))
    sections = {
        "Intended use": about.intended_use,
        "Authors": authors,
        "Page": about.url,
        "Published": about.date_published,
        "Citation": f"{fence}\n{about.citation}\n{fence}" if about.citation else "",
    }
    title_lines = [f"# {about.title}"] if about.title else []
    return "".join(
        f"\n{block}\n" for block in (*title_lines, *(f"## {name}\n\n{text}" for name, text in sections.items() if text))
    )


class _RowWriter:
    def __init__(self, writer: pq.ParquetWriter, schema: pa.Schema, columns: Sequence[Column]) -> None:
        self._writer = writer
        self._schema = schema
        self._columns = columns
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, sample: Sample) -> None:
        """Adds a row."""
        self._rows.append({column.name: column.value(sample) for column in self._columns})
        self._bytes += len(sample.payload)
        if len(self._rows) >= ROW_GROUP_IMAGES or self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the added rows as a row group."""
        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0


# Names of columns for features whose names are too long or specific to Feedline.
_COLUMN_NAMES = {record.FILENAME: "key", record.SHA256: "sha256"}
_IMAGE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()}.items())
_IMAGE_FEATURE = {"_type": "Image"}
_OBJECT_PARTS = {
    **dict.fromkeys(("bbox/xmin", "bbox/ymin", "bbox/xmax", "bbox/ymax", "area"), "float32"),
    "class/label": "int64",
    "is_crowd": "int64",
    "mask": "binary",
}
_ARROW_TYPES = {"float32": pa.float32(), "int64": pa.int64(), "string": pa.string(), "binary": pa.binary()}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column.

    Attributes:
      name: name of the column.
      type: Arrow type.
      feature: feature type of `datasets`.
      value: function that returns the value of the column for a sample.
    """

    name: str
    type: pa.DataType
    feature: dict[str, Any]
    value: Callable[[Sample], Any]


def make_columns(directory: str, dataset: Manifest) -> tuple[Column, ...]:
    """Returns the columns of a dataset: the image, its labels, then its facts, annotations and user columns.

    Raises:
      CorruptDataset: `features.json` of the dataset cannot be read.
    """
    features = _read_features(directory)
    columns = [_image_column("image", lambda sample: sample.image, lambda sample: f"{sample.name}.{sample.suffix}")]
    columns += _label_columns(dataset)
    for name, (dtype, shape) in record.FEATURES.items():
        if name in features and name not in (record.ENCODED, record.LABEL, record.TEXT):
            columns.append(_value_column(name, dtype, is_list=bool(shape)))
    if record.WEIGHT in features:
        columns.append(_value_column(record.WEIGHT, "float32"))
    if record.MASK in features:
        columns.append(_image_column("mask", _read_mask, lambda sample: f"{sample.name}.mask.png"))
    if any(name.startswith(record.OBJECT_PREFIX) for name in features):
        columns.append(_objects_column(dataset))
    user_columns = (_user_column(*item) for item in features.items() if item[0].startswith(record.EXTRA_PREFIX))
    return (*columns, *user_columns)


def make_schema(columns: tuple[Column, ...]) -> pa.Schema:
    """Returns the schema of columns, with the features that `datasets` reads."""
    features = {column.name: column.feature for column in columns}
    metadata = json.dumps({"info": {"features": features}}, sort_keys=True)
    return pa.schema([pa.field(column.name, column.type) for column in columns], {"huggingface": metadata})


def _image_column(name: str, content: Callable[[Sample], bytes | None], path: Callable[[Sample], str]) -> Column:
    def cell(sample: Sample) -> dict[str, Any] | None:
        encoded = content(sample)
        return {"bytes": encoded, "path": path(sample)} if encoded else None

    return Column(name=name, type=_IMAGE_TYPE, feature=_IMAGE_FEATURE, value=cell)


def _read_mask(sample: Sample) -> bytes | None:
    return next(iter(sample.values.get(record.MASK, ())), None)


def _label_columns(dataset: Manifest) -> Iterator[Column]:
    label = {"_type": "ClassLabel", "names": list(dataset.labels)}
    if dataset.label_kind == "single":
        yield Column(name="label", type=pa.int64(), feature=label, value=lambda sample: sample.values[record.LABEL][0])
    if dataset.label_kind == "multi":
        yield Column(
            name="labels",
            type=pa.list_(pa.int64()),
            feature=_list_type(label),
            value=lambda sample: list(sample.values.get(record.LABEL, ())),
        )


def _value_column(name: str, dtype: str, is_list: bool = False) -> Column:
    arrow_type, feature = _ARROW_TYPES[dtype], _value_type(dtype)
    return Column(
        name=_COLUMN_NAMES.get(name, name.rpartition("/")[2]),
        type=pa.list_(arrow_type) if is_list else arrow_type,
        feature=_list_type(feature) if is_list else feature,
        value=lambda sample: sample.text_values(name),
    )


def _user_column(name: str, feature: Mapping[str, Any]) -> Column:
    item_feature = feature["sequence"]["feature"]
    dtype = item_feature["tensor"]["dtype"] if "tensor" in item_feature else "string"
    return Column(
        name=name.replace("/", "_", 1),  # `extra_NAME`, because `NAME` may be another column
        type=pa.list_(_ARROW_TYPES[dtype]),  # a cell may be empty
        feature=_list_type(_value_type(dtype)),
        value=lambda sample: [str(value) if dtype == "string" else value for value in sample.text_values(name)],
    )


def _objects_column(dataset: Manifest) -> Column:
    names = {part: part.rpartition("/")[2] for part in _OBJECT_PARTS}
    features: dict[str, Any] = {names[part]: _list_type(_value_type(dtype)) for part, dtype in _OBJECT_PARTS.items()}
    features["label"] = _list_type({"_type": "ClassLabel", "names": list(dataset.labels)})
    types = [pa.field(names[part], pa.list_(_ARROW_TYPES[dtype])) for part, dtype in _OBJECT_PARTS.items()]

    def cell(sample: Sample) -> dict[str, list]:
        return {names[part]: list(sample.values.get(record.OBJECT_PREFIX + part, ())) for part in _OBJECT_PARTS}

    return Column(name="objects", type=pa.struct(types), feature=features, value=cell)


def _value_type(dtype: str) -> dict[str, Any]:
    return {"_type": "Value", "dtype": dtype}


def _list_type(feature: Mapping[str, Any]) -> dict[str, Any]:
    return {"_type": "Sequence", "feature": dict(feature)}


def _read_features(directory: str) -> dict[str, dict[str, Any]]:
    """Returns record feature -> its entry in `features.json`."""
    path = storage.join(directory, tfds_metadata.FEATURES_NAME)
    try:
        return dict(_flatten_features(storage.read_json(path), ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataset(f"{path} cannot be read: {error}; write the dataset again") from error


def _flatten_features(nested_features: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, inner in nested_features["featuresDict"]["features"].items():
        if "featuresDict" in inner:
            yield from _flatten_features(inner, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", inner
