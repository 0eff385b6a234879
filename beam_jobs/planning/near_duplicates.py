"""Near duplicates: images that look alike. Pure arithmetic on facts; few images are compared with many others.

Two images look alike when

- their perceptual hashes differ in at most `distance` of 64 bits,
- their aspect ratios differ by 5 % at most (from 11 % on they never match), and
- the mean of each channel differs by 16 levels at most (from 32 on they never match).

A hash with fewer than 24 bits set, or fewer than 24 not set, is weak: it comes from an image of large flat areas, such
as a product on white, and many such images share it. So when one of two hashes is weak, also

- the hashes differ in at most 3 bits, however large `distance` is,
- the mean of each channel differs by 1 level at most (from 2 on they never match), and
- the standard deviation of each channel differs by 8 levels at most (from 16 on they never match).

When fewer than 16 bits are set, or not set, these limits are 2 bits, half a level and 2 levels.

All of these are compared in steps, which is why their limits are ranges: at twice the limit images never match.
`python -m benchmarks.near` measures what the rules find. Without moments, weak hashes look like no other.

How: two hashes that differ in d bits, cut into m bands, agree in m - d bands at least. So for every choice of m - d
bands the hashes are sorted by these, and only runs of equal ones are compared. The hashes of runs that are longer than
`_CROWD` are cut into more bands, as long as that takes no more than 200 sorts. Pairs with a weak hash are searched in
the same way, by cells of their moments, and large crowds of these by bands. In runs that are still crowded, images by
the thousand that are all but alike, neighbours in sorted order are compared first; after that each image outside of
the largest cluster of the run is compared with the whole run.

Guarantee: the search finds every pair that looks alike, but for pairs of two images that are both in `unsearched`:
images with weak hashes and without moments, and those of crowds for which `_COMPARISONS` did not suffice.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np


def join_sets(roots: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Joins sets: returns the smallest member of the set of each item once all pairs are linked.

    Args:
      roots: int64[items], the smallest member of the set of each item so far.
      one: items.
      other: an item to link with each of them.
    """
    roots = roots.copy()
    while True:
        one, other = roots[one], roots[other]
        apart = one != other
        if not apart.any():
            return roots
        one, other = np.minimum(one[apart], other[apart]), np.maximum(one[apart], other[apart])
        np.minimum.at(roots, other, one)  # every root points to a smaller one, so there are no circles
        while not np.array_equal(further := roots[roots], roots):
            roots = further


_BITS = 64
_WEAK_BITS, _FLAT_BITS = 24, 16
_WEAK_DISTANCE, _FLAT_DISTANCE = 3, 2
_ASPECT_STEP = math.log(1.05)
_COLOUR_STEP = 16
_STEPS, _FLAT_STEPS = (1, 8), (0.5, 2)  # of mean and deviation
_MOMENTS = 6  # that count for all weak hashes; the others are for flat images
_CELLS = (0, 4, 6, 8)  # aspect ratio, mean of red and of blue, deviation of green: few, for each doubles the tables

_RUN = 8  # hashes with equal bands to aim for; fewer cost more tables, more cost more comparisons
_CROWD, _LARGE_CROWD = 128, 4096
_WINDOW = 16
_TABLES = 200
_COMPARISONS = 1 << 30  # within crowds: half a minute of one core
_BATCH = 1 << 20  # pairs at a time, 16 bytes each
_PIECE = 20_000

Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Looks:
    """What images look like, in the same order.

    Attributes:
      hashes: uint64[images], perceptual hashes.
      traits: int64[images, 4], steps of aspect ratio and of the mean of each channel; a step apart is alike.
      moments: int64[images, 12], finer steps of the mean of each channel and of its deviation, and still finer ones
        of both; None when not measured.
    """

    hashes: np.ndarray
    traits: np.ndarray
    moments: np.ndarray | None

    def alike(self, one: np.ndarray, other: np.ndarray, distance: int) -> np.ndarray:
        """Returns whether the images at some places look like those at others, bool of the shape of the places."""
        apart = bit_count(self.hashes[one] ^ self.hashes[other])
        close = (apart <= distance) & (np.abs(self.traits[one] - self.traits[other]) <= 1).all(axis=-1)
        strong, bulky = ~(self.weak[one] | self.weak[other]), ~(self._flat[one] | self._flat[other])
        if self.moments is None:
            return close & strong
        equal = np.abs(self.moments[one] - self.moments[other]) <= 1
        close &= strong | ((apart <= _WEAK_DISTANCE) & equal[..., :_MOMENTS].all(axis=-1))
        return close & (bulky | ((apart <= _FLAT_DISTANCE) & equal[..., _MOMENTS:].all(axis=-1)))

    @functools.cached_property
    def weak(self) -> np.ndarray:
        """Whether the hash of each image alone says too little, bool[images]."""
        return self.bits < _WEAK_BITS

    @functools.cached_property
    def bits(self) -> np.ndarray:
        """Bits of each hash that are set, or that are not, whichever are fewer: int64[images]."""
        count = bit_count(self.hashes).astype(np.int64)
        return np.minimum(count, _BITS - count)

    @functools.cached_property
    def _flat(self) -> np.ndarray:
        return self.bits < _FLAT_BITS


@dataclass(frozen=True, kw_only=True)
class NearClusters:
    """Which images look alike.

    Attributes:
      roots: int64[images], the near cluster of each image, named by its first member; lone images name themselves.
      unsearched: bool[images], images that were not compared with all that may look like them.
    """

    roots: np.ndarray
    unsearched: np.ndarray


def looks(
    dhash: np.ndarray, height: np.ndarray, width: np.ndarray, mean_rgb: np.ndarray, var_rgb: np.ndarray | None
) -> Looks:
    """Returns what images look like.

    Args:
      dhash: int64[images].
      height: rows of each stored image, in pixels.
      width: columns of it.
      mean_rgb: float[images, 3], 0-255; all zeros when not measured.
      var_rgb: float[images, 3], variance of each channel, levels squared; None when neither was measured.
    """
    aspect = np.floor(np.log(width / height) / _ASPECT_STEP)
    traits = np.column_stack([aspect, mean_rgb // _COLOUR_STEP]).astype(np.int64)
    moments = None
    if var_rgb is not None:
        values = mean_rgb, np.sqrt(var_rgb)
        steps = [value // step for sizes in (_STEPS, _FLAT_STEPS) for value, step in zip(values, sizes, strict=True)]
        moments = np.column_stack(steps).astype(np.int64)
    return Looks(hashes=dhash.astype(np.int64).view(np.uint64), traits=traits, moments=moments)


def find(images: Looks, distance: int) -> NearClusters:
    """Finds the near clusters.

    A cluster is a connected component: images are in it that look like one another, or are linked by a chain of
    images that do. So no two images that look alike lie in different clusters, which is what keeps splits apart; the
    ends of a chain, such as the frames of a video, may differ in more bits than `distance`.

    Args:
      images: what they look like.
      distance: bits in which the hashes of images that look alike may differ, 0-8.
    """
    search = _Search(images, distance)
    search.by_hash()
    search.by_moments()
    return NearClusters(roots=search.links, unsearched=search.unsearched)


def surplus(
    images: Looks, clusters: NearClusters, distance: int, written: np.ndarray, fresh: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which images to leave out so that what is left does not look alike, and which are unsearched then.

    Both are bool[images].

    Within a cluster the images are taken in order, and each is left out that looks like one that stays. So an image is
    never left out for a chain alone: one that stays looks like it. Clusters of more than 20,000 images are dealt with
    in pieces of that many, in order of their hashes, which bounds the work; some images that look alike stay there,
    and all of them count as unsearched.

    Args:
      images: what they look like, in the order in which they should stay; written ones come first.
      clusters: their near clusters, of `find`.
      distance: bits in which the hashes of images that look alike may differ.
      written: images that stay whatever they look like.
      fresh: images that may be left out.
    """
    roots, unsearched = clusters.roots, clusters.unsearched.copy()
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
            unsearched[members] = True
        for piece in range(0, size, _PIECE):
            some = np.sort(members[piece : piece + _PIECE])
            left_out[_left_out(images, some[written[some]], some[fresh[some]], distance)] = True
    return left_out, unsearched


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


class _Search:
    """A search for images that look alike.

    Attributes:
      links: int64[images], the first image of the cluster of each image as far as it is known.
      unsearched: bool[images], images of crowds that were not compared.
    """

    def __init__(self, images: Looks, distance: int) -> None:
        self.links = np.arange(len(images.hashes))
        self.unsearched = images.weak.copy() if images.moments is None else np.zeros(len(images.hashes), bool)
        self._images, self._distance = images, distance
        self._comparisons = _COMPARISONS

    def by_hash(self) -> None:
        """Finds the pairs of which neither hash is weak."""
        self._by_bands(self._nodes(np.flatnonzero(~self._images.weak), self._images.traits), self._distance)

    def _by_bands(self, left: np.ndarray, distance: int) -> None:
        passes = _passes(len(left), distance)
        for bands in passes:
            crowded = np.zeros(len(self.links), bool)
            for mask in _masks(bands, bands - distance):
                crowds = self._compare(left, self._images.hashes[left] & mask)
                if bands == passes[-1]:
                    self._compare_crowds(crowds)
                for members in crowds:
                    crowded[members] = True
            left = left[crowded[left]]

    def by_moments(self) -> None:
        """Finds the pairs of which a hash is weak."""
        images, distance = self._images, min(self._distance, _WEAK_DISTANCE)
        if images.moments is None:
            return
        looks_of = np.column_stack([images.traits, images.moments])
        nodes = self._nodes(np.flatnonzero(images.bits < _WEAK_BITS + distance), looks_of)
        cells = looks_of[nodes][:, _CELLS]
        for shift in itertools.product((0, 1), repeat=len(_CELLS)):
            # Of two numbers that are a step apart, either the halves or the halves of one more are equal.
            _, keys = np.unique((cells + shift) // 2, axis=0, return_inverse=True)
            crowds = self._compare(nodes, keys.reshape(-1))
            self._compare_crowds([members for members in crowds if len(members) <= _LARGE_CROWD])
            for members in crowds:
                if len(members) > _LARGE_CROWD:
                    self._by_bands(members, distance)

    def _nodes(self, members: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Links images with equal hashes and values, and returns the first of each set in order of the hashes."""
        order = members[np.lexsort((*values[members].T, self._images.hashes[members]))]
        firsts = _first_of_runs(np.column_stack([self._images.hashes[order].view(np.int64), values[order]]))
        nodes = order[firsts]
        self.links = join_sets(self.links, np.repeat(nodes, np.diff(firsts, append=len(order))), order)
        return nodes

    def _compare(self, nodes: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
        """Compares nodes with equal keys, and returns the crowds, which it leaves out."""
        # Stable: within a run the hashes stay sorted, so those nearest by are the most alike.
        order = np.argsort(keys, kind="stable")
        starts = _first_of_runs(keys[order])
        order = nodes[order]
        sizes = np.diff(starts, append=len(order))
        follow = np.repeat(starts + sizes, sizes) - np.arange(len(order)) - 1
        settled = _settled(self.links[order], starts, sizes)
        crowd = (sizes > _CROWD) & ~settled
        follow[np.repeat(settled | crowd, sizes)] = 0
        self._link(_within(order, follow))
        return [order[start : start + size] for start, size in zip(starts[crowd], sizes[crowd], strict=True)]

    def _compare_crowds(self, crowds: list[np.ndarray]) -> None:
        if not crowds:
            return
        neighbours = [np.minimum(np.arange(len(members))[::-1], _WINDOW) for members in crowds]
        self._link(_within(np.concatenate(crowds), np.concatenate(neighbours)))
        self._link(pair for members in crowds for pair in self._across(members))

    def _across(self, members: np.ndarray) -> Iterator[Pair]:
        """Yields each member outside of the largest cluster with all members, as long as comparisons are left."""
        _, clusters = np.unique(self.links[members], return_inverse=True)
        outside = members[clusters != np.bincount(clusters).argmax()]
        if len(outside) * len(members) > self._comparisons:
            self.unsearched[members] = True
            return
        self._comparisons -= len(outside) * len(members)
        step = max(1, _BATCH // len(members))
        for start in range(0, len(outside), step):
            some = outside[start : start + step]
            yield np.repeat(some, len(members)), np.tile(members, len(some))

    def _link(self, pairs: Iterable[Pair]) -> None:
        for one, other in _batches(self._alike(pairs)):
            self.links = join_sets(self.links, one, other)

    def _alike(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        hashes = self._images.hashes
        for one, other in pairs:
            close = bit_count(hashes[one] ^ hashes[other]) <= self._distance
            one_left, other_left = one[close], other[close]
            alike = self._images.alike(one_left, other_left, self._distance)
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
