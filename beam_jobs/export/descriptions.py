"""What is written about a dataset that is not copied: Croissant, and an index for NVIDIA DALI.

Croissant 1.1 is JSON-LD that search engines and `mlcroissant` read: `croissant.json` names the files of the dataset,
their sha256 and the columns of `images.parquet`. The index beside each TFRecord shard has a line a record with its
offset and its size in bytes.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas, shards
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.export import staging
from beam_jobs.export.formats import ExportedFile
from beam_jobs.export.options import About

CROISSANT_NAME = "croissant.json"
CONFORMS_TO = "http://mlcommons.org/croissant/1.1"

_IMAGES_ID, _SPLITS_ID, _LABELS_ID = "images", "splits", "labels"
_TYPES = {"json": "application/json", "parquet": "application/x-parquet", "tfrecord": "application/x-tfrecord"}
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
    """Writes `croissant.json` into the dataset itself, or into a directory of its own that points to the dataset.

    Args:
      directory: of the dataset.
      dataset: its manifest.
      out: the same directory, or a new or empty one.
      about: what the owner says of it.

    Raises:
      OptionError: `out` is another directory that holds something, or a store, and the dataset is local.
      CorruptDataset: a file of the dataset cannot be read.
      OSError: it cannot be written.
    """
    if _same(directory, out):
        content = manifest.serialise(describe(directory, dataset, "", about))
        storage.write_bytes(storage.join(out, CROISSANT_NAME), content)
        return
    if storage.is_remote(out) and not storage.is_remote(directory):
        raise OptionError(f"out is {out!r}, from where {directory!r} cannot be read; export into the dataset itself")
    path = staging.check(out)
    base = directory if storage.is_remote(directory) else os.path.relpath(os.path.realpath(directory), path)
    content = manifest.serialise(describe(directory, dataset, base, about))
    with staging.staged(path) as stage:
        storage.write_bytes(storage.join(stage.path, CROISSANT_NAME), content)


def describe(directory: str, dataset: Manifest, base: str, about: About) -> dict[str, Any]:
    """Returns the JSON-LD.

    Args:
      directory: of the dataset; its `dataset.json` is hashed.
      dataset: its manifest.
      base: where the dataset lies as seen from the file; empty for the same directory.
      about: what the owner says of it.
    """
    counts = ", ".join(f"{info.records} of {name}" for name, info in dataset.splits.items())
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": re.sub(r"[^\w-]+", "_", os.path.basename(dataset.source.rstrip("/"))) or "dataset",
        "description": f"{dataset.counts.written} images ({counts}) in TFRecord shards, digest {dataset.digest}.",
        "version": f"{dataset.format_version}.0.0",
        **about.to_jsonld(),
        "distribution": _files(directory, dataset, base),
        "recordSet": [_images(dataset), _splits(dataset), *([_labels(dataset)] if dataset.labels else [])],
    }


def _same(directory: str, out: str) -> bool:
    if storage.is_remote(directory) or storage.is_remote(out):
        return directory.rstrip("/") == out.rstrip("/")
    return os.path.realpath(directory) == os.path.realpath(out)


def _files(directory: str, dataset: Manifest, base: str) -> list[dict[str, Any]]:
    beside = (manifest.MANIFEST_NAME, *manifest.TABLE_NAMES)
    found = [_file(name, *_digest(storage.join(directory, name)), base) for name in beside]
    for split, info in dataset.splits.items():
        folder = shards.split_dir(split)
        found += [_file(f"{folder}/{shard.name}", shard.bytes, shard.sha256, base) for shard in info.shards]
    return found


def _digest(path: str) -> tuple[int, str]:
    try:
        return storage.digest(path)
    except OSError as error:
        raise CorruptDataset(f"{path} cannot be read: {error.strerror or error}") from error


def _file(name: str, size: int, sha256: str, base: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": storage.join(base, name) if base else name,
        "contentSize": f"{size} B",
        "encodingFormat": _TYPES[name.rpartition(".")[2]],
        "sha256": sha256,
    }


def _images(dataset: Manifest) -> dict[str, Any]:
    dropped = "a copy that was left out has an empty split and the shard -1" if dataset.counts.dropped else ""
    points = {"split": f"{_SPLITS_ID}/name"}
    if dataset.label_kind == "single":
        points["label"] = f"{_LABELS_ID}/name"
    fields = [_column(field, points.get(field.name, "")) for field in schemas.IMAGES]
    return {
        "@type": "cr:RecordSet",
        "@id": _IMAGES_ID,
        "name": _IMAGES_ID,
        "description": "; ".join(filter(None, [f"A row an image, of {manifest.IMAGES_NAME}", dropped])),
        "key": {"@id": f"{_IMAGES_ID}/key"},
        "field": fields,
    }


def _column(field: pa.Field, points_to: str) -> dict[str, Any]:
    repeated = pa.types.is_list(field.type)
    kind = field.type.value_type if repeated else field.type
    described = {
        "@type": "cr:Field",
        "@id": f"{_IMAGES_ID}/{field.name}",
        "name": field.name,
        "dataType": next(name for is_of, name in _DATA_TYPES if is_of(kind)),
        "source": {"fileObject": {"@id": manifest.IMAGES_NAME}, "extract": {"column": field.name}},
    }
    if repeated:
        described |= {"isArray": True, "arrayShape": "3"}
    if points_to:
        described["references"] = {"field": {"@id": points_to}}
    return described


def _splits(dataset: Manifest) -> dict[str, Any]:
    data = [
        {f"{_SPLITS_ID}/name": name, f"{_SPLITS_ID}/role": _ROLES.get(name, ""), f"{_SPLITS_ID}/images": info.records}
        for name, info in dataset.splits.items()
    ]
    fields = {"name": "sc:Text", "role": "sc:Text", "images": "cr:Int64"}
    return _inline(_SPLITS_ID, "cr:Split", fields, data)


def _labels(dataset: Manifest) -> dict[str, Any]:
    data = [{f"{_LABELS_ID}/name": name, f"{_LABELS_ID}/index": index} for index, name in enumerate(dataset.labels)]
    return _inline(_LABELS_ID, "sc:Enumeration", {"name": "sc:Text", "index": "cr:Int64"}, data)


def _inline(name: str, kind: str, fields: dict[str, str], data: list[dict[str, Any]]) -> dict[str, Any]:
    described = [
        {"@type": "cr:Field", "@id": f"{name}/{field}", "name": field, "dataType": data_type}
        for field, data_type in fields.items()
    ]
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "dataType": kind,
        "key": {"@id": f"{name}/name"},
        "field": described,
        "data": data,
    }


def write_dali_index(
    directory: str, dataset: Manifest, splits: tuple[str, ...], out: str
) -> dict[str, tuple[ExportedFile, ...]]:
    """Writes the index of every shard; no shard is opened, for `images.parquet` knows where its records begin.

    Args:
      directory: of the dataset.
      dataset: its manifest.
      splits: to write the indices of.
      out: directory to write `Split-NAME/data-00000-of-00001.idx` in.

    Returns:
      split -> its indices.

    Raises:
      CorruptDataset: `images.parquet` is damaged, or is not of these shards.
    """
    path = storage.join(directory, manifest.IMAGES_NAME)
    images = schemas.read_published(path, ["split", "shard", "offset"])
    written: dict[str, tuple[ExportedFile, ...]] = {}
    for split in splits:
        rows = images.filter(pc.equal(images["split"], split))
        places, offsets = rows["shard"].to_numpy(), rows["offset"].to_numpy()
        written[split] = ()
        listed = dataset.split(split).shards
        for number, shard in enumerate(listed):
            starts = np.sort(offsets[places == number])
            if len(starts) != shard.records:
                raise CorruptDataset(f"{path} has {len(starts)} rows for {shard.name}, which holds {shard.records}")
            stem = os.path.splitext(shards.shard_name(number, len(listed)))[0]
            name = f"{shards.split_dir(split)}/{stem}.idx"
            content = _dali_index(starts, shard.bytes)
            storage.write_bytes(storage.join(out, name), content)
            written[split] += (ExportedFile(name=name, samples=shard.records, bytes=len(content)),)
    return written


def _dali_index(starts: np.ndarray, end: int) -> bytes:
    """Returns the lines: a record ends where the next one begins, the last one at the end of the file."""
    sizes = np.diff(starts, append=end)
    return "".join(f"{start} {size}\n" for start, size in zip(starts, sizes, strict=True)).encode()
