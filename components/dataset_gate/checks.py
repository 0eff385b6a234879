"""The checks of the gate: pure functions that return findings about the classes, images and statistics of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tensorflow_metadata.proto.v0 import anomalies_pb2

from beam_jobs.common.strings import plural, some
from beam_jobs.dataset import lookup
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.near_duplicates import NearClusters
from components.dataset_gate import drift_and_skew
from components.dataset_gate.drift_and_skew import MEASURES, GateDataset
from components.dataset_gate.limits import (
    CLASS,
    EXCEEDED,
    KINDS,
    NOT_CHECKED,
    PASSED,
    Check,
    Comparison,
    Finding,
    GateLimits,
    Outcome,
    short_name,
)
from components.dataset_gate.remarks import collect_remarks

_MAX_LISTED = 5  # classes named in a finding


def check_classes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Runs all checks of the classes; an image of several classes counts for each."""
    yield from check_class_count(dataset)
    yield from check_class_splits(dataset, limits)
    yield from check_class_sizes(dataset, limits)


def check_class_count(dataset: GateDataset) -> Iterator[Finding]:
    """Finds a dataset with one class, on which neither training nor evaluation is possible."""
    labels = dataset.manifest.labels
    if dataset.manifest.label_kind == "single" and len(labels) == 1:
        yield Finding(
            check="one class",
            split="all splits",
            feature=CLASS,
            value=f"only {some(labels, _MAX_LISTED)}",
            limit="at least two classes",
            remedy="add images of another class",
        )


def check_class_splits(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes without images, classes that the first split lacks, and classes that only later splits lack."""
    first, *others = dataset.splits
    classes = {name: set(info.classes) for name, info in dataset.manifest.splits.items()}
    missing = sorted(_labels(dataset).difference(*classes.values()))
    if missing and not limits.allow_missing_classes:
        yield Finding(
            check="missing classes",
            split="all splits",
            feature=CLASS,
            value=f"without an image of {some(missing, _MAX_LISTED)}",
            limit="an image of every class of the labels",
            remedy="add images of these classes, check whether they were dropped as copies, "
            "or set gate.allow_missing_classes to true",
        )
    for name in others:
        unseen = sorted(classes[name] - classes[first])
        if unseen and not limits.allow_missing_classes:
            yield Finding(
                check="unseen classes",
                split=name,
                feature=CLASS,
                value=f"{some(unseen, _MAX_LISTED)}, absent from {first}",
                limit="classes that the first split has",
                remedy="add images of these classes, or set gate.allow_missing_classes to true",
            )
        absent = sorted(classes[first] - classes[name])
        if absent and limits.require_all_classes:
            yield Finding(
                check="absent classes",
                split=name,
                feature=CLASS,
                value=f"without an image of {some(absent, _MAX_LISTED)}",
                limit=f"an image of every class of {first}",
                remedy="add images of these classes, set ingest.stratify, or set gate.require_all_classes to false",
            )


def check_class_sizes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes with too few images, and too unequal class sizes, in the first split."""
    first = dataset.splits[0]
    counts = dataset.manifest.splits[first].classes
    small = sorted(label for label, count in counts.items() if count < limits.min_images_per_class)
    if small:
        yield Finding(
            check="small classes",
            split=first,
            feature=CLASS,
            value=some([f"{label} with {plural(counts[label], 'image')}" for label in small], _MAX_LISTED),
            limit=f"at least {plural(limits.min_images_per_class, 'image')} a class",
            remedy="add images of these classes, or lower gate.min_images_per_class",
        )
    if not counts or not limits.max_imbalance:
        return
    largest, smallest = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    if counts[largest] > limits.max_imbalance * counts[smallest]:
        ratio = counts[largest] / counts[smallest]
        largest_text = f"{largest} with {plural(counts[largest], 'image')}"
        yield Finding(
            check="imbalance",
            split=first,
            feature=CLASS,
            value=f"{ratio:.1f} : 1 ({largest_text}, {smallest} with {counts[smallest]})",
            limit=f"{limits.max_imbalance:g} : 1",
            remedy="add images of the small classes, remove images of the large, or raise gate.max_imbalance",
        )


def _labels(dataset: GateDataset) -> set[str]:
    """Returns the classes of images; empty for a dataset with objects, whose labels include the classes of objects."""
    with_objects = dataset.database.number("SELECT count(*) FROM images WHERE has_objects")
    return set() if with_objects else set(dataset.manifest.labels)


_CONTENT = "image content"
_EXAMPLE_IMAGES = 1000  # images of a cluster that are compared for an example


def check_images(dataset: GateDataset, limits: GateLimits, clusters: NearClusters | None) -> Iterator[Finding | Check]:
    """Runs all checks of the images; those of near duplicates only if their clusters are given."""
    yield from check_leaks(dataset, limits)
    yield from check_group_leaks(dataset, limits)
    yield from check_near_leaks(dataset, limits, clusters)
    yield from check_resolution(dataset, limits)
    yield from check_blank(dataset, limits)


def _row(check: str, measured: str, limit: str, setting: str, made: bool = True) -> Check:
    """Returns a row of the table; `check_dataset` marks those with a finding, so that both say the same."""
    return Check(check=check, measured=measured, limit=limit, setting=setting, result=PASSED if made else NOT_CHECKED)


def check_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds exact copies in several splits, which bias the evaluation."""
    leaks = lookup.find_leaks(dataset.database, ("cluster",))
    yield _leak_row(dataset, "leakage", plural(len(leaks), "set"), "max_leaks", limits)
    if len(leaks) > limits.max_leaks:
        keys = leaks[0].keys
        example = " and ".join(f"{keys[split]} in {split}" for split in dataset.splits if split in keys)
        yield Finding(
            check="leakage",
            split=", ".join(keys),
            feature=_CONTENT,
            value=f"{len(leaks)} images shared between splits (such as {example})",
            limit=str(limits.max_leaks),
            remedy="correct the split column, or remove it: the hash split assigns copies to one split",
        )


def _leak_row(dataset: GateDataset, check: str, measured: str, setting: str, limits: GateLimits) -> Check:
    made = len(dataset.splits) > 1
    return _row(check, measured if made else "one split", f"{getattr(limits, setting):,}", setting, made)


def check_group_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds groups, and grouped sets of near duplicates, with images in several splits."""
    kinds = lookup.select_leak_kinds(dataset.manifest.options.get("near_duplicates", "off"))[1:]
    leaks = lookup.find_leaks(dataset.database, kinds)
    yield _leak_row(dataset, "group leakage", plural(len(leaks), "set"), "max_group_leaks", limits)
    if len(leaks) > limits.max_group_leaks:
        yield Finding(
            check="group leakage",
            split=", ".join(leaks[0].keys),
            feature="group",
            value=f"{plural(len(leaks), 'set')} of images shared between splits (such as {leaks[0]})",
            limit=str(limits.max_group_leaks),
            remedy="correct the split column or the groups, write the dataset again, or raise gate.max_group_leaks",
        )


_CONTENTS = """
    SELECT row, list_position($splits, split) - 1, hash(sha256) FROM images ORDER BY row"""
_PLACE = "SELECT key, split FROM images WHERE row = $row"


def check_near_leaks(
    dataset: GateDataset, limits: GateLimits, clusters: NearClusters | None
) -> Iterator[Finding | Check]:
    """Finds images that are near duplicates of an image of an earlier split; ignores clusters of exact copies."""
    if clusters is None:
        looked = dataset.manifest.options.get("near_duplicates", "off") != "off"
        measured = f"near_leaks is off{'; the remarks have what the ingest found' * looked}"
        yield _row("near leakage", measured, "none", "max_near_leaks", made=False)
        return
    images, roots = dataset.database.query(_CONTENTS, splits=list(dataset.splits)), clusters.roots
    rows, splits, contents = (column.to_numpy() for column in images.columns)
    first_split, has_variants = np.full(len(roots), len(dataset.splits)), np.zeros(len(roots), bool)
    np.minimum.at(first_split, roots, splits)
    has_variants[roots[contents != contents[roots]]] = True
    leaks = np.flatnonzero((splits > first_split[roots]) & has_variants[roots])
    yield _leak_row(dataset, "near leakage", plural(len(leaks), "image"), "max_near_leaks", limits)
    if len(leaks) <= limits.max_near_leaks:
        return
    pair = _closest_pair(splits, _image_signatures(dataset), np.flatnonzero(roots == roots[leaks[0]]))
    shown = [dataset.database.query(_PLACE, row=int(rows[index])).to_pylist()[0] for index in pair]
    example = " and ".join(f"{image['key']} in {image['split']}" for image in shown)
    yield Finding(
        check="near leakage",
        split=", ".join(sorted({dataset.splits[index] for index in splits[[pair[0], *leaks]]})),
        feature=_CONTENT,
        value=f"{plural(len(leaks), 'image')} like one of an earlier split (such as {example})",
        limit=f"{limits.max_near_leaks}, up to {limits.near_distance} bits apart",
        remedy="set ingest.near_duplicates to group or drop, correct the split column, or raise gate.max_near_leaks",
    )


def check_resolution(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds splits with too many images whose short side is too short, in the source or in the dataset."""
    if not limits.min_side_px:
        yield _row("low resolution", "min_side_px is 0", "none", "max_low_resolution_ratio", made=False)
        return
    yield from _split_shares(
        dataset,
        # The smaller of the two: the ingest may reduce images, and `raw` enlarges small ones.
        f"least(height, width, source_height, source_width) < {limits.min_side_px}",
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
        "max_low_resolution_ratio",
    )


def check_blank(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds splits with too many images of one colour, from which a model learns nothing."""
    if not (limits.blank_variance and dataset.has_channel_statistics):
        cause = "facts=basic" if limits.blank_variance else "blank_variance is 0"
        yield _row("blank images", cause, "none", "max_blank_ratio", made=False)
        return
    yield from _split_shares(
        dataset,
        f"list_max(var_rgb)::DOUBLE < {limits.blank_variance!r}::DOUBLE",
        Finding(
            check="blank images",
            split="",
            feature=_CONTENT,
            value="constant or blank",
            limit=f"{limits.max_blank_ratio:.1%}",
            remedy="remove these files from the source, or raise gate.max_blank_ratio",
        ),
        limits.max_blank_ratio,
        "max_blank_ratio",
    )


_BAD_IMAGES = """
    SELECT count(*) FILTER ({condition}) AS bad, count(*) AS images FROM images WHERE split = $split"""
_BAD_KEYS = "SELECT key FROM images WHERE split = $split AND {condition} ORDER BY key LIMIT 3"


def _split_shares(
    dataset: GateDataset, condition: str, template: Finding, limit: float, setting: str
) -> Iterator[Finding | Check]:
    """Yields the template, with split and value, for every split whose share of bad images is above the limit."""
    worst = (-1.0, "")
    for split in dataset.splits:
        counts = dataset.database.query(_BAD_IMAGES.format(condition=condition), split=split)
        bad, total = counts["bad"][0].as_py(), counts["images"][0].as_py()
        worst = max(worst, (bad / max(1, total), f"{bad:,} of {plural(total, 'image')} in {split}"))
        if bad > limit * total:
            keys = dataset.database.query(_BAD_KEYS.format(condition=condition), split=split)["key"].to_pylist()
            more = f" and {bad - len(keys):,} more" if bad > len(keys) else ""
            value = f"{template.value} in {bad} of {plural(total, 'image')} ({', '.join(keys)}{more})"
            yield Finding(**{**vars(template), "split": split, "value": f"{value}, {bad / total:.1%}"})
    yield _row(template.check, worst[1], f"{limit:.1%}", setting)


_SIGNATURES = "SELECT dhash, height, width, mean_rgb, var_rgb FROM images ORDER BY row"  # `near_duplicates.COLUMNS`


def _image_signatures(dataset: GateDataset) -> near_duplicates.Appearances:
    return near_duplicates.measure_facts(dataset.database.query(_SIGNATURES), dataset.has_channel_statistics)


def _closest_pair(splits: np.ndarray, signatures: near_duplicates.Appearances, members: np.ndarray) -> tuple[int, int]:
    """Returns the rows of the closest images of the first split of a cluster and of its later splits."""
    first = members[splits[members] == splits[members].min()][:_EXAMPLE_IMAGES]
    later = members[splits[members] > splits[members].min()][:_EXAMPLE_IMAGES]
    bits = near_duplicates.bit_count(signatures.hashes[first][:, None] ^ signatures.hashes[later][None, :])
    row, column = divmod(int(bits.argmin()), len(later))
    return int(first[row]), int(later[column])


@dataclass(frozen=True)
class Baseline:
    """The previous dataset.

    Attributes:
      dataset: its manifest and images.
      name: its name in findings, such as `span 3`.
    """

    dataset: GateDataset
    name: str


def check_dataset(
    dataset: GateDataset,
    anomalies: Mapping[str, anomalies_pb2.Anomalies],
    limits: GateLimits,
    baseline: Baseline | None = None,
) -> Outcome:
    """Runs all checks.

    Args:
      dataset: dataset to check.
      anomalies: split -> anomalies that ExampleValidator found.
      limits: limits of the gate.
      baseline: the previous dataset; None if there is none.
    """
    clusters = near_duplicates.find(_image_signatures(dataset), limits.near_distance) if limits.near_leaks else None
    results = list(drift_and_skew.skew(dataset, limits))
    if baseline:
        results += drift_and_skew.drift(dataset, baseline.dataset, baseline.name, limits)
    of_images = list(check_images(dataset, limits, clusters))
    comparisons = tuple(result.comparison for result in results)
    findings = (
        *check_anomalies(anomalies, limits),
        *check_rejects(dataset, limits),
        *check_classes(dataset, limits),
        *(item for item in of_images if isinstance(item, Finding)),
        *(drift_and_skew.make_finding(result, limits) for result in results if result.comparison.is_over),
    )
    found = {finding.check for finding in findings}
    rows = (*_count_rows(dataset, anomalies, limits), *(item for item in of_images if isinstance(item, Check)))
    return Outcome(
        checks=(
            *(replace(row, result=EXCEEDED) if row.check in found else row for row in rows),
            *_comparison_rows(comparisons, limits),
        ),
        findings=findings,
        remarks=tuple(collect_remarks(dataset, limits, findings)),
        comparisons=comparisons,
        notes=tuple(notes(dataset, limits, baseline, clusters)),
    )


def _count_rows(
    dataset: GateDataset, anomalies: Mapping[str, anomalies_pb2.Anomalies], limits: GateLimits
) -> Iterator[Check]:
    """Yields the rows of the checks that count anomalies, rejects and classes."""
    most = max((count_anomalies(found) for found in anomalies.values()), default=0)
    yield _row("anomaly", plural(most, "feature"), f"{limits.max_anomalies:,}", "max_anomalies")
    counts, share = dataset.manifest.counts, limits.max_reject_ratio
    rejected = f"{counts.rejected:,} of {plural(counts.found, 'image')}"
    yield _row("rejects", rejected, f"{share:.1%}" if share < 1 else "none", "max_reject_ratio", share < 1)
    yield from _class_rows(dataset, limits)


def _class_rows(dataset: GateDataset, limits: GateLimits) -> Iterator[Check]:
    first, *others = dataset.splits
    labels, kind = dataset.manifest.labels, dataset.manifest.label_kind
    yield _row("one class", plural(len(labels), "class", "classes"), "at least 2", "", kind == "single")
    classes = {name: set(info.classes) for name, info in dataset.manifest.splits.items()}
    limit, made = ("none", False) if limits.allow_missing_classes else ("0", kind != "none")
    missing = len(_labels(dataset).difference(*classes.values()))
    yield _row("missing classes", f"{missing:,} without an image", limit, "allow_missing_classes", made)
    unseen = max((len(classes[name] - classes[first]) for name in others), default=0)
    yield _row(
        "unseen classes", f"{unseen:,} absent from {first}", limit, "allow_missing_classes", made and bool(others)
    )
    limit, made = ("0", kind != "none" and bool(others)) if limits.require_all_classes else ("none", False)
    absent = max((len(classes[first] - classes[name]) for name in others), default=0)
    yield _row("absent classes", f"{absent:,} of {first} absent elsewhere", limit, "require_all_classes", made)
    sizes, smallest, ratio = dataset.manifest.splits[first].classes, "no class", "no class"
    if sizes:
        least, most = (choose(sizes, key=lambda name: sizes[name]) for choose in (min, max))
        smallest, ratio = f"{plural(sizes[least], 'image')} ({least})", f"{sizes[most] / sizes[least]:.1f} : 1"
    limit = f"at least {limits.min_images_per_class:,}"
    yield _row("small classes", smallest, limit, "min_images_per_class", bool(sizes))
    limit = f"{limits.max_imbalance:g} : 1" if limits.max_imbalance else "none"
    yield _row("imbalance", ratio, limit, "max_imbalance", bool(sizes and limits.max_imbalance))


def _comparison_rows(comparisons: Sequence[Comparison], limits: GateLimits) -> Iterator[Check]:
    """Yields a row for each kind and measure, of the comparison nearest to its limit."""
    for kind in reversed(KINDS):
        for measure in MEASURES:
            setting = f"max_{kind}_{measure}"
            found = [item for item in comparisons if (item.kind, item.measure) == (kind, measure)]
            checked = [item for item in found if limits.limit_of(kind, measure, item.feature) < 1]
            if not checked:
                measured = "all limits are 1" if found else "nothing to compare with"
                yield _row(f"{kind} ({measure})", measured, "none", setting, made=False)
                continue
            item = max(checked, key=lambda item: item.value - item.limit)
            measured = f"{item.value:.3f}, {short_name(item.feature)} in {item.split}"
            row = _row(f"{kind} ({measure})", measured, f"{item.limit:.3f}", setting)
            yield replace(row, result=EXCEEDED) if item.is_over else row


def count_anomalies(anomalies: anomalies_pb2.Anomalies) -> int:
    """Returns the number of anomalous features of a split; an anomaly of the complete dataset counts as a feature."""
    return len(dict(_describe(anomalies)))


def check_anomalies(anomalies: Mapping[str, anomalies_pb2.Anomalies], limits: GateLimits) -> Iterator[Finding]:
    """Finds splits with more anomalous features than `max_anomalies`; yields a finding for each feature."""
    for split, split_anomalies in anomalies.items():
        descriptions = dict(_describe(split_anomalies))
        if len(descriptions) <= limits.max_anomalies:
            continue
        for feature, text in descriptions.items():
            yield Finding(
                check="anomaly",
                split=split,
                feature=feature,
                value=text,
                limit=f"{limits.max_anomalies} anomalous features a split",
                remedy="repair the data, or change the schema if the data is correct",
            )


def check_rejects(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds a dataset with too many rejected images, which belong to no split."""
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
    dataset: GateDataset, limits: GateLimits, baseline: Baseline | None, clusters: NearClusters | None = None
) -> Iterator[str]:
    """Yields a line for each check that was not possible."""
    if dataset.manifest.label_kind == "none":
        yield "classes were not checked: the images have no labels"
    if not dataset.has_channel_statistics:
        yield "brightness and channels were not compared: the ingest took facts=basic"
        if limits.blank_variance:
            # Their hash, 0, is also that of a photograph that darkens to the right.
            yield "blank images were not checked: the ingest took facts=basic"
    if clusters is not None and (unsearched := int(clusters.unsearched.sum())):
        yield f"{plural(unsearched, 'image was', 'images were')} not compared with all others for near leaks"
    if len(dataset.splits) < 2:
        yield "leaks and skew were not checked: there is one split"
    if baseline is None:
        return
    for split in dataset.splits:
        if split not in baseline.dataset.splits:
            yield f"drift of {split} was not measured: {baseline.name} has no such split"
    if dataset.has_channel_statistics and not baseline.dataset.has_channel_statistics:
        yield f"drift of brightness and channels was not measured: {baseline.name} was made with facts=basic"


def _describe(anomalies: anomalies_pb2.Anomalies) -> Iterator[tuple[str, str]]:
    for name, info in anomalies.anomaly_info.items():
        yield name, _sentence(info)
    if anomalies.HasField("dataset_anomaly_info"):
        yield "dataset", _sentence(anomalies.dataset_anomaly_info)


def _sentence(info: anomalies_pb2.AnomalyInfo) -> str:
    return (info.description or info.short_description).strip().removesuffix(".")
