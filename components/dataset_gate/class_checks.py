"""Checks of the classes: missing, unseen, small, unbalanced."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow.compute as pc

from beam_jobs.common.strings import plural
from components.dataset_gate.dataset import GateDataset
from components.dataset_gate.findings import Finding, some
from components.dataset_gate.limits import GateLimits
from components.dataset_gate.names import CLASS


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
            value=f"{some(labels)} alone",
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
            value=f"without an image of {some(nowhere)}",
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
                value=f"{some(unseen)}, absent from {first}",
                limit="classes that the first split has",
                remedy="add images of these classes, or set gate.allow_missing_classes to true",
            )
        absent = sorted(classes[first] - classes[name])
        if absent and limits.require_all_classes:
            yield Finding(
                check="absent classes",
                split=name,
                feature=CLASS,
                value=f"without an image of {some(absent)}",
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
            value=some([f"{label} with {plural(counts[label], 'image')}" for label in small]),
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
