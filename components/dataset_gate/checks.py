"""The checks of the gate, of classes, images and the rest: pure functions from facts of a dataset to findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tensorflow_metadata.proto.v0 import anomalies_pb2

from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import lookup, schemas
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.near_duplicates import NearClusters
from components.dataset_gate import measures
from components.dataset_gate.limits import CLASS, Finding, GateLimits, Outcome
from components.dataset_gate.measures import GateDataset

_NAMES = 5  # of classes, in a finding


def check_classes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Runs every check of the classes; an image of several classes counts in each."""
    yield from check_several(dataset)
    yield from check_missing(dataset, limits)
    yield from check_sizes(dataset, limits)


def check_several(dataset: GateDataset) -> Iterator[Finding]:
    """Finds a single class, of which a model learns nothing and an evaluation cannot say anything."""
    labels = dataset.manifest.labels
    if dataset.manifest.label_kind == "single" and len(labels) == 1:
        yield Finding(
            check="one class",
            split="all splits",
            feature=CLASS,
            value=f"{some(labels, _NAMES)} alone",
            limit="at least two classes",
            remedy="add images of another class",
        )


def check_missing(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes without images in the first split, classes that only later splits have, and ones they lack."""
    first, *others = dataset.splits
    classes = {name: set(info.classes) for name, info in dataset.manifest.splits.items()}
    nowhere = sorted(_labels(dataset).difference(*classes.values()))
    if nowhere and not limits.allow_missing_classes:
        yield Finding(
            check="missing classes",
            split=first,
            feature=CLASS,
            value=f"without an image of {some(nowhere, _NAMES)}",
            limit="an image of every class that the labels name",
            remedy="add images of these classes, see whether they were dropped as copies, "
            "or set gate.allow_missing_classes to true",
        )
    for name in others:
        unseen = sorted(classes[name] - classes[first])
        if unseen and not limits.allow_missing_classes:
            yield Finding(
                check="unseen classes",
                split=name,
                feature=CLASS,
                value=f"{some(unseen, _NAMES)}, absent from {first}",
                limit="classes that the first split has",
                remedy="add images of these classes, or set gate.allow_missing_classes to true",
            )
        absent = sorted(classes[first] - classes[name])
        if absent and limits.require_all_classes:
            yield Finding(
                check="absent classes",
                split=name,
                feature=CLASS,
                value=f"without an image of {some(absent, _NAMES)}",
                limit=f"an image of every class of {first}",
                remedy="add images of these classes, set ingest.stratify, or leave out gate.require_all_classes",
            )


def check_sizes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes of the first split with too few images, and a first split of too unequal classes."""
    first = dataset.splits[0]
    counts = dataset.manifest.splits[first].classes
    small = sorted(label for label, count in counts.items() if count < limits.min_images_per_class)
    if small:
        yield Finding(
            check="small classes",
            split=first,
            feature=CLASS,
            value=some([f"{label} with {plural(counts[label], 'image')}" for label in small], _NAMES),
            limit=f"at least {plural(limits.min_images_per_class, 'image')} a class",
            remedy="add images of these classes, or lower gate.min_images_per_class",
        )
    if not counts or not limits.max_imbalance:
        return
    largest, smallest = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    if counts[largest] > limits.max_imbalance * counts[smallest]:
        ratio = counts[largest] / counts[smallest]
        most = f"{largest} with {plural(counts[largest], 'image')}"
        yield Finding(
            check="imbalance",
            split=first,
            feature=CLASS,
            value=f"{ratio:.1f} : 1 ({most}, {smallest} with {counts[smallest]})",
            limit=f"{limits.max_imbalance:g} : 1",
            remedy="add images of the small classes, leave out images of the large, or raise gate.max_imbalance",
        )


def _labels(dataset: GateDataset) -> set[str]:
    """Returns the classes that images can have; the labels of a dataset with objects name those of objects too."""
    with_objects = pc.any(pc.match_substring(dataset.images["annotations"], '"objects": [')).as_py()
    return set() if with_objects else set(dataset.manifest.labels)


_CONTENT = "image content"
_SHOWN = 1000  # images of a cluster among which an example is looked for


def near_clusters(dataset: GateDataset, limits: GateLimits) -> NearClusters:
    """Searches for images that look alike."""
    return near_duplicates.find(_looks(dataset), limits.near_distance)


def check_images(dataset: GateDataset, limits: GateLimits, alike: NearClusters | None) -> Iterator[Finding]:
    """Runs every check of the images; `alike` are their near clusters, None when these are not wanted."""
    yield from check_leaks(dataset, limits)
    yield from check_group_leaks(dataset, limits)
    if alike is not None:
        yield from check_near_leaks(dataset, limits, alike)
    if limits.min_side_px:
        yield from check_resolution(dataset, limits)
    if limits.blank_variance and dataset.has_moments:
        yield from check_blank(dataset, limits)


def check_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds exact copies that lie in several splits, which would make evaluation too kind."""
    copied = pc.not_equal(dataset.images["cluster"], "").to_numpy()
    keys = dataset.images["key"].filter(copied).to_pylist()
    clusters = dataset.images["cluster"].filter(copied).to_pylist()
    splits_of: dict[str, dict[int, str]] = {}
    for cluster, split, key in zip(clusters, dataset.split_of[copied].tolist(), keys, strict=True):
        splits_of.setdefault(cluster, {}).setdefault(split, key)
    shared = [members for members in splits_of.values() if len(members) > 1]
    if len(shared) > limits.max_leaks:
        members = {dataset.splits[split]: key for split, key in sorted(shared[0].items())}
        shown = " and ".join(f"{key} in {split}" for split, key in members.items())
        yield Finding(
            check="leakage",
            split=", ".join(sorted(members)),
            feature=_CONTENT,
            value=f"{len(shared)} images shared between splits (such as {shown})",
            limit=str(limits.max_leaks),
            remedy="mend the split column, or leave the split to the hash, which keeps copies together",
        )


def check_group_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds groups, and sets of near duplicates that were grouped, that lie in several splits."""
    kinds = lookup.leak_kinds_of(dataset.manifest.options.get("near_duplicates", "off"))[1:]
    crossing = lookup.find_leaks(dataset.images, kinds)
    if len(crossing) > limits.max_group_leaks:
        yield Finding(
            check="group leakage",
            split=", ".join(crossing[0].keys),
            feature="group",
            value=f"{plural(len(crossing), 'set')} of images shared between splits (such as {crossing[0]})",
            limit=str(limits.max_group_leaks),
            remedy="mend the split column or the groups, write the dataset anew, or raise gate.max_group_leaks",
        )


def check_near_leaks(dataset: GateDataset, limits: GateLimits, alike: NearClusters) -> Iterator[Finding]:
    """Finds images of later splits that look like one of an earlier split; exact copies alone are no such pair."""
    images, roots = dataset.images, alike.roots
    contents = images["sha256"].combine_chunks().dictionary_encode().indices.to_numpy()
    earliest, many = np.full(len(roots), len(dataset.splits)), np.zeros(len(roots), bool)
    np.minimum.at(earliest, roots, dataset.split_of)
    many[roots[contents != contents[roots]]] = True
    later = np.flatnonzero((dataset.split_of > earliest[roots]) & many[roots])
    if len(later) <= limits.max_near_leaks:
        return
    one, other = _example(dataset, _looks(dataset), np.flatnonzero(roots == roots[later[0]]))
    shown = " and ".join(
        f"{images['key'][place].as_py()} in {dataset.splits[dataset.split_of[place]]}" for place in (one, other)
    )
    splits = sorted({dataset.splits[place] for place in (dataset.split_of[one], *dataset.split_of[later])})
    yield Finding(
        check="near leakage",
        split=", ".join(splits),
        feature=_CONTENT,
        value=f"{plural(len(later), 'image')} like one of an earlier split (such as {shown})",
        limit=f"{limits.max_near_leaks}, up to {limits.near_distance} bits apart",
        remedy="set ingest.near_duplicates to group or drop, mend the split column, or raise gate.max_near_leaks",
    )


def check_resolution(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds splits with too many images whose short side is too short, as they were found or as they are stored."""
    # The smaller of the two: images were resized on their way in, and `raw` enlarges what is too small.
    names = ("height", "width", "source_height", "source_width")
    side = np.minimum.reduce([dataset.images[name].to_numpy() for name in names])
    yield from _split_shares(
        dataset,
        side < limits.min_side_px,
        Finding(
            check="low resolution",
            split="",
            feature="image/short_side",
            value=f"under {limits.min_side_px} px",
            limit=f"{limits.max_low_resolution_ratio:.1%}",
            remedy="add larger images, raise ingest.limits.min_side_px to reject these, "
            "or raise gate.max_low_resolution_ratio",
        ),
        limits.max_low_resolution_ratio,
    )


def check_blank(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds splits with too many images of one colour, which teach nothing."""
    blank = schemas.triples(dataset.images["var_rgb"]).astype(np.float64).max(axis=1, initial=0) < limits.blank_variance
    yield from _split_shares(
        dataset,
        blank,
        Finding(
            check="blank images",
            split="",
            feature=_CONTENT,
            value="constant or blank",
            limit=f"{limits.max_blank_ratio:.1%}",
            remedy="take these files out of the source, or raise gate.max_blank_ratio",
        ),
        limits.max_blank_ratio,
    )


def _split_shares(dataset: GateDataset, bad: np.ndarray, pattern: Finding, limit: float) -> Iterator[Finding]:
    """Yields the pattern for every split with a larger share of bad images than the limit."""
    for split in dataset.splits:
        rows = dataset.rows_of(split)
        found = np.flatnonzero(rows & bad)
        if len(found) > limit * rows.sum():
            keys = dataset.images["key"].take(pa.array(found)).to_pylist()
            value = f"{pattern.value} in {len(found)} of {plural(int(rows.sum()), 'image')} ({some(sorted(keys), 3)})"
            yield Finding(**{**vars(pattern), "split": split, "value": f"{value}, {len(found) / rows.sum():.1%}"})


def _looks(dataset: GateDataset) -> near_duplicates.Looks:
    hashes, height, width = (dataset.images[name].to_numpy() for name in ("dhash", "height", "width"))
    variance = schemas.triples(dataset.images["var_rgb"]) if dataset.has_moments else None
    return near_duplicates.looks(hashes, height, width, schemas.triples(dataset.images["mean_rgb"]), variance)


def _example(dataset: GateDataset, looks: near_duplicates.Looks, members: np.ndarray) -> tuple[int, int]:
    """Returns the two images of different splits that are most alike, of the first of a cluster."""
    first = members[dataset.split_of[members] == dataset.split_of[members].min()][:_SHOWN]
    later = members[dataset.split_of[members] > dataset.split_of[members].min()][:_SHOWN]
    bits = near_duplicates.bit_count(looks.hashes[first][:, None] ^ looks.hashes[later][None, :])
    place = int(bits.argmin())
    return int(first[place // len(later)]), int(later[place % len(later)])


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
    compared = list(measures.skew(dataset, limits))
    if baseline:
        compared += measures.drift(dataset, baseline.dataset, baseline.name, limits)
    judged = (measures.finding_of(one, limits) for one in compared)
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
