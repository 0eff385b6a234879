"""Which images stay together, and which split each set of them goes to. Pure.

A split is a function of the hash of what must stay together: the group, or else the content of the image, or of the
first image of its near cluster when those stay together. The content stands for an image, not its key: a copy
added later then joins the split of the original instead of pulling it elsewhere.

So images that are added move no other one, with three exceptions, all of which `--append` is free of. An image that
ties two sets together moves one of them, for they were apart only for want of it. One that looks like others and
comes before them by key moves those. And stratified splits depend on how many images a class has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs.dataset import shards
from beam_jobs.options import IngestOptions
from beam_jobs.planning import near_duplicates

FREE = -1  # in place of a split: none is set


@dataclass(frozen=True, kw_only=True)
class Units:
    """Sets of images that must not part.

    Attributes:
      of: the unit of each image.
      names: of each unit; the hash of it decides.
    """

    of: np.ndarray
    names: pa.Array


def together(groups: pa.Array, contents: np.ndarray, names: pa.Array, roots: np.ndarray) -> Units:
    """Joins images of one group, of equal content, and of one near cluster.

    A joined set is named after its smallest group, so that it keeps its split when members are added; without a group,
    after its first content.

    Args:
      groups: of each image; empty for none.
      contents: of each image.
      names: of each content.
      roots: first content of what each content must stay with.
    """
    encoded = groups.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    grouped = np.flatnonzero(pc.not_equal(groups, "").to_numpy(zero_copy_only=False))
    # Groups come before contents, so the smallest member of a set is a group whenever there is one.
    links = rank[encoded.indices.to_numpy()[grouped]], len(order) + contents[grouped]
    members = np.concatenate([np.arange(len(order)), len(order) + roots])
    members = near_duplicates.join_sets(members, *links)[len(order) + contents]
    units, of = np.unique(members, return_inverse=True)
    group_names = pc.binary_join_element_wise("group:", encoded.dictionary.take(pa.array(order)), "")
    return Units(of=of, names=pa.concat_arrays([group_names, names]).take(pa.array(units)))


def assign(
    units: Units, asked: np.ndarray, settled: np.ndarray, classes: np.ndarray | None, options: IngestOptions
) -> np.ndarray:
    """Returns the split of each image, as its place in the options.

    An image goes where the source asks it to be. Its unit goes where a member already lies, or else where the source
    asks a member to be (the first such split), or else where the hash says.

    Stratified, each class is divided on its own. Where every image is a unit of its own, these are
    put in order of their hash and cut by the shares, to the image. Whole units may not allow that; then the smallest
    split gets the units whose images come closest to its share, then the next, and the largest gets the rest: with two
    splits, no other division of the units is closer. Each split gets a unit of every class that has enough of them. A
    unit of several classes belongs to the most frequent one, and its other images count for the classes that are
    divided later: classes whose units hold the most images of others come first. Divisions, unlike hashes, move images
    when a class grows.

    Args:
      units: what must stay together.
      asked: split that is asked for, or that holds the image already; `FREE` for none.
      settled: whether an image already lies in a split.
      classes: class of each image, to stratify by; None for splits by hash alone.
      options: shares and seed.
    """
    count, free = len(options.splits), 2 * len(options.splits)
    claims = np.full(len(units.names), free)
    np.minimum.at(claims, units.of, np.where(asked == FREE, free, np.where(settled, asked, asked + count)))
    places = claims % count
    still = np.flatnonzero(claims == free)
    names = units.names.take(pa.array(still))
    if classes is None:
        places[still] = shards.assign_splits(options.seed, shards.texts(names), options.shares)
    else:
        hashes = shards.hashes64(shards.SPLIT, options.seed, shards.texts(names))
        member = claims[units.of] == free
        position = np.searchsorted(still, units.of[member])
        places[still] = _stratified(position, classes[member], hashes, options.shares)
    return np.where(asked == FREE, places[units.of], asked)


def _stratified(units: np.ndarray, classes: np.ndarray, hashes: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Returns the split of each unit, given unit and class of each image and the hash of each unit."""
    kinds = _most_frequent(units, classes)
    own = classes == kinds[units]
    sizes = np.bincount(units[own], minlength=len(hashes))
    order = np.lexsort((hashes, kinds))
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    members = dict(zip(kinds[order[starts]].tolist(), np.split(order, starts[1:]), strict=len(order) > 0))
    others = {kind: np.flatnonzero(~own & (kinds[units] == kind)) for kind in np.unique(kinds[units[~own]]).tolist()}
    places = np.zeros(len(hashes), np.int64)
    placed = np.zeros((len(shares), classes.max(initial=-1) + 1), np.int64)
    for kind in sorted(members, key=lambda kind: (-len(others.get(kind, ())), kind)):
        few = sizes[members[kind]]
        places[members[kind]] = _divide(few, _wanted(int(few.sum()), placed[:, kind], list(shares.values())))
        if kind in others:
            np.add.at(placed, (places[units[others[kind]]], classes[others[kind]]), 1)
    return places


def _wanted(total: int, placed: np.ndarray, shares: list[float]) -> np.ndarray:
    """Returns how many of `total` images each split should get, given how many of the class it has already."""
    missing = np.maximum(_apportion(total + int(placed.sum()), shares) - placed, 0)
    return missing if missing.sum() == total else _apportion(total, list(missing / missing.sum()))


def _most_frequent(units: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the class of each unit; the smaller of two that are equally frequent."""
    base = classes.max(initial=0) + 1
    pairs, counts = np.unique(units * base + classes, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // base))
    return pairs[order[np.unique(pairs[order] // base, return_index=True)[1]]] % base


def _divide(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the split of each unit, so that the images of the splits come close to those that are wanted."""
    cut = _cut(sizes, wanted)
    if sizes.max() == 1 or not _error(cut, sizes, wanted):
        return cut
    filled = _fill(sizes, wanted)
    return filled if _error(filled, sizes, wanted) < _error(cut, sizes, wanted) else cut


def _error(places: np.ndarray, sizes: np.ndarray, wanted: np.ndarray) -> int:
    return int(np.abs(np.bincount(places, sizes, len(wanted)) - wanted).sum())


def _cut(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: consecutive runs whose images come closest to those that are wanted."""
    totals = np.concatenate([[0], np.cumsum(sizes)])
    cuts = [0]
    for target in np.cumsum(wanted)[:-1]:
        cut = int(np.abs(totals - target).argmin())
        if len(sizes) >= len(wanted):
            cut = min(max(cut, cuts[-1] + 1), len(sizes) - len(wanted) + len(cuts))
        cuts.append(cut)
    return np.searchsorted(cuts[1:], np.arange(len(sizes)), side="right")


def _fill(sizes: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Returns the split of each unit: the smallest split gets what comes closest, the largest the rest."""
    *smaller, largest = np.argsort(wanted, kind="stable").tolist()
    places = np.full(len(sizes), largest)
    for number, split in enumerate(smaller):
        left = np.flatnonzero(places == largest)
        enough = len(sizes) >= len(wanted)
        most = len(left) - (len(smaller) - number) if enough else len(left)
        for size, count in _closest(sizes[left], int(wanted[split]), most, at_least_one=enough).items():
            places[left[sizes[left] == size][-count:]] = split
    return places


def _closest(sizes: np.ndarray, target: int, most: int, at_least_one: bool) -> dict[int, int]:
    """Returns size -> how many units of it to take, so that the sum is closest to the target; of two the smaller.

    Sums are built from the fewest units, by dynamic programming over multiples of the sizes (bounded subset sum).

    Args:
      sizes: of the units there are.
      target: the sum.
      most: units that may be taken.
      at_least_one: whether none is too few.
    """
    target = max(target, int(at_least_one))
    values, counts = np.unique(sizes, return_counts=True)
    fewest = np.full(min(int(sizes.sum()), target + int(values[-1])) + 1, len(sizes) + 1)
    fewest[0] = 0
    parts: list[tuple[int, int, np.ndarray]] = []
    for value, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        for part in _parts(count):
            step = value * part
            if fewest[min(target, len(fewest) - 1)] <= most or step >= len(fewest):
                break
            better = fewest[:-step] + part < fewest[step:]
            fewest[step:][better] = fewest[:-step][better] + part
            parts.append((value, part, np.packbits(better)))
    sums = np.flatnonzero(fewest <= most)[at_least_one:]
    rest = int(sums[np.abs(sums - target).argmin()])
    taken: dict[int, int] = {}
    for value, part, better in reversed(parts):
        place = rest - value * part
        if place >= 0 and np.unpackbits(better[place // 8])[place % 8]:
            rest, taken[value] = place, taken.get(value, 0) + part
    return taken


def _parts(count: int) -> Iterator[int]:
    """Yields 1, 2, 4, ... and a rest, of which every number up to the count is a sum."""
    part = 1
    while count:
        yield min(part, count)
        count -= min(part, count)
        part *= 2


def _apportion(total: int, shares: list[float]) -> np.ndarray:
    """Returns whole numbers that add up to the total, by largest remainder; of equal ones the first gets more."""
    quotas = np.array(shares) * total
    counts = np.floor(quotas).astype(np.int64)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts
