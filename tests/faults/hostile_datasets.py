"""Published datasets of others whose `dataset.json` is sound, but for names in it that are paths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from beam_jobs import storage
from beam_jobs.dataset import manifest, schemas
from beam_jobs.dataset.manifest import ImageCounts, Manifest, Shard, SplitInfo, TablePart
from beam_jobs.options import IngestOptions
from tests.faults.hostile_names import ESCAPED

_SHARD = "data-00000-of-00001.tfrecord"


def _under(name: str) -> dict[str, SplitInfo]:
    return {name: SplitInfo(shards=(Shard(name=_SHARD, records=0, bytes=0, sha256=""),), classes={})}


def _named(name: str) -> dict[str, SplitInfo]:
    return {"train": SplitInfo(shards=(Shard(name=name, records=0, bytes=0, sha256=""),), classes={})}


# What holds the name -> the splits of the dataset. Each leads two directories up, to beside `out`.
_SPLITS: dict[str, Callable[[str], dict[str, SplitInfo]]] = {"split": _under, "shard": _named}


def make(folder: Path) -> list[Path]:
    """Makes one for each place of a name, without images, which is all that a name needs to do harm."""
    return [_make(folder / place, splits(f"x/../../../{ESCAPED}")) for place, splits in _SPLITS.items()]


def _make(folder: Path, splits: dict[str, SplitInfo]) -> Path:
    tables = {"images/part-dropped.parquet": schemas.IMAGES, manifest.REJECTS_NAME: schemas.REJECTS}
    digests = {}
    for name, schema in tables.items():
        path = storage.join(str(folder), name)
        schemas.write(path, schema.empty_table())
        digests[name] = storage.digest(path)
    size, sha256 = digests.pop("images/part-dropped.parquet")
    options = IngestOptions(source="photos", out="dataset", splits={"train": 1.0})
    found = Manifest(
        source="photos",
        options=options.to_json(),
        options_digest=options.digest(),
        label_kind="single",
        labels=(),
        splits=splits,
        counts=ImageCounts(found=0, written=0),
        channels=None,
        producer={"feedline": "1"},
        images=(TablePart(name="part-dropped.parquet", rows=0, bytes=size, sha256=sha256),),
        tables={name: sha256 for name, (_, sha256) in digests.items()},
    )
    manifest.write(found, str(folder))
    return folder
