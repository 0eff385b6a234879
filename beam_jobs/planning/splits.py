"""Joins related images into units, and assigns each unit to a split. Pure functions.

The split of a unit is a function of a hash: of the group, or without one of the content of the image, or of the first
image of its near cluster where near clusters stay together. The hash is of the content and not of the key, so a copy
that is added later joins the split of the original.

A repeated ingest with more images therefore moves no other image, with three exceptions, none of which `--append` has.
An image that links two units moves one of them. An image that resembles others and precedes them by key moves those.
Stratified splits depend on the number of images per class.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates

NO_SPLIT = -1  # split index of images without an assigned split


@dataclass(frozen=True, kw_only=True)
class Units:
    """Sets of images that must be in the same split.

    Attributes:
      unit: index of the unit of each image, int64[images].
      names: name of each unit; its hash decides the split.
    """

    unit: np.ndarray
    names: pa.Array


def make_units(groups: pa.Array, contents: np.ndarray, names: pa.Array, roots: np.ndarray) -> Units:
    """Joins images of the same group, of equal content, and of the same near cluster.

    A unit is named after its smallest group, so that it keeps its split when images are added; without a group, after
    its first content.

    Args:
      groups: group of each image; empty for none.
      contents: index of the content of each image, int64[images].
      names: name of each content.
      roots: index of the first content of the near cluster of each content, int64[contents].
    """
    encoded = groups.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    grouped = np.flatnonzero(pc.not_equal(groups, "").to_numpy(zero_copy_only=False))
    # Groups precede contents, so the smallest member of a set is a group if the set has one.
    links = rank[encoded.indices.to_numpy()[grouped]], len(order) + contents[grouped]
    members = np.concatenate([np.arange(len(order)), len(order) + roots])
    members = near_duplicates.join_sets(members, *links)[len(order) + contents]
    firsts, unit = np.unique(members, return_inverse=True)
    group_names = pc.binary_join_element_wise("group:", encoded.dictionary.take(pa.array(order)), "")
    return Units(unit=unit, names=pa.concat_arrays([group_names, names]).take(pa.array(firsts)))


def assign(
    units: Units, requested: np.ndarray, fixed: np.ndarray, classes: np.ndarray | None, options: IngestOptions
) -> np.ndarray:
    """Returns the split index of each image, int64[images], in the order of the options.

    An image with a requested split gets that split. Its unit gets the split in which a member already lies, otherwise
    the first split that is requested for a member, otherwise a split by hash.

    With stratification, each class is divided separately. Where every unit is a single image, the units are ordered by
    hash and divided exactly by the shares. Otherwise, where that division is not exact, the smallest split gets the
    units whose images come closest to its share, then the next smallest, and the largest split gets the remaining
    units: with two splits, no other division of the units is closer. Each split gets a unit of every class that has
    enough units. A unit of several classes belongs to its most frequent class, and its other images count for the
    classes that are divided later: classes whose units contain the most images of other classes are divided first.
    Stratified splits, unlike splits by hash, move images when a class grows.

    Args:
      units: units of the images.
      requested: split index that the source requests or the image already has, int64[images]; `NO_SPLIT` for none.
      fixed: whether an image already lies in a split, bool[images].
      classes: class of each image for stratification, int64[images]; None for splits by hash only.
      options: shares and seed.
    """
    # The lowest code of its images decides the split of a unit: 0 to count - 1 is the split in which an image already
    # lies, count to 2 count - 1 a requested split, and 2 count no request.
    count, no_request = len(options.splits), 2 * len(options.splits)
    image_codes = np.where(requested == NO_SPLIT, no_request, np.where(fixed, requested, requested + count))
    unit_codes = np.full(len(units.names), no_request)
    np.minimum.at(unit_codes, units.unit, image_codes)
    assigned = unit_codes % count
    free_units = np.flatnonzero(unit_codes == no_request)
    names = units.names.take(pa.array(free_units))
    if classes is None:
        assigned[free_units] = assign_splits(options.seed, shards.texts(names), options.shares)
    else:
        hashes = shards.hashes64(shards.SPLIT, options.seed, shards.texts(names))
        is_free = unit_codes[units.unit] == no_request
        free_unit = np.searchsorted(free_units, units.unit[is_free])
        assigned[free_units] = _stratify(free_unit, classes[is_free], hashes, options.shares)
    return np.where(requested == NO_SPLIT, assigned[units.unit], requested)


def _stratify(units: np.ndarray, classes: np.ndarray, hashes: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Returns the split of each unit, given unit and class of each image and the hash of each unit."""
    unit_classes = _most_frequent_classes(units, classes)
    main = unit_classes[units]
    is_main = classes == main
    sizes = np.bincount(units[is_main], minlength=len(hashes))
    order = np.lexsort((hashes, unit_classes))
    starts = np.flatnonzero(np.diff(unit_classes[order], prepend=-1))
    members = dict(zip(unit_classes[order[starts]].tolist(), np.split(order, starts[1:]), strict=len(order) > 0))
    minorities = {label: np.flatnonzero(~is_main & (main == label)) for label in np.unique(main[~is_main]).tolist()}
    assigned = np.zeros(len(hashes), np.int64)
    counts = np.zeros((len(shares), classes.max(initial=-1) + 1), np.int64)
    for label in sorted(members, key=lambda label: (-len(minorities.get(label, ())), label)):
        class_sizes = sizes[members[label]]
        targets = _target_counts(int(class_sizes.sum()), counts[:, label], list(shares.values()))
        assigned[members[label]] = _divide(class_sizes, targets)
        if label in minorities:
            np.add.at(counts, (assigned[units[minorities[label]]], classes[minorities[label]]), 1)
    return assigned


def _target_counts(total: int, counts: np.ndarray, shares: list[float]) -> np.ndarray:
    """Returns how many of `total` images each split should get, given how many of the class it already has."""
    missing = np.maximum(_apportion(total + int(counts.sum()), shares) - counts, 0)
    return missing if missing.sum() == total else _apportion(total, list(missing / missing.sum()))


def _most_frequent_classes(units: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the most frequent class of each unit; of equally frequent classes the smallest."""
    base = classes.max(initial=0) + 1
    pairs, counts = np.unique(units * base + classes, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // base))
    return pairs[order[np.unique(pairs[order] // base, return_index=True)[1]]] % base


def _divide(sizes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the split of each unit, so that the numbers of images per split are close to the targets."""
    cut = _cut(sizes, targets)
    if sizes.max() == 1 or not _error(cut, sizes, targets):
        return cut
    filled = _fill(sizes, targets)
    return filled if _error(filled, sizes, targets) < _error(cut, sizes, targets) else cut


def _error(assigned: np.ndarray, sizes: np.ndarray, targets: np.ndarray) -> int:
    return int(np.abs(np.bincount(assigned, sizes, len(targets)) - targets).sum())


def _cut(sizes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: consecutive runs whose numbers of images are closest to the targets."""
    totals = np.concatenate([[0], np.cumsum(sizes)])
    cuts = [0]
    for target in np.cumsum(targets)[:-1]:
        cut = int(np.abs(totals - target).argmin())
        if len(sizes) >= len(targets):
            cut = min(max(cut, cuts[-1] + 1), len(sizes) - len(targets) + len(cuts))
        cuts.append(cut)
    return np.searchsorted(cuts[1:], np.arange(len(sizes)), side="right")


def _fill(sizes: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: the smallest split gets the closest sum, the largest split the remainder."""
    *smaller, largest = np.argsort(targets, kind="stable").tolist()
    assigned = np.full(len(sizes), largest)
    enough = len(sizes) >= len(targets)
    for number, split in enumerate(smaller):
        free_units = np.flatnonzero(assigned == largest)
        max_units = len(free_units) - (len(smaller) - number) if enough else len(free_units)
        counts = _closest_sum(sizes[free_units], int(targets[split]), max_units, at_least_one=enough)
        for size, count in counts.items():
            assigned[free_units[sizes[free_units] == size][-count:]] = split
    return assigned


def _closest_sum(sizes: np.ndarray, target: int, max_units: int, at_least_one: bool) -> dict[int, int]:
    """Returns size -> number of units, so that the sum of sizes is closest to the target; of two sums the smaller.

    Sums are built from the fewest units, by dynamic programming over multiples of the sizes (bounded subset sum).

    Args:
      sizes: size of each unit, in images.
      target: sum to approximate, in images.
      max_units: maximum number of units to select.
      at_least_one: whether to select at least one unit.
    """
    target = max(target, int(at_least_one))
    values, counts = np.unique(sizes, return_counts=True)
    fewest = np.full(min(int(sizes.sum()), target + int(values[-1])) + 1, len(sizes) + 1)
    fewest[0] = 0
    parts: list[tuple[int, int, np.ndarray]] = []
    for value, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        for part in _binary_parts(count):
            step = value * part
            if fewest[min(target, len(fewest) - 1)] <= max_units or step >= len(fewest):
                break
            better = fewest[:-step] + part < fewest[step:]
            fewest[step:][better] = fewest[:-step][better] + part
            parts.append((value, part, np.packbits(better)))
    sums = np.flatnonzero(fewest <= max_units)[at_least_one:]
    remaining = int(sums[np.abs(sums - target).argmin()])
    selection: dict[int, int] = {}
    for value, part, better in reversed(parts):
        smaller = remaining - value * part
        if smaller >= 0 and np.unpackbits(better[smaller // 8])[smaller % 8]:
            remaining, selection[value] = smaller, selection.get(value, 0) + part
    return selection


def _binary_parts(count: int) -> Iterator[int]:
    """Yields 1, 2, 4, ... and a remainder; every number up to the count is a sum of some of them."""
    part = 1
    while count:
        yield min(part, count)
        count -= min(part, count)
        part *= 2


def _apportion(total: int, shares: list[float]) -> np.ndarray:
    """Returns integers that add up to the total, by largest remainder; of equal remainders the first is rounded up."""
    quotas = np.array(shares) * total
    counts = np.floor(quotas).astype(np.int64)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


def assign_splits(seed: int, groups: Iterable[str], shares: Mapping[str, float]) -> np.ndarray:
    """Returns the index in `shares` of the split of each group, int64[groups]; it depends on name, seed and shares.

    Args:
      seed: salt of the hash; another seed gives another split.
      groups: names of groups; the images of a group stay in one split.
      shares: split -> share, summing to 1, in a fixed order.
    """
    points = shards.hashes64(shards.SPLIT, seed, groups) / 2.0**64
    edges = list(itertools.accumulate(shares.values()))
    edges[-1] = math.inf  # rounding may leave the sum of the shares below 1
    return np.searchsorted(edges, points, side="right")
