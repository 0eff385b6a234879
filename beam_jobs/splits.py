"""Which images stay together, and which split each set of them goes to. Pure.

A split is a function of the hash of what must stay together: the group, or else the content of the image, or of the
first image of its near cluster when those stay together. The content stands for an image, not its key: a copy
added later then joins the split of the original instead of pulling it elsewhere.

So images that are added move no other one, with three exceptions, all of which `--append` is free of. An image that
ties two sets together moves one of them, for they were apart only for want of it. One that looks like others and
comes before them by key moves those. And stratified splits depend on how many images a class has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from beam_jobs import sets, shards
from beam_jobs.options import IngestOptions

FREE = -1  # of a split: nobody has said which one


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
    members = sets.join(members, *links)[len(order) + contents]
    units, of = np.unique(members, return_inverse=True)
    group_names = pc.binary_join_element_wise("group:", encoded.dictionary.take(pa.array(order)), "")
    return Units(of=of, names=pa.concat_arrays([group_names, names]).take(pa.array(units)))


def assign(
    units: Units, asked: np.ndarray, settled: np.ndarray, classes: np.ndarray | None, options: IngestOptions
) -> np.ndarray:
    """Returns the split of each image, as its place in the options.

    An image goes where the source asks it to be. Its unit goes where a member already lies, or else where the source
    asks a member to be (the first such split), or else where the hash says.

    Stratified, the units of each class are put in order of their hash and cut by the shares, so that the images of the
    class come as close to the shares as whole units allow; each split gets a unit of every class that has enough of
    them. A unit of several classes belongs to the most frequent one. Cuts, unlike hashes, move images when a class
    grows.

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
        places[still] = shards.splits_of(options.seed, shards.texts(names), options.shares)
    else:
        hashes = shards.hashes64(shards.SPLIT, options.seed, shards.texts(names))
        member = claims[units.of] == free
        position = np.searchsorted(still, units.of[member])
        places[still] = _stratified(position, classes[member], hashes, options.shares)
    return np.where(asked == FREE, places[units.of], asked)


def _stratified(units: np.ndarray, classes: np.ndarray, hashes: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Returns the split of each unit, given unit and class of each image and the hash of each unit."""
    sizes = np.bincount(units, minlength=len(hashes))
    kinds = _most_frequent(units, classes)
    order = np.lexsort((hashes, kinds))
    starts = np.flatnonzero(np.diff(kinds[order], prepend=-1))
    places = np.zeros(len(hashes), np.int64)
    for members in np.split(order, starts[1:]):
        places[members] = _cut(sizes[members], list(shares.values()))
    return places


def _most_frequent(units: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Returns the class of each unit; the smaller of two that are equally frequent."""
    base = classes.max(initial=0) + 1
    pairs, counts = np.unique(units * base + classes, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // base))
    return pairs[order[np.unique(pairs[order] // base, return_index=True)[1]]] % base


def _cut(sizes: np.ndarray, shares: list[float]) -> np.ndarray:
    """Returns the split of each unit: consecutive runs whose images come closest to the shares."""
    totals = np.concatenate([[0], np.cumsum(sizes)])
    cuts = [0]
    for target in np.cumsum(_apportion(int(totals[-1]), shares))[:-1]:
        cut = int(np.abs(totals - target).argmin())
        if len(sizes) >= len(shares):
            cut = min(max(cut, cuts[-1] + 1), len(sizes) - len(shares) + len(cuts))
        cuts.append(cut)
    return np.searchsorted(cuts[1:], np.arange(len(sizes)), side="right")


def _apportion(total: int, shares: list[float]) -> np.ndarray:
    """Returns whole numbers that add up to the total, by largest remainder; of equal ones the first gets more."""
    quotas = np.array(shares) * total
    counts = np.floor(quotas).astype(np.int64)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts
