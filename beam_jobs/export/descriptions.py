"""Exports that describe a dataset without copying it: Croissant metadata, and an index for NVIDIA DALI.

Croissant 1.1 is JSON-LD that search engines and `mlcroissant` read: `croissant.json` lists the files of the dataset
with their sha256, and the columns of the image table. The DALI index of a TFRecord shard has a line per record with
its offset and its size in bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from beam_jobs import storage
from beam_jobs.dataset import lookup, manifest, schemas, shards
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError, os_errors_as
from beam_jobs.export import staging
from beam_jobs.export.formats import ExportedFile
from beam_jobs.options import About

CROISSANT_NAME = "croissant.json"

_IMAGES_ID, _SPLITS_ID, _LABELS_ID = "images", "splits", "labels"
_IMAGE_FILES_ID, _IMAGE_FILES = "image-files", f"{manifest.IMAGES_DIR}/*.parquet"  # of format 2
_MIME_TYPES = {"json": "application/json", "parquet": "application/x-parquet", "tfrecord": "application/x-tfrecord"}
_ROLES = {
    "train": "cr:TrainingSplit",
    **dict.fromkeys(("val", "valid", "validation", "eval"), "cr:ValidationSplit"),
    "test": "cr:TestSplit",
}
_DATA_TYPES = ((pa.types.is_string, "sc:Text"), (pa.types.is_integer, "cr:Int64"), (pa.types.is_floating, "cr:Float32"))
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileProperty": "cr:fileProperty",
    "fileObject": "cr:fileObject",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}


def write_croissant(directory: str, dataset: Manifest, out: str, about: About) -> None:
    """Writes `croissant.json` into the dataset itself, or into another directory with a reference to the dataset.

    Args:
      directory: directory of the dataset.
      dataset: manifest of the dataset.
      out: the same directory, or a new or empty one.
      about: metadata that the owner provides.

    Raises:
      OptionError: `out` is another directory that is not empty, or is remote while the dataset is local.
      CorruptDataset: a file of the dataset cannot be read.
      OSError: the file cannot be written.
    """
    if _is_same_directory(directory, out):
        content = manifest.serialise(describe(directory, dataset, "", about))
        storage.write_bytes(storage.join(out, CROISSANT_NAME), content)
        return
    if storage.is_remote(out) and not storage.is_remote(directory):
        raise OptionError(f"out is {out!r}, but the dataset {directory!r} is local; export into the dataset itself")
    path = staging.check(out)
    base = directory if storage.is_remote(directory) else os.path.relpath(os.path.realpath(directory), path)
    content = manifest.serialise(describe(directory, dataset, base, about))
    with staging.staged(path) as stage:
        storage.write_bytes(storage.join(stage.path, CROISSANT_NAME), content)


def describe(directory: str, dataset: Manifest, base: str, about: About) -> dict[str, Any]:
    """Returns the Croissant metadata of a dataset as JSON-LD.

    Args:
      directory: directory of the dataset, whose `dataset.json` is hashed.
      dataset: manifest of the dataset.
      base: path of the dataset relative to `croissant.json`; empty for the same directory.
      about: metadata that the owner provides.
    """
    counts = ", ".join(f"{info.records} of {name}" for name, info in dataset.splits.items())
    content_text = f"{dataset.counts.written} images ({counts}) in TFRecord shards, digest {dataset.digest}."
    source = os.path.basename(dataset.source.rstrip("/"))
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": re.sub(r"[^\w-]+", "_", about.title or source) or "dataset",
        "description": " ".join(filter(None, (about.intended_use, content_text))),
        "version": f"{dataset.format_version}.0.0",
        **_properties(about),
        "distribution": _file_objects(directory, dataset, base),
        "recordSet": [_image_set(dataset), _split_set(dataset), *([_label_set(dataset)] if dataset.labels else [])],
    }


def _properties(about: About) -> dict[str, Any]:
    """Returns the non-empty properties under their names in schema.org and Croissant."""
    properties = {
        "alternateName": about.title,
        "license": about.license_url,
        "creator": [*_agents("sc:Person", about.creators), *_agents("sc:Organization", about.organizations)],
        "citeAs": about.citation,
        "url": about.url,
        "datePublished": about.date_published,
    }
    return {name: value for name, value in properties.items() if value}


def _agents(schema_type: str, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"@type": schema_type, "name": name} for name in names]


def _is_same_directory(directory: str, out: str) -> bool:
    if storage.is_remote(directory) or storage.is_remote(out):
        return directory.rstrip("/") == out.rstrip("/")
    return os.path.realpath(directory) == os.path.realpath(out)


def _file_objects(directory: str, dataset: Manifest, base: str) -> list[dict[str, Any]]:
    names = (manifest.MANIFEST_NAME, *dataset.image_digests, manifest.REJECTS_NAME)
    entries = [_file_object(name, *_size_and_sha256(storage.join(directory, name)), base) for name in names]
    for split, info in dataset.splits.items():
        folder = shards.split_dir(split)
        entries += [_file_object(f"{folder}/{shard.name}", shard.bytes, shard.sha256, base) for shard in info.shards]
    if dataset.images:
        entries.append(_file_set(_IMAGE_FILES_ID, _IMAGE_FILES, base))
    return entries


def _size_and_sha256(path: str) -> tuple[int, str]:
    with os_errors_as(CorruptDataset, f"{path} cannot be read"):
        return storage.digest(path)


def _file_object(name: str, size: int, sha256: str, base: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": storage.join(base, name) if base else name,
        "contentSize": f"{size} B",
        "encodingFormat": _MIME_TYPES[name.rpartition(".")[2]],
        "sha256": sha256,
    }


def _file_set(name: str, pattern: str, base: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": name,
        "name": name,
        "includes": storage.join(base, pattern) if base else pattern,
        "encodingFormat": _MIME_TYPES[pattern.rpartition(".")[2]],
    }


def _image_set(dataset: Manifest) -> dict[str, Any]:
    dropped_note = "dropped duplicates have an empty split and the shard -1" if dataset.counts.dropped else ""
    references = {"split": f"{_SPLITS_ID}/name"}
    if dataset.label_kind == "single":
        references["label"] = f"{_LABELS_ID}/name"
    files = _IMAGE_FILES if dataset.images else manifest.IMAGES_NAME
    source = {"fileSet": {"@id": _IMAGE_FILES_ID}} if dataset.images else {"fileObject": {"@id": manifest.IMAGES_NAME}}
    fields = [_column_field(field, source, references.get(field.name, "")) for field in schemas.IMAGES]
    return {
        "@type": "cr:RecordSet",
        "@id": _IMAGES_ID,
        "name": _IMAGES_ID,
        "description": "; ".join(filter(None, [f"One row per image, in {files}", dropped_note])),
        "key": {"@id": f"{_IMAGES_ID}/key"},
        "field": fields,
    }


def _column_field(field: pa.Field, source: Mapping[str, Any], reference: str) -> dict[str, Any]:
    is_list = pa.types.is_list(field.type)
    value_type = field.type.value_type if is_list else field.type
    entry = {
        "@type": "cr:Field",
        "@id": f"{_IMAGES_ID}/{field.name}",
        "name": field.name,
        "dataType": next(name for is_type, name in _DATA_TYPES if is_type(value_type)),
        "source": {**source, "extract": {"column": field.name}},
    }
    if is_list:
        entry |= {"isArray": True, "arrayShape": "3"}
    if reference:
        entry["references"] = {"field": {"@id": reference}}
    return entry


def _split_set(dataset: Manifest) -> dict[str, Any]:
    data = [
        {f"{_SPLITS_ID}/name": name, f"{_SPLITS_ID}/role": _ROLES.get(name, ""), f"{_SPLITS_ID}/images": info.records}
        for name, info in dataset.splits.items()
    ]
    fields = {"name": "sc:Text", "role": "sc:Text", "images": "cr:Int64"}
    return _inline_set(_SPLITS_ID, "cr:Split", fields, data)


def _label_set(dataset: Manifest) -> dict[str, Any]:
    data = [{f"{_LABELS_ID}/name": name, f"{_LABELS_ID}/index": index} for index, name in enumerate(dataset.labels)]
    return _inline_set(_LABELS_ID, "sc:Enumeration", {"name": "sc:Text", "index": "cr:Int64"}, data)


def _inline_set(name: str, set_type: str, fields: dict[str, str], data: list[dict[str, Any]]) -> dict[str, Any]:
    entries = [
        {"@type": "cr:Field", "@id": f"{name}/{field}", "name": field, "dataType": data_type}
        for field, data_type in fields.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": set_type,
        "key": {"@id": f"{name}/name"},
        "field": entries,
        "data": data,
    }


def write_dali_index(
    directory: str, dataset: Manifest, splits: tuple[str, ...], out: str
) -> dict[str, tuple[ExportedFile, ...]]:
    """Writes the index of every shard from the offsets in the image table; no shard is opened.

    Args:
      directory: directory of the dataset.
      dataset: manifest of the dataset.
      splits: the splits to write indices of.
      out: directory for the indices, `Split-NAME/data-00000-of-00001.idx`.

    Returns:
      split -> its index files.

    Raises:
      CorruptDataset: the image table is damaged, or does not match the shards.
    """
    index_files: dict[str, tuple[ExportedFile, ...]] = dict.fromkeys(splits, ())
    with lookup.open_images(directory, dataset, lookup.SHARD_COLUMNS) as images:
        for split, index, rows in lookup.read_shard_rows(images, directory, dataset, splits, ["offset"]):
            split_shards = dataset.split(split).shards
            stem = os.path.splitext(shards.shard_name(index, len(split_shards)))[0]
            name = f"{shards.split_dir(split)}/{stem}.idx"
            starts = rows["offset"].to_numpy()
            # A record ends where the next record starts; the last record ends at the end of the file.
            sizes = np.diff(starts, append=split_shards[index].bytes)
            content = "".join(f"{start} {size}\n" for start, size in zip(starts, sizes, strict=True)).encode()
            storage.write_bytes(storage.join(out, name), content)
            index_files[split] += (ExportedFile(name=name, samples=len(rows), bytes=len(content)),)
    return index_files
