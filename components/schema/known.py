"""What a dataset knows of its own features beyond what can be seen in its images: domains, ranges and shapes.

Statistics tell what came up so far. That an image is 8 to 32,768 pixels wide, that a mean is 0-255 and that the classes
are those of `dataset.json` and no other is known beforehand, so the schema says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorflow_metadata.proto.v0 import schema_pb2

from beam_jobs.dataset import record
from beam_jobs.dataset.manifest import Manifest

Range = tuple[float, float]

_OBJECT_LABEL = record.OBJECT_PREFIX + "class/label"
_OBJECT_TEXT = record.OBJECT_PREFIX + "class/text"
_EDGES = tuple(record.OBJECT_PREFIX + f"bbox/{edge}" for edge in ("xmin", "ymin", "xmax", "ymax"))


@dataclass(frozen=True, kw_only=True)
class Values:
    """A closed set of texts.

    Attributes:
      values: every one that may occur.
    """

    values: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """A range of whole numbers, ends included.

    Attributes:
      least: smallest.
      most: largest.
      category: whether they are names written as numbers.
    """

    least: int
    most: int
    category: bool = False


@dataclass(frozen=True, kw_only=True)
class Real:
    """A range of numbers, ends included.

    Attributes:
      least: smallest.
      most: largest; None for any.
    """

    least: float
    most: float | None = None


Domain = Values | Whole | Real


def describe(schema: schema_pb2.Schema, dataset: Manifest, seen: Mapping[str, Range]) -> schema_pb2.Schema:
    """Returns an inferred schema with what the dataset knows of its features; user columns stay as they are.

    Args:
      schema: inferred from statistics.
      dataset: the manifest.
      seen: feature -> smallest and largest value of those that are numbers.
    """
    described = schema_pb2.Schema()
    described.CopyFrom(schema)
    domains = domains_of(dataset, seen)
    for feature in described.feature:
        if feature.name in domains:
            _set_domain(described, feature, domains[feature.name])
        if feature.name in record.FEATURES:
            _set_shape(feature, dataset)
    used = {feature.domain for feature in described.feature}
    kept = [domain for domain in described.string_domain if domain.name in used]
    del described.string_domain[:]
    described.string_domain.extend(kept)
    return described


def domains_of(dataset: Manifest, seen: Mapping[str, Range]) -> dict[str, Domain]:
    """Returns feature -> what its values may be.

    Sizes follow from the limits of the ingest, which judge the image as it was found. Where images were re-encoded, or
    added under other limits, the range is widened to what is there, so that a dataset always fits its own schema.

    Args:
      dataset: the manifest.
      seen: feature -> smallest and largest value.
    """
    limits, pixels = dataset.options["limits"], dataset.options["pixels"]
    raw = pixels["policy"] == "raw"
    side = _sides(limits, pixels)
    aspect = limits["max_aspect"]
    classes = Values(values=dataset.labels)
    indices = Whole(least=0, most=max(0, len(dataset.labels) - 1), category=True)
    return {
        record.FORMAT: Values(values=("raw",) if raw else ("jpeg", "png")),
        record.HEIGHT: _widened(side, seen.get(record.HEIGHT)),
        record.WIDTH: _widened(side, seen.get(record.WIDTH)),
        record.CHANNELS: Whole(least=1, most=3),
        record.BYTES: _widened(Whole(least=1, most=limits["max_bytes"]), seen.get(record.BYTES)),
        record.ASPECT_RATIO: _widened(Real(least=1 / aspect, most=aspect), seen.get(record.ASPECT_RATIO)),
        record.MEAN_RGB: Real(least=0, most=255),
        record.VAR_RGB: Real(least=0),
        record.BRIGHTNESS: Real(least=0, most=255),
        record.WEIGHT: Real(least=0),
        **dict.fromkeys(_EDGES, Real(least=0, most=1)),
        **dict.fromkeys((record.LABEL, _OBJECT_LABEL), indices),
        **dict.fromkeys((record.TEXT, _OBJECT_TEXT), classes),
    }


def _sides(limits: Mapping[str, Any], pixels: Mapping[str, Any]) -> Whole:
    """Returns the range of height and width, in pixels, of images as they are stored."""
    least, most = limits["min_side_px"], limits["max_side_px"]
    if pixels["policy"] == "raw":
        return Whole(least=pixels["side_px"], most=pixels["side_px"])
    if pixels["policy"] == "resize" and pixels["fit"] == "inside":
        return Whole(least=1, most=min(most, pixels["side_px"]))
    if pixels["policy"] == "resize":
        return Whole(least=min(least, pixels["side_px"]), most=most)
    return Whole(least=least, most=most)


def _widened(domain: Domain, seen: Range | None) -> Domain:
    if seen is None or isinstance(domain, Values):
        return domain
    least, most = seen
    if isinstance(domain, Whole):
        return Whole(least=min(domain.least, int(least)), most=max(domain.most, int(most)))
    return Real(least=min(domain.least, least), most=None if domain.most is None else max(domain.most, most))


def _set_domain(schema: schema_pb2.Schema, feature: schema_pb2.Feature, domain: Domain) -> None:
    if isinstance(domain, Values):
        feature.domain = feature.name
        named = [known for known in schema.string_domain if known.name == feature.name]
        target = named[0] if named else schema.string_domain.add(name=feature.name)
        target.value[:] = domain.values
    elif isinstance(domain, Whole):
        feature.int_domain.Clear()
        feature.int_domain.min, feature.int_domain.max = domain.least, domain.most
        if domain.category:
            feature.int_domain.is_categorical = True
    else:
        feature.float_domain.Clear()
        feature.float_domain.min = domain.least
        if domain.most is not None:
            feature.float_domain.max = domain.most


def _set_shape(feature: schema_pb2.Feature, dataset: Manifest) -> None:
    """Says that a feature is in every record, and with how many values."""
    feature.presence.min_fraction, feature.presence.min_count = 1.0, 1
    if feature.name in (record.LABEL, record.TEXT) and dataset.label_kind == "multi":
        feature.value_count.min, feature.value_count.max = 0, max(1, len(dataset.labels))
        return
    shape = record.FEATURES[feature.name][1] or (1,)  # to TFX a scalar is a vector of one
    feature.shape.Clear()
    for size in shape:
        feature.shape.dim.add(size=size)
