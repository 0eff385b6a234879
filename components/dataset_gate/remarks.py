"""Remarks: problems that a person should review, although they cross no limit. They do not stop the pipeline."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from beam_jobs.common.strings import plural, some
from beam_jobs.dataset.remarks import LARGE_NEAR_SET, largest_usual_set
from components.dataset_gate.drift_and_skew import GateDataset
from components.dataset_gate.limits import Finding, GateLimits, Remark

_FEW_IMAGES = 10  # per class; with fewer, the confidence interval of its accuracy may be wider than 0.5
_IMBALANCE = 10.0  # ratio of the largest to the smallest class
_MAX_LISTED = 5  # maximum number of names in a remark


def collect_remarks(dataset: GateDataset, limits: GateLimits, findings: Collection[Finding]) -> Iterator[Remark]:
    """Yields the remarks on a dataset.

    Args:
      dataset: dataset that was checked.
      limits: limits of the gate.
      findings: exceeded limits, for which there are no remarks.
    """
    exceeded = {finding.check for finding in findings}
    large_sets = list(_large_sets(dataset))
    for warning in dataset.manifest.warnings:
        if not (large_sets and warning.startswith(LARGE_NEAR_SET)):  # the warning names only the largest set
            yield Remark(check="ingest", value=warning)
    yield from large_sets
    if folders := [name for name in dataset.manifest.remarks.hidden_names if name.endswith("/")]:
        yield Remark(
            check="hidden folders",
            value=f"{some(folders, _MAX_LISTED)} passed over",
            remedy="rename a folder of images, so that it does not begin with a dot",
        )
    yield from _label_conflicts(dataset)
    if "near leakage" not in exceeded:
        yield from _near_leaks(dataset)
    if dataset.manifest.labels:
        yield from _class_sizes(dataset, limits, exceeded)
    if "blank images" not in exceeded:
        yield from _blank_images(dataset, limits)


_SETS = """
    SELECT count(*) AS sets, min(example) AS example FROM (
        SELECT arg_min(key, {name}) || ' in ' || min({name}) || ' and ' || arg_max(key, {name}) || ' in ' || max({name})
            AS example
        FROM images WHERE {column} <> '' GROUP BY {column}
        HAVING min({name}) <> max({name}) AND count(*) <= $most AND {condition})"""
_VARIANTS = "count(DISTINCT sha256) > 1"  # exact copies have a separate remark or finding


def _count_sets(dataset: GateDataset, set_column: str, value_column: str, condition: str) -> tuple[int, str]:
    """Returns the number of sets of duplicates whose images have several values in a column, and an example.

    `set_column` is `cluster` or `near`. Large sets of near duplicates are not counted, as they have a separate remark.
    """
    most = largest_usual_set(dataset.manifest.counts.written) if set_column == "near" else sys.maxsize
    query = _SETS.format(column=set_column, name=value_column, condition=condition)
    result = dataset.database.query(query, most=most).to_pylist()[0]
    return result["sets"], result["example"] or ""


_LARGE_SETS = """
    SELECT count(*) AS images, min(key) AS first, max(key) AS last,
        list(DISTINCT split ORDER BY split) AS splits, list(DISTINCT label ORDER BY label) AS classes
    FROM images SEMI JOIN (
        SELECT near FROM images WHERE near <> '' GROUP BY near HAVING count(*) > $most AND count(DISTINCT sha256) > 1)
    USING (near)
    GROUP BY near ORDER BY images DESC, first"""
_LARGE_SET_REMEDY = "set ingest.near_duplicates to group or drop; if it has unlike images, lower ingest.near_distance"


def _large_sets(dataset: GateDataset) -> Iterator[Remark]:
    """Yields a remark for each set of similar images that is unusually large, and therefore probably an error."""
    table = dataset.database.query(_LARGE_SETS, most=largest_usual_set(dataset.manifest.counts.written))
    for count, first_key, last_key, splits, classes in zip(*table.to_pydict().values(), strict=True):
        value = f"one set of {count:,} similar images (such as {first_key} and {last_key})"
        value += f"; splits: {some(splits, _MAX_LISTED)}"
        value += f"; classes: {some(classes, _MAX_LISTED)}" * (dataset.manifest.label_kind == "single")
        yield Remark(check="near duplicates", value=value, remedy=_LARGE_SET_REMEDY)


def _label_conflicts(dataset: GateDataset) -> Iterator[Remark]:
    """Yields remarks on sets of equal, and of similar, images with different classes: only one can be right."""
    if dataset.manifest.label_kind != "single":
        return
    for column, condition, kind in (("cluster", "true", "equal"), ("near", _VARIANTS, "similar")):
        sets, example = _count_sets(dataset, column, "label", condition)
        if sets:
            yield Remark(
                check="label conflicts",
                value=f"{plural(sets, 'set')} of {kind} images in several classes (such as {example})",
                remedy="correct the wrong classes; the section Duplicates of the report shows the images",
            )


def _near_leaks(dataset: GateDataset) -> Iterator[Remark]:
    sets, example = _count_sets(dataset, "near", "split", _VARIANTS)
    if sets:
        yield Remark(
            check="near leakage",
            value=f"{plural(sets, 'set')} of similar images in several splits (such as {example})",
            remedy="set ingest.near_duplicates to group or drop; the accuracy may be too high",
        )


def _class_sizes(dataset: GateDataset, limits: GateLimits, exceeded: Collection[str]) -> Iterator[Remark]:
    first_split = dataset.splits[0]
    counts = dataset.manifest.splits[first_split].classes
    small_classes = [f"{label} with {counts[label]}" for label in sorted(counts) if counts[label] < _FEW_IMAGES]
    if small_classes and "small classes" not in exceeded:
        yield Remark(
            check="small classes",
            value=f"{plural(len(small_classes), 'class', 'classes')} with fewer than {_FEW_IMAGES} images in "
            f"{first_split}: {some(small_classes, _MAX_LISTED)}",
            remedy="add images of these classes; gate.min_images_per_class makes it a limit",
        )
    largest, smallest = (choose(counts, key=lambda label: counts[label], default="") for choose in (max, min))
    if counts and counts[largest] > _IMBALANCE * counts[smallest] and not limits.max_imbalance:
        yield Remark(
            check="imbalance",
            value=f"{counts[largest] / counts[smallest]:.1f} : 1 in {first_split} ({largest} with {counts[largest]:,}, "
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
            remedy="remove them from the source; gate.max_blank_ratio limits their share",
        )
