"""Checks of the images: leaks between splits, low resolution, blank images."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.common.strings import plural
from beam_jobs.dataset import leaks
from beam_jobs.planning import near_duplicates
from beam_jobs.planning.near_duplicates import NearClusters
from components.dataset_gate.dataset import GateDataset
from components.dataset_gate.features import triples
from components.dataset_gate.findings import Finding, some
from components.dataset_gate.limits import GateLimits

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
    kinds = leaks.kinds_of(dataset.manifest.options.get("near_duplicates", "off"))[1:]
    crossing = leaks.find(dataset.images, kinds)
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
    yield from _shares(
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
    blank = triples(dataset.images["var_rgb"]).max(axis=1, initial=0) < limits.blank_variance
    yield from _shares(
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


def _shares(dataset: GateDataset, bad: np.ndarray, pattern: Finding, limit: float) -> Iterator[Finding]:
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
    variance = triples(dataset.images["var_rgb"]) if dataset.has_moments else None
    return near_duplicates.looks(hashes, height, width, triples(dataset.images["mean_rgb"]), variance)


def _example(dataset: GateDataset, looks: near_duplicates.Looks, members: np.ndarray) -> tuple[int, int]:
    """Returns the two images of different splits that are most alike, of the first of a cluster."""
    first = members[dataset.split_of[members] == dataset.split_of[members].min()][:_SHOWN]
    later = members[dataset.split_of[members] > dataset.split_of[members].min()][:_SHOWN]
    bits = near_duplicates.bit_count(looks.hashes[first][:, None] ^ looks.hashes[later][None, :])
    place = int(bits.argmin())
    return int(first[place // len(later)]), int(later[place % len(later)])
