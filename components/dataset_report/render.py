"""Renders the report: facts about a dataset, gathered into plain values, poured into `template.html`."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pyarrow as pa
from PIL import Image

from beam_jobs import manifest, record, storage, tables, tfrecord
from beam_jobs.manifest import Manifest
from components.evaluation import Evaluation

# Bounds that keep the page under a few megabytes whatever the size of the dataset.
_NO_CLASS = "no class"
_GALLERY_CLASSES = 40
_GALLERY_IMAGES = 8
_MOST_ROWS = 200
_THUMBNAIL_PX = 112
_HISTOGRAM_BINS = 24


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar of a chart.

    Attributes:
      label: what it stands for.
      value: as text.
      share: length, 0-1 of the longest.
    """

    label: str
    value: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """One small picture.

    Attributes:
      key: of the image.
      data: `data:` URL.
    """

    key: str
    data: str


def render(directory: str, evaluation: Evaluation | None = None) -> str:
    """Returns the report of a published dataset as one self-contained HTML page.

    Every name, label and reason in it comes from data, so all of it is escaped, and a content security policy forbids
    the page to load or run anything.

    Args:
      directory: of the dataset.
      evaluation: of a model trained on it, if there is one.

    Raises:
      UsageError: the directory is not a dataset.
      CorruptDataset: a file of it is damaged.
    """
    dataset = manifest.load(directory)
    images = tables.read_published(storage.join(directory, manifest.IMAGES_NAME))
    rejects = tables.read_published(storage.join(directory, manifest.REJECTS_NAME))
    written = images.filter(pa.array(np.asarray(images["shard"]) >= 0))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.from_string((Path(__file__).parent / "template.html").read_text(encoding="utf-8"))
    return template.render(
        dataset=dataset,
        evaluation=evaluation,
        classes=class_bars(dataset),
        histograms=histograms(written, dataset.channels is not None),
        gallery=gallery(directory, dataset, written),
        rejects=rejects.slice(0, _MOST_ROWS).to_pylist(),
        clusters=clusters(images),
    )


def class_bars(dataset: Manifest) -> dict[str, list[Bar]]:
    """Returns split -> a bar a class, in order of the labels."""
    bars = {}
    for name, info in dataset.splits.items():
        most = max(info.classes.values(), default=1)
        bars[name] = [
            Bar(label=label, value=f"{info.classes.get(label, 0):,}", share=info.classes.get(label, 0) / most)
            for label in dataset.labels
        ]
    return bars


def histograms(images: pa.Table, moments: bool = True) -> dict[str, list[Bar]]:
    """Returns title -> bars of the distribution of size, aspect, bytes and, if known, brightness of all images."""
    height, width = images["height"].to_numpy(), images["width"].to_numpy()
    columns = {
        "Short side (pixels)": np.minimum(height, width),
        "Aspect (width : height)": width / height,
        "File size (kB)": images["bytes"].to_numpy() / 1e3,
    }
    if moments:
        columns["Brightness (0-255)"] = np.array([np.mean(row) for row in images["mean_rgb"].to_pylist()])
    return {title: _histogram(values) for title, values in columns.items()}


def gallery(directory: str, dataset: Manifest, images: pa.Table) -> dict[str, list[Thumbnail]]:
    """Returns class -> thumbnails of its first images in shard order, which is a random one.

    An image of several classes stands under each; images without any stand together.
    """
    wanted: dict[str, list[dict[str, Any]]] = defaultdict(list)
    shown = {*dataset.labels[:_GALLERY_CLASSES], _NO_CLASS}
    for row in images.select(["key", "label", "annotations", "split", "shard", "offset"]).to_pylist():
        for label in _labels_of(row):
            if label in shown and row["shard"] >= 0 and len(wanted[label]) < _GALLERY_IMAGES:
                wanted[label].append(row)
    return {
        label: [Thumbnail(key=row["key"], data=_thumbnail(directory, dataset, row)) for row in wanted[label]]
        for label in sorted(wanted)
    }


def clusters(images: pa.Table) -> list[list[dict[str, str]]]:
    """Returns the sets of equal images, largest first, each a list of key, label and split."""
    members: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in images.select(["cluster", "key", "label", "split"]).to_pylist():
        if row["cluster"]:
            members[row["cluster"]].append({**row, "split": row["split"] or "dropped"})
    # Kept ones first, then by key; dropped ones come first in the table.
    sets = [sorted(rows, key=lambda row: (row["split"] == "dropped", row["key"])) for rows in members.values()]
    return sorted(sets, key=lambda rows: (-len(rows), rows[0]["key"]))[:_MOST_ROWS]


def _histogram(values: np.ndarray) -> list[Bar]:
    if values.min() == values.max():  # a bin around one value would name two that no image has
        return [Bar(label=f"{values[0]:,.4g} - {values[0]:,.4g}", value=f"{len(values):,}", share=1.0)]
    counts, edges = np.histogram(values, bins=min(_HISTOGRAM_BINS, len(np.unique(values))))
    return [
        Bar(label=f"{low:,.4g} - {high:,.4g}", value=f"{count:,}", share=count / counts.max())
        for count, low, high in zip(counts, edges, edges[1:], strict=False)
    ]


def _labels_of(row: dict[str, Any]) -> tuple[str, ...]:
    said = tables.annotations_of(row["annotations"])
    return (row["label"],) if row["label"] else (said and said.labels) or (_NO_CLASS,)


def _thumbnail(directory: str, dataset: Manifest, row: dict[str, Any]) -> str:
    path = dataset.shard_paths(directory, row["split"])[row["shard"]]
    with storage.open_read(path) as stream:
        values = record.decode(tfrecord.read_record_at(stream, path, row["offset"]))
    small = _image(values)
    small.thumbnail((_THUMBNAIL_PX, _THUMBNAIL_PX))
    out = io.BytesIO()
    small.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def _image(values: dict[str, list]) -> Image.Image:
    encoded = values[record.ENCODED][0]
    if values[record.FORMAT][0] == b"raw":
        return Image.frombytes("RGB", (values[record.WIDTH][0], values[record.HEIGHT][0]), encoded)
    with Image.open(io.BytesIO(encoded)) as image:
        return image.convert("RGB")
