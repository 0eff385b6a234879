"""Near duplicates: images that look alike. Pure arithmetic on facts; no image is compared with every other.

Two images look alike when

- their perceptual hashes differ in at most `distance` of 64 bits,
- their aspect ratios differ by 5 % at most (from 11 % on they never match), and
- the mean of each channel differs by 16 levels at most (from 32 on they never match).

The hash knows nothing of shape and colour, and agrees by chance on images with the same layout; the two other facts
cost nothing and part most of these. Both are compared in steps, which is why their limits are ranges. A hash with
fewer than 8 bits set, or fewer than 8 not set, comes from an image that is all but flat, and says too little: such
images look like no other. Their copies are found by their bytes.

How: two hashes that differ in d bits, cut into m bands, agree in m - d bands at least. So for every choice of m - d
bands the hashes are sorted by these, and only runs of equal ones are compared. That finds every pair, as long as no
run is longer than `_CROWD`. The hashes of longer runs are cut into more bands, as long as that takes no more than 200
sorts. Those that are still crowded then, images by the thousand that are all but alike, are compared with their nearest
in sorted order alone, which bounds the work; most pairs missed there are joined through a third image.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from beam_jobs import sets

_BITS = 64
_STRUCTURE_BITS = 8
_ASPECT_STEP = math.log(1.05)
_COLOUR_STEP = 16

_RUN = 8  # hashes with equal bands to aim for; fewer cost more tables, more cost more comparisons
_CROWD = 128
_WINDOW = 16
_TABLES = 200
_BATCH = 1 << 20  # pairs joined at a time, 16 bytes each
_PIECE = 20_000

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What images look like, in the same order.

    Attributes:
      hashes: uint64[images], perceptual hashes.
      traits: int64[images, 4], steps of aspect ratio and of the mean of each channel; a step apart is alike.
    """

    hashes: np.ndarray
    traits: np.ndarray

    def alike(self, one: np.ndarray, other: np.ndarray, distance: int) -> np.ndarray:
        """Returns whether the images at some places look like those at others, bool of the shape of the places."""
        close = bit_count(self.hashes[one] ^ self.hashes[other]) <= distance
        return close & (np.abs(self.traits[one] - self.traits[other]) <= 1).all(axis=-1)

    @property
    def structured(self) -> np.ndarray:
        """Whether the hash of each image says enough, bool[images]."""
        count = bit_count(self.hashes)
        return (count >= _STRUCTURE_BITS) & (count <= _BITS - _STRUCTURE_BITS)


def looks(dhash: np.ndarray, height: np.ndarray, width: np.ndarray, mean_rgb: np.ndarray) -> Looks:
    """Returns what images look like.

    Args:
      dhash: int64[images].
      height: rows of each stored image, in pixels.
      width: columns of it.
      mean_rgb: float[images, 3], 0-255; all zeros when nobody measured them.
    """
    aspect = np.floor(np.log(width / height) / _ASPECT_STEP)
    traits = np.column_stack([aspect, mean_rgb // _COLOUR_STEP]).astype(np.int64)
    return Looks(hashes=dhash.astype(np.int64).view(np.uint64), traits=traits)


def find(images: Looks, distance: int) -> np.ndarray:
    """Returns the near cluster of each image, named by its first member: int64[images]; lone images name themselves.

    A cluster is a connected component: images are in it that look like one another, or are linked by a chain of
    images that do. So no two images that look alike lie in different clusters, which is what keeps splits apart; the
    ends of a chain, such as the frames of a video, may differ in more bits than `distance`.

    Args:
      images: what they look like.
      distance: bits in which the hashes of images that look alike may differ, 0-8.
    """
    roots = np.arange(len(images.hashes))
    able = np.flatnonzero(images.structured)
    order = able[np.lexsort((*images.traits[able].T, images.hashes[able]))]
    firsts = _first_of_runs(np.column_stack([images.hashes[order].view(np.int64), images.traits[order]]))
    nodes = order[firsts]  # images of equal looks are one node; the sort is stable, so the first image stands for it
    roots[order] = np.repeat(nodes, np.diff(firsts, append=len(order)))
    return sets.join(roots, nodes, nodes[_linked(images, nodes, distance)])


def surplus(images: Looks, roots: np.ndarray, distance: int, written: np.ndarray, fresh: np.ndarray) -> np.ndarray:
    """Returns which images to leave out so that what is left does not look alike, bool[images].

    Within a cluster the images are taken in order, and each is left out that looks like one that stays. So an image is
    never left out for a chain alone: one that stays looks like it. Clusters of more than 20,000 images are dealt with
    in pieces of that many, in order of their hashes, which bounds the work; some images that look alike stay there.

    Args:
      images: what they look like, in the order in which they should stay; written ones come first.
      roots: their near clusters, of `find`.
      distance: bits in which the hashes of images that look alike may differ.
      written: images that stay whatever they look like.
      fresh: images that may be left out.
    """
    left_out = np.zeros(len(roots), bool)
    order = np.argsort(roots, kind="stable")
    starts = _first_of_runs(roots[order])
    sizes = np.diff(starts, append=len(order))
    first, second = order[starts[sizes == 2]], order[starts[sizes == 2] + 1]  # most clusters: two that look alike
    left_out[second] = fresh[second] & (written | fresh)[first]
    for start, size in zip(starts[sizes > 2], sizes[sizes > 2], strict=True):
        members = order[start : start + size]
        if size > _PIECE:
            members = members[np.argsort(images.hashes[members], kind="stable")]
        for piece in range(0, size, _PIECE):
            some = np.sort(members[piece : piece + _PIECE])
            left_out[_left_out(images, some[written[some]], some[fresh[some]], distance)] = True
    return left_out


def bit_count(values: np.ndarray) -> np.ndarray:
    """Returns the number of bits set in each uint64: sums of 2, 4 and 8 bits side by side, then all bytes at once."""
    values = values - ((values >> np.uint64(1)) & np.uint64(0x5555555555555555))
    values = (values & np.uint64(0x3333333333333333)) + ((values >> np.uint64(2)) & np.uint64(0x3333333333333333))
    values = (values + (values >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (values * np.uint64(0x0101010101010101)) >> np.uint64(56)


def _left_out(images: Looks, written: np.ndarray, fresh: np.ndarray, distance: int) -> np.ndarray:
    pending = fresh
    for image in written:
        pending = pending[~images.alike(image, pending, distance)]
    stay = []
    while len(pending):
        image, pending = pending[0], pending[1:]
        stay.append(image)
        pending = pending[~images.alike(image, pending, distance)]
    return np.setdiff1d(fresh, stay, assume_unique=True)


def _linked(images: Looks, nodes: np.ndarray, distance: int) -> np.ndarray:
    """Returns the cluster of each node, named by its first node."""
    links = np.arange(len(nodes))
    for order, follow in _tables(images.hashes[nodes], links, distance):
        for one, other in _batches(_alike(images, nodes, _within(order, follow), distance)):
            links[:] = sets.join(links, one, other)  # in place, so that the tables to come leave out what is linked
    return links


def _alike(images: Looks, nodes: np.ndarray, pairs: Iterable[Pair], distance: int) -> Iterator[Pair]:
    hashes = images.hashes[nodes]
    for one, other in pairs:
        close = bit_count(hashes[one] ^ hashes[other]) <= distance
        one_left, other_left = one[close], other[close]
        alike = images.alike(nodes[one_left], nodes[other_left], distance)
        yield one_left[alike], other_left[alike]


def _batches(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yields the same pairs, many at a time."""
    waiting: list[Pair] = []
    count = 0
    for one, other in pairs:
        waiting.append((one, other))
        count += len(one)
        if count >= _BATCH:
            yield _joined(waiting)
            waiting, count = [], 0
    if count:
        yield _joined(waiting)


def _joined(pairs: list[Pair]) -> Pair:
    return np.concatenate([one for one, _ in pairs]), np.concatenate([other for _, other in pairs])


def _tables(hashes: np.ndarray, links: np.ndarray, distance: int) -> Iterator[Pair]:
    """Yields orders of the hashes, and for each place how many of the hashes that follow are to be compared with it.

    That covers all pairs that differ in `distance` bits at most, but for those whose `links` are equal already.
    """
    left = np.arange(len(hashes))
    passes = _passes(len(hashes), distance)
    for bands in passes:
        crowded = np.zeros(len(hashes), bool)
        for mask in _masks(bands, bands - distance):
            keys = hashes[left] & mask
            # Stable: within a run the hashes stay sorted, so those nearest by are the most alike.
            order = np.argsort(keys, kind="stable")
            starts = _first_of_runs(keys[order])
            order = left[order]
            sizes = np.diff(starts, append=len(order))
            follow = np.repeat(starts + sizes, sizes) - np.arange(len(order)) - 1
            settled = _settled(links[order], starts, sizes)
            follow[np.repeat(settled, sizes)] = 0
            crowd = np.repeat((sizes > _CROWD) & ~settled, sizes)
            if bands < passes[-1]:
                crowded[order[crowd]] = True
            follow[crowd] = np.minimum(follow[crowd], _WINDOW if bands == passes[-1] else 0)
            yield order, follow
        left = np.flatnonzero(crowded)
        if not len(left):
            return


def _settled(links: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns which runs hold one cluster and nothing else."""
    firsts = np.repeat(links[starts], sizes)
    return ~np.logical_or.reduceat(links != firsts, starts) if len(starts) else np.zeros(0, bool)


def _passes(count: int, distance: int) -> list[int]:
    """Returns into how many bands to cut, pass by pass; a pass deals with what was crowded in the one before."""
    if not distance:
        return [1]
    bands = distance + 1
    while count > _RUN * 2 ** (_BITS * (bands - distance) / bands) and math.comb(bands + 1, distance) <= _TABLES:
        bands += 1
    return [more for more in range(bands, bands + 3) if more == bands or math.comb(more, distance) <= _TABLES]


def _masks(bands: int, equal: int) -> Iterator[np.uint64]:
    """Yields a mask for every choice of `equal` of `bands` bands."""
    parts = [0] * bands
    for bit in range(_BITS):
        # 29 is odd, so this reorders the bits: neighbours, which go together in photographs, end in different bands.
        parts[bit * 29 % _BITS * bands // _BITS] |= 1 << bit
    for chosen in itertools.combinations(parts, equal):
        yield np.uint64(sum(chosen))


def _first_of_runs(values: np.ndarray) -> np.ndarray:
    """Returns where runs of equal values (rows of a matrix) start."""
    changes = values[1:] != values[:-1]
    return np.flatnonzero(np.concatenate([[True], changes.any(axis=1) if values.ndim > 1 else changes])[: len(values)])


def _within(order: np.ndarray, follow: np.ndarray) -> Iterator[Pair]:
    """Yields each place with each of the `follow` that come after it."""
    places = np.flatnonzero(follow)
    for step in itertools.count(1):
        places = places[follow[places] >= step]
        if not len(places):
            return
        yield order[places], order[places + step]
