"""The checks of the gate: pure functions from what is known of a dataset to findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from tensorflow_metadata.proto.v0 import anomalies_pb2

from beam_jobs.manifest import Manifest
from components.dataset_gate.limits import GateLimits


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One crossed limit.

    Attributes:
      check: name of the check.
      split: where.
      feature: what.
      value: what was found.
      limit: what is allowed.
      remedy: what to do.
    """

    check: str
    split: str
    feature: str
    value: str
    limit: str
    remedy: str

    def __str__(self) -> str:
        """Returns the finding as one sentence."""
        return f"{self.check}: {self.feature} in {self.split} is {self.value}, allowed is {self.limit}; {self.remedy}"


def check_dataset(
    dataset: Manifest, images: pa.Table, anomalies: Mapping[str, anomalies_pb2.Anomalies], limits: GateLimits
) -> list[Finding]:
    """Runs every check.

    Args:
      dataset: the manifest.
      images: the rows of `images.parquet`.
      anomalies: split -> what ExampleValidator found.
      limits: what is allowed.

    Returns:
      the findings; empty when the dataset may pass.
    """
    return [
        *check_anomalies(anomalies, limits),
        *check_leaks(images, limits),
        *check_classes(dataset, limits),
    ]


def count_anomalies(anomalies: anomalies_pb2.Anomalies) -> int:
    """Returns the number of anomalous features of a split; the dataset as a whole counts as one more."""
    return len(dict(_describe(anomalies)))


def check_anomalies(anomalies: Mapping[str, anomalies_pb2.Anomalies], limits: GateLimits) -> Iterator[Finding]:
    """Finds splits with more anomalous features than `max_anomalies`; yields one finding a feature."""
    for split, found in anomalies.items():
        described = dict(_describe(found))
        if len(described) <= limits.max_anomalies:
            continue
        for feature, text in described.items():
            yield Finding(
                check="anomaly",
                split=split,
                feature=feature,
                value=text,
                limit=f"{limits.max_anomalies} anomalous features a split",
                remedy="repair the data, or change the schema if the data is right",
            )


def check_leaks(images: pa.Table, limits: GateLimits) -> Iterator[Finding]:
    """Finds exact copies that lie in several splits, which would make evaluation too kind."""
    splits_of: dict[str, dict[str, str]] = defaultdict(dict)
    for row in images.select(["cluster", "split", "key"]).to_pylist():
        if row["cluster"] and row["split"]:
            splits_of[row["cluster"]].setdefault(row["split"], row["key"])
    leaks = [members for members in splits_of.values() if len(members) > 1]
    if len(leaks) > limits.max_leaks:
        shown = " and ".join(f"{key} in {split}" for split, key in leaks[0].items())
        yield Finding(
            check="leakage",
            split=", ".join(sorted(leaks[0])),
            feature="image content",
            value=f"{len(leaks)} images shared between splits (such as {shown})",
            limit=str(limits.max_leaks),
            remedy="mend the split column, or leave the split to the hash, which keeps copies together",
        )


def check_classes(dataset: Manifest, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes with too few images in the first split, and classes that only later splits have."""
    first, *others = dataset.splits
    counts = dataset.splits[first].classes
    for name in others:
        unseen = sorted(set(dataset.splits[name].classes) - set(counts))
        if unseen and not limits.allow_missing_classes:
            yield Finding(
                check="unseen classes",
                split=name,
                feature="image/class/text",
                value=f"{_some(unseen)}, absent from {first}",
                limit="classes that the first split has",
                remedy="add images of these classes, or set gate.allow_missing_classes",
            )
    small = sorted(label for label, count in counts.items() if count < limits.min_images_per_class)
    if small:
        yield Finding(
            check="small classes",
            split=first,
            feature="image/class/text",
            value=_some([f"{label} with {counts[label]} images" for label in small]),
            limit=f"at least {limits.min_images_per_class} images a class",
            remedy="add images of these classes, or lower gate.min_images_per_class",
        )


def _describe(anomalies: anomalies_pb2.Anomalies) -> Iterator[tuple[str, str]]:
    for name, info in anomalies.anomaly_info.items():
        yield name, info.description or info.short_description
    if anomalies.HasField("dataset_anomaly_info"):
        info = anomalies.dataset_anomaly_info
        yield "dataset", info.description or info.short_description


def _some(names: Iterable[str], most: int = 5) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
