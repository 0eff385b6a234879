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

_MAX_LISTED = 5  # maximum number of classes in a finding


def check_classes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Runs all checks of the classes; an image with several classes is counted in each of them."""
    yield from check_class_count(dataset)
    yield from check_class_splits(dataset, limits)
    yield from check_class_sizes(dataset, limits)


def check_class_count(dataset: GateDataset) -> Iterator[Finding]:
    """Finds a dataset with one class, which is useless for training and evaluation."""
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
    """Finds classes that are missing in all splits, in the first split, or only in later splits."""
    first_split, *later_splits = dataset.splits
    classes = {name: set(info.classes) for name, info in dataset.manifest.splits.items()}
    missing_classes = sorted(_required_classes(dataset).difference(*classes.values()))
    if missing_classes and not limits.allow_missing_classes:
        yield Finding(
            check="missing classes",
            split="all splits",
            feature=CLASS,
            value=f"no image of {some(missing_classes, _MAX_LISTED)}",
            limit="an image of every class",
            remedy="add images of these classes, check whether they were dropped as copies, "
            "or set gate.allow_missing_classes to true",
        )
    for split in later_splits:
        unseen_classes = sorted(classes[split] - classes[first_split])
        if unseen_classes and not limits.allow_missing_classes:
            yield Finding(
                check="unseen classes",
                split=split,
                feature=CLASS,
                value=f"{some(unseen_classes, _MAX_LISTED)}, absent from {first_split}",
                limit="classes of the first split",
                remedy="add images of these classes, or set gate.allow_missing_classes to true",
            )
        absent_classes = sorted(classes[first_split] - classes[split])
        if absent_classes and limits.require_all_classes:
            yield Finding(
                check="absent classes",
                split=split,
                feature=CLASS,
                value=f"no image of {some(absent_classes, _MAX_LISTED)}",
                limit=f"an image of every class of {first_split}",
                remedy="add images of these classes, set ingest.stratify, or set gate.require_all_classes to false",
            )


def check_class_sizes(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding]:
    """Finds classes with too few images, and an excessive imbalance of the classes, in the first split."""
    first_split = dataset.splits[0]
    counts = dataset.manifest.splits[first_split].classes
    small_classes = sorted(label for label, count in counts.items() if count < limits.min_images_per_class)
    if small_classes:
        yield Finding(
            check="small classes",
            split=first_split,
            feature=CLASS,
            value=some([f"{label} with {plural(counts[label], 'image')}" for label in small_classes], _MAX_LISTED),
            limit=f"at least {plural(limits.min_images_per_class, 'image')} a class",
            remedy="add images of these classes, or lower gate.min_images_per_class",
        )
    if not counts or not limits.max_imbalance:
        return
    largest, smallest = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    if counts[largest] > limits.max_imbalance * counts[smallest]:
        largest_text = f"{largest} with {plural(counts[largest], 'image')}"
        yield Finding(
            check="imbalance",
            split=first_split,
            feature=CLASS,
            value=f"{counts[largest] / counts[smallest]:.1f} : 1 ({largest_text}, {smallest} with {counts[smallest]})",
            limit=f"{limits.max_imbalance:g} : 1",
            remedy="add images of the small classes, remove images of the large, or raise gate.max_imbalance",
        )


def _required_classes(dataset: GateDataset) -> set[str]:
    """Returns the classes that need images; empty for a dataset with objects: a class may occur only in objects."""
    images_with_objects = dataset.database.number("SELECT count(*) FROM images WHERE has_objects")
    return set() if images_with_objects else set(dataset.manifest.labels)


_CONTENT = "image content"
_EXAMPLE_IMAGES = 1000  # maximum number of images of a cluster that are compared to find an example


def check_images(dataset: GateDataset, limits: GateLimits, clusters: NearClusters | None) -> Iterator[Finding | Check]:
    """Runs all checks of the images; checks near duplicates only if `clusters` is not None."""
    yield from check_leaks(dataset, limits)
    yield from check_group_leaks(dataset, limits)
    yield from check_near_leaks(dataset, limits, clusters)
    yield from check_resolution(dataset, limits)
    yield from check_blank(dataset, limits)


def _row(check: str, measured: str, limit: str, setting: str, is_checked: bool = True) -> Check:
    """Returns a row of the table of checks; `check_dataset` sets the result of rows with a finding to `exceeded`."""
    result = PASSED if is_checked else NOT_CHECKED
    return Check(check=check, measured=measured, limit=limit, setting=setting, result=result)


def check_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds images with exact copies in another split, which bias the evaluation."""
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
    is_checked = len(dataset.splits) > 1
    return _row(check, measured if is_checked else "one split", f"{getattr(limits, setting):,}", setting, is_checked)


def check_group_leaks(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds groups, and sets of near duplicates that the ingest grouped, with images in several splits."""
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
_KEY_AND_SPLIT = "SELECT key, split FROM images WHERE row = $row"


def check_near_leaks(
    dataset: GateDataset, limits: GateLimits, clusters: NearClusters | None
) -> Iterator[Finding | Check]:
    """Finds images that are near duplicates of an image in an earlier split; ignores clusters of exact copies."""
    if clusters is None:
        is_searched = dataset.manifest.options.get("near_duplicates", "off") != "off"
        measured = f"near_leaks is off{'; see the remarks for near duplicates of the ingest' * is_searched}"
        yield _row("near leakage", measured, "none", "max_near_leaks", is_checked=False)
        return
    images, roots = dataset.database.query(_CONTENTS, splits=list(dataset.splits)), clusters.roots
    rows, splits, contents = (column.to_numpy() for column in images.columns)
    earliest_split, has_variants = np.full(len(roots), len(dataset.splits)), np.zeros(len(roots), bool)  # by root
    np.minimum.at(earliest_split, roots, splits)
    has_variants[roots[contents != contents[roots]]] = True  # otherwise, the cluster consists of exact copies
    leaks = np.flatnonzero((splits > earliest_split[roots]) & has_variants[roots])
    yield _leak_row(dataset, "near leakage", plural(len(leaks), "image"), "max_near_leaks", limits)
    if len(leaks) <= limits.max_near_leaks:
        return
    pair = _closest_pair(splits, _image_signatures(dataset), np.flatnonzero(roots == roots[leaks[0]]))
    examples = [dataset.database.query(_KEY_AND_SPLIT, row=int(rows[index])).to_pylist()[0] for index in pair]
    example = " and ".join(f"{image['key']} in {image['split']}" for image in examples)
    yield Finding(
        check="near leakage",
        split=", ".join(sorted({dataset.splits[index] for index in splits[[pair[0], *leaks]]})),
        feature=_CONTENT,
        value=f"{plural(len(leaks), 'image')} similar to an image of an earlier split (such as {example})",
        limit=f"{limits.max_near_leaks}, up to {limits.near_distance} bits apart",
        remedy="set ingest.near_duplicates to group or drop, correct the split column, or raise gate.max_near_leaks",
    )


def check_resolution(dataset: GateDataset, limits: GateLimits) -> Iterator[Finding | Check]:
    """Finds splits with too many images whose short side is below the limit, in the source or in the dataset."""
    if not limits.min_side_px:
        yield _row("low resolution", "min_side_px is 0", "none", "max_low_resolution_ratio", is_checked=False)
        return
    yield from _split_shares(
        dataset,
        # The smaller one of source and stored image: the ingest may reduce images, and `raw` enlarges small ones.
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
    """Finds splits with too many images of a single colour, which are useless for training."""
    if not (limits.blank_variance and dataset.has_channel_statistics):
        cause = "facts=basic" if limits.blank_variance else "blank_variance is 0"
        yield _row("blank images", cause, "none", "max_blank_ratio", is_checked=False)
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
    """Yields `template` with split and value for each split in which too many images meet `condition`, and a row."""
    worst = (-1.0, "")  # largest share, and its description
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
    """Returns the indices of the most similar pair, an image of the cluster's first split and one of a later split."""
    early = members[splits[members] == splits[members].min()][:_EXAMPLE_IMAGES]
    later = members[splits[members] > splits[members].min()][:_EXAMPLE_IMAGES]
    different_bits = near_duplicates.bit_count(signatures.hashes[early][:, None] ^ signatures.hashes[later][None, :])
    row, column = divmod(int(different_bits.argmin()), len(later))
    return int(early[row]), int(later[column])


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
    """Runs all checks, and returns their result.

    Args:
      dataset: dataset to check.
      anomalies: split -> anomalies, output of ExampleValidator.
      limits: limits of the gate.
      baseline: the previous dataset; None if there is none.
    """
    clusters = near_duplicates.find(_image_signatures(dataset), limits.near_distance) if limits.near_leaks else None
    comparison_results = list(drift_and_skew.skew(dataset, limits))
    if baseline:
        comparison_results += drift_and_skew.drift(dataset, baseline.dataset, baseline.name, limits)
    image_results = list(check_images(dataset, limits, clusters))
    comparisons = tuple(result.comparison for result in comparison_results)
    findings = (
        *check_anomalies(anomalies, limits),
        *check_rejects(dataset, limits),
        *check_classes(dataset, limits),
        *(item for item in image_results if isinstance(item, Finding)),
        *(drift_and_skew.make_finding(result, limits) for result in comparison_results if result.comparison.is_over),
    )
    exceeded = {finding.check for finding in findings}
    rows = (*_count_rows(dataset, anomalies, limits), *(item for item in image_results if isinstance(item, Check)))
    return Outcome(
        checks=(
            *(replace(row, result=EXCEEDED) if row.check in exceeded else row for row in rows),
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
    most = max(map(count_anomalies, anomalies.values()), default=0)
    yield _row("anomaly", plural(most, "feature"), f"{limits.max_anomalies:,}", "max_anomalies")
    counts, share = dataset.manifest.counts, limits.max_reject_ratio
    rejected = f"{counts.rejected:,} of {plural(counts.found, 'image')}"
    yield _row("rejects", rejected, f"{share:.1%}" if share < 1 else "none", "max_reject_ratio", share < 1)
    yield from _class_rows(dataset, limits)


def _class_rows(dataset: GateDataset, limits: GateLimits) -> Iterator[Check]:
    first_split, *later_splits = dataset.splits
    labels, kind = dataset.manifest.labels, dataset.manifest.label_kind
    yield _row("one class", plural(len(labels), "class", "classes"), "at least 2", "", kind == "single")
    classes = {name: set(info.classes) for name, info in dataset.manifest.splits.items()}
    limit, is_checked = ("none", False) if limits.allow_missing_classes else ("0", kind != "none")
    missing = len(_required_classes(dataset).difference(*classes.values()))
    yield _row("missing classes", f"{missing:,} without an image", limit, "allow_missing_classes", is_checked)
    unseen = max((len(classes[split] - classes[first_split]) for split in later_splits), default=0)
    measured = f"{unseen:,} absent from {first_split}"
    yield _row("unseen classes", measured, limit, "allow_missing_classes", is_checked and bool(later_splits))
    limit, is_checked = ("0", kind != "none" and bool(later_splits)) if limits.require_all_classes else ("none", False)
    absent = max((len(classes[first_split] - classes[split]) for split in later_splits), default=0)
    measured = f"{absent:,} of {first_split} absent elsewhere"
    yield _row("absent classes", measured, limit, "require_all_classes", is_checked)
    sizes, smallest, ratio = dataset.manifest.splits[first_split].classes, "no class", "no class"
    if sizes:
        least, most = (choose(sizes, key=lambda name: sizes[name]) for choose in (min, max))
        smallest, ratio = f"{plural(sizes[least], 'image')} ({least})", f"{sizes[most] / sizes[least]:.1f} : 1"
    limit = f"at least {limits.min_images_per_class:,}"
    yield _row("small classes", smallest, limit, "min_images_per_class", bool(sizes))
    limit = f"{limits.max_imbalance:g} : 1" if limits.max_imbalance else "none"
    yield _row("imbalance", ratio, limit, "max_imbalance", bool(sizes and limits.max_imbalance))


def _comparison_rows(comparisons: Sequence[Comparison], limits: GateLimits) -> Iterator[Check]:
    """Yields a row for each kind and measure, about the comparison that is nearest to its limit."""
    for kind in reversed(KINDS):
        for measure in MEASURES:
            setting = f"max_{kind}_{measure}"
            matches = [item for item in comparisons if (item.kind, item.measure) == (kind, measure)]
            limited = [item for item in matches if limits.limit_of(kind, measure, item.feature) < 1]
            if not limited:
                measured = "all limits are 1" if matches else "nothing to compare with"
                yield _row(f"{kind} ({measure})", measured, "none", setting, is_checked=False)
                continue
            worst = max(limited, key=lambda item: item.value - item.limit)
            measured = f"{worst.value:.3f}, {short_name(worst.feature)} in {worst.split}"
            row = _row(f"{kind} ({measure})", measured, f"{worst.limit:.3f}", setting)
            yield replace(row, result=EXCEEDED) if worst.is_over else row


def count_anomalies(anomalies: anomalies_pb2.Anomalies) -> int:
    """Returns the number of anomalous features of a split; an anomaly of the complete dataset counts as a feature."""
    return len(dict(_descriptions(anomalies)))


def check_anomalies(anomalies: Mapping[str, anomalies_pb2.Anomalies], limits: GateLimits) -> Iterator[Finding]:
    """Finds splits with more anomalous features than `max_anomalies`; yields a finding for each feature."""
    for split, split_anomalies in anomalies.items():
        descriptions = dict(_descriptions(split_anomalies))
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
    """Finds a dataset with too many rejected images. They belong to no split."""
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
            remedy="repair or remove the files in rejects.parquet, or raise gate.max_reject_ratio",
        )


def notes(
    dataset: GateDataset, limits: GateLimits, baseline: Baseline | None, clusters: NearClusters | None = None
) -> Iterator[str]:
    """Yields a line with the reason for each check that was not possible."""
    if dataset.manifest.label_kind == "none":
        yield "classes were not checked: the images have no labels"
    if not dataset.has_channel_statistics:
        yield "brightness and channels were not compared: the ingest ran with facts=basic"
        if limits.blank_variance:
            # The perceptual hash is no substitute: it is 0, as for a photograph that darkens to the right.
            yield "blank images were not checked: the ingest ran with facts=basic"
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
        yield f"drift of brightness and channels was not measured: {baseline.name} was written with facts=basic"


def _descriptions(anomalies: anomalies_pb2.Anomalies) -> Iterator[tuple[str, str]]:
    for name, info in anomalies.anomaly_info.items():
        yield name, _sentence(info)
    if anomalies.HasField("dataset_anomaly_info"):
        yield "dataset", _sentence(anomalies.dataset_anomaly_info)


def _sentence(info: anomalies_pb2.AnomalyInfo) -> str:
    return (info.description or info.short_description).strip().removesuffix(".")
