"""Remarks: what a person should look at, although no limit forbids it. They stop nothing."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from beam_jobs.common.strings import plural, some
from beam_jobs.dataset.remarks import LARGE_NEAR_SET, largest_usual_set
from components.dataset_gate.drift_and_skew import GateDataset
from components.dataset_gate.limits import Finding, GateLimits, Remark

_FEW_IMAGES = 10  # of a class; its accuracy has an interval of more than half of all values
_IMBALANCE = 10.0
_MAX_LISTED = 5


def collect_remarks(dataset: GateDataset, limits: GateLimits, findings: Collection[Finding]) -> Iterator[Remark]:
    """Yields the remarks on a dataset.

    Args:
      dataset: dataset that was checked.
      limits: limits of the gate.
      findings: exceeded limits, on which there is no second remark.
    """
    found = {finding.check for finding in findings}
    large_sets = list(_large_sets(dataset))
    for warning in dataset.manifest.warnings:
        if not (large_sets and warning.startswith(LARGE_NEAR_SET)):  # of the largest one alone, without its splits
            yield Remark(check="ingest", value=warning)
    yield from large_sets
    if folders := [name for name in dataset.manifest.remarks.hidden_names if name.endswith("/")]:
        yield Remark(
            check="hidden folders",
            value=f"{some(folders, _MAX_LISTED)} passed over",
            remedy="rename a folder of images, so that it does not begin with a dot",
        )
    yield from _conflicts(dataset)
    if "near leakage" not in found:
        yield from _near_leaks(dataset)
    if dataset.manifest.labels:
        yield from _classes(dataset, limits, found)
    if "blank images" not in found:
        yield from _blank_images(dataset, limits)


_SETS = """
    SELECT count(*) AS sets, min(example) AS example FROM (
        SELECT arg_min(key, {name}) || ' in ' || min({name}) || ' and ' || arg_max(key, {name}) || ' in ' || max({name})
            AS example
        FROM images WHERE {column} <> '' GROUP BY {column}
        HAVING min({name}) <> max({name}) AND count(*) <= $most AND {condition})"""
_VARIANTS = "count(DISTINCT sha256) > 1"  # exact copies have a remark, or a finding, of their own


def _count_sets(dataset: GateDataset, column: str, name: str, condition: str) -> tuple[int, str]:
    """Returns the number of sets of images that differ in a column, and an example.

    A large set of near duplicates has a remark of its own.
    """
    most = largest_usual_set(dataset.manifest.counts.written) if column == "near" else sys.maxsize
    query = _SETS.format(column=column, name=name, condition=condition)
    result = dataset.database.query(query, most=most).to_pylist()[0]
    return result["sets"], result["example"] or ""


_LARGE_SETS = """
    SELECT count(*) AS images, min(key) AS first, max(key) AS last,
        list(DISTINCT split ORDER BY split) AS splits, list(DISTINCT label ORDER BY label) AS classes
    FROM images SEMI JOIN (
        SELECT near FROM images WHERE near <> '' GROUP BY near HAVING count(*) > $most AND count(DISTINCT sha256) > 1)
    USING (near)
    GROUP BY near ORDER BY images DESC, first"""
_LARGE_SET_REMEDY = "set ingest.near_duplicates to group or drop; for chains of unlike ones lower ingest.near_distance"


def _large_sets(dataset: GateDataset) -> Iterator[Remark]:
    """Finds sets of similar images that have so many images that they look like an accident."""
    table = dataset.database.query(_LARGE_SETS, most=largest_usual_set(dataset.manifest.counts.written))
    for count, first, last, splits, classes in zip(*table.to_pydict().values(), strict=True):
        value = f"one set of {count:,} similar images (such as {first} and {last}); splits: {some(splits, _MAX_LISTED)}"
        if dataset.manifest.label_kind == "single":
            value += f"; classes: {some(classes, _MAX_LISTED)}"
        yield Remark(check="near duplicates", value=value, remedy=_LARGE_SET_REMEDY)


def _conflicts(dataset: GateDataset) -> Iterator[Remark]:
    """Finds sets of equal and of similar images with different classes, one of which is wrong."""
    if dataset.manifest.label_kind != "single":
        return
    for column, condition, kind in (("cluster", "true", "equal"), ("near", _VARIANTS, "similar")):
        sets, example = _count_sets(dataset, column, "label", condition)
        if sets:
            yield Remark(
                check="label conflicts",
                value=f"{plural(sets, 'set')} of {kind} images in several classes (such as {example})",
                remedy="correct the class of all but one; the section Duplicates of the report shows them",
            )


def _near_leaks(dataset: GateDataset) -> Iterator[Remark]:
    sets, example = _count_sets(dataset, "near", "split", _VARIANTS)
    if sets:
        yield Remark(
            check="near leakage",
            value=f"{plural(sets, 'set')} of similar images in several splits (such as {example})",
            remedy="set ingest.near_duplicates to group or drop; the accuracy may be too high",
        )


def _classes(dataset: GateDataset, limits: GateLimits, found: Collection[str]) -> Iterator[Remark]:
    first = dataset.splits[0]
    counts = dataset.manifest.splits[first].classes
    few = [f"{label} with {counts[label]}" for label in sorted(counts) if counts[label] < _FEW_IMAGES]
    if few and "small classes" not in found:
        yield Remark(
            check="small classes",
            value=f"{plural(len(few), 'class', 'classes')} with fewer than {_FEW_IMAGES} images in {first}: "
            f"{some(few, _MAX_LISTED)}",
            remedy="add images of these classes; gate.min_images_per_class makes it a limit",
        )
    largest, smallest = (choose(counts, key=lambda label: counts[label], default="") for choose in (max, min))
    if counts and counts[largest] > _IMBALANCE * counts[smallest] and not limits.max_imbalance:
        yield Remark(
            check="imbalance",
            value=f"{counts[largest] / counts[smallest]:.1f} : 1 in {first} ({largest} with {counts[largest]:,}, "
            f"{smallest} with {counts[smallest]:,})",
            remedy="add images of the small classes, or set train.class_weights; gate.max_imbalance makes it a limit",
        )


_BLANK_COUNT = "SELECT count(*) FROM images WHERE list_max(var_rgb)::DOUBLE < $limit"
_BLANK_KEYS = "SELECT key FROM images WHERE list_max(var_rgb)::DOUBLE < $limit ORDER BY key LIMIT 5"


def _blank_images(dataset: GateDataset, limits: GateLimits) -> Iterator[Remark]:
    if not (dataset.has_channel_statistics and limits.blank_variance):
        return
    count = dataset.database.number(_BLANK_COUNT, limit=float(limits.blank_variance))
    if count:
        keys = dataset.database.query(_BLANK_KEYS, limit=float(limits.blank_variance))["key"].to_pylist()
        yield Remark(
            check="blank images",
            value=f"{plural(count, 'image')} of one colour ({', '.join(keys)}{', ...' * (count > len(keys))})",
            remedy="remove them from the source; gate.max_blank_ratio is their limit",
        )
