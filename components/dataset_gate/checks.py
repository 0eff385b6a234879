"""The checks of the gate: pure functions from what is known of a dataset to findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorflow_metadata.proto.v0 import anomalies_pb2

from beam_jobs.common.strings import plural
from beam_jobs.planning.near_duplicates import NearClusters
from components.dataset_gate import comparisons
from components.dataset_gate.class_checks import check_classes
from components.dataset_gate.dataset import GateDataset
from components.dataset_gate.findings import Finding, Outcome
from components.dataset_gate.image_checks import check_images, near_clusters
from components.dataset_gate.limits import GateLimits


@dataclass(frozen=True)
class Baseline:
    """The dataset before.

    Attributes:
      dataset: it.
      name: what to call it, such as `span 3`.
    """

    dataset: GateDataset
    name: str


def check_dataset(
    dataset: GateDataset,
    anomalies: Mapping[str, anomalies_pb2.Anomalies],
    limits: GateLimits,
    baseline: Baseline | None = None,
) -> Outcome:
    """Runs every check.

    Args:
      dataset: the dataset.
      anomalies: split -> what ExampleValidator found.
      limits: what is allowed.
      baseline: the dataset before; None when there is none.
    """
    alike = near_clusters(dataset, limits) if limits.near_leaks else None
    compared = list(comparisons.skew(dataset, limits))
    if baseline:
        compared += comparisons.drift(dataset, baseline.dataset, baseline.name, limits)
    judged = (comparisons.finding_of(one, limits) for one in compared)
    return Outcome(
        findings=(
            *check_anomalies(anomalies, limits),
            *check_rejects(dataset, limits),
            *check_classes(dataset, limits),
            *check_images(dataset, limits, alike),
            *(finding for finding in judged if finding),
        ),
        comparisons=tuple(one.comparison for one in compared),
        notes=tuple(notes(dataset, limits, baseline, alike)),
    )


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


def check_rejects(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds a dataset of which too many images were rejected; a reject belongs to no split."""
    counts = dataset.manifest.counts
    if counts.rejected > limits.max_reject_ratio * counts.found:
        share = f"{counts.rejected / counts.found:.1%}"
        reasons = ", ".join(f"{count} {reason}" for reason, count in counts.rejects.items())
        yield Finding(
            check="rejects",
            split="all splits",
            feature="source",
            value=f"{plural(counts.rejected, 'image')} of {counts.found} rejected, {share} ({reasons})",
            limit=f"{limits.max_reject_ratio:.1%}",
            remedy="repair or remove the files that rejects.parquet names, or raise gate.max_reject_ratio",
        )


def notes(
    dataset: GateDataset, limits: GateLimits, baseline: Baseline | None, alike: NearClusters | None = None
) -> Iterator[str]:
    """Yields one line for each check that could not look."""
    if dataset.manifest.label_kind == "none":
        yield "classes were not checked: the images have no labels"
    if not dataset.has_moments:
        yield "brightness and channels were not compared: the ingest took facts=basic"
        if limits.blank_variance:
            # Their hash, 0, does not tell: a photograph that darkens to the right has it too.
            yield "blank images were not looked for: the ingest took facts=basic"
    if alike is not None and (unsearched := int(alike.unsearched.sum())):
        yield f"{plural(unsearched, 'image was', 'images were')} not compared with all others for near leaks"
    if len(dataset.splits) < 2:
        yield "leaks and skew were not checked: there is one split"
    if baseline is None:
        return
    for split in dataset.splits:
        if split not in baseline.dataset.splits:
            yield f"drift of {split} was not measured: {baseline.name} has no such split"
    if dataset.has_moments and not baseline.dataset.has_moments:
        yield f"drift of brightness and channels was not measured: {baseline.name} was made with facts=basic"


def _describe(anomalies: anomalies_pb2.Anomalies) -> Iterator[tuple[str, str]]:
    for name, info in anomalies.anomaly_info.items():
        yield name, _sentence(info)
    if anomalies.HasField("dataset_anomaly_info"):
        yield "dataset", _sentence(anomalies.dataset_anomaly_info)


def _sentence(info: anomalies_pb2.AnomalyInfo) -> str:
    return (info.description or info.short_description).strip().removesuffix(".")
