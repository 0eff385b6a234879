"""Near duplicates: images that look alike. Pure functions of facts; most pairs are never compared.

Two images look alike when

- their perceptual hashes differ in at most `distance` of 64 bits,
- their aspect ratios differ by 5 % at most (from 11 % on they never match), and
- the mean of each channel differs by 16 levels at most (from 32 on they never match).

A hash with fewer than 24 bits set, or fewer than 24 not set, is weak: it comes from an image of large flat areas, such
as a product on white, and many such images share it. If one of two hashes is weak, three more conditions apply:

- the hashes differ in at most 3 bits, even if `distance` is larger,
- the mean of each channel differs by 1 level at most (from 2 on they never match), and
- the standard deviation of each channel differs by 8 levels at most (from 16 on they never match).

When fewer than 16 bits are set, or not set, these limits are 2 bits, half a level and 2 levels.

Ratios, means and deviations are compared in steps, so each limit is a range: at twice the limit images never match.
Without moments (means and deviations), weak hashes match nothing. `python -m benchmarks.near` measures the accuracy.

Algorithm: if two hashes that differ in d bits are cut into m bands, at least m - d bands are equal. For every choice of
m - d bands, the hashes are sorted by these bands, and only hashes with equal bands, a run, are compared. The hashes of
runs longer than `_CROWD` (crowds) are cut into more bands, up to 200 sorts per pass. Pairs with a weak hash are found
in the same way, by cells of their moments, and large crowds of such pairs by bands. In the remaining crowds, thousands
of nearly equal images, neighbours in sorted order are compared first; then each image outside of the largest cluster
of the run is compared with all images of the run.

Guarantee: the search finds every pair that looks alike, except pairs of two images that are both in `unsearched`:
images with weak hashes and without moments, and images of crowds that need more than `_MAX_COMPARISONS` comparisons.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from beam_jobs.dataset import schemas

COLUMNS = ("dhash", "height", "width", "mean_rgb", "var_rgb")  # facts that `measure_facts` needs


def join_sets(roots: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Joins sets: returns the smallest member of the set of each item after all pairs are linked, int64[items].

    Args:
      roots: int64[items], the smallest member of the set of each item, before the pairs are linked.
      one: int64[pairs], first item of each pair to link.
      other: int64[pairs], second item of each pair.
    """
    roots = roots.copy()
    while True:
        one, other = roots[one], roots[other]
        differ = one != other
        if not differ.any():
            return roots
        one, other = np.minimum(one[differ], other[differ]), np.maximum(one[differ], other[differ])
        np.minimum.at(roots, other, one)  # every root points to a smaller one, so there are no cycles
        while not np.array_equal(next_roots := roots[roots], roots):
            roots = next_roots


_BITS = 64
_WEAK_BITS, _FLAT_BITS = 24, 16
_WEAK_DISTANCE, _FLAT_DISTANCE = 3, 2
_ASPECT_STEP = math.log(1.05)
_COLOUR_STEP = 16
_STEPS, _FLAT_STEPS = (1, 8), (0.5, 2)  # step of mean and of deviation, in levels
_LARGEST = 700  # bound of levels, and of logarithms of aspect ratios
_MOMENTS = 6  # columns of `moments` for all weak hashes; the other columns are for flat images
_CELLS = (0, 2, 4)  # columns of `moments`: mean of red and blue, deviation of green; each column doubles the sorts
_CELL_WEIGHTS = 1 << np.arange(48, -1, -16)  # to pack four int16 into one int64
_HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio: Knuth, The Art of Computer Programming 3, 6.4
_RUN = 8  # target length of runs; shorter runs need more sorts, longer runs more comparisons
_CROWD, _LARGE_CROWD = 128, 4096
_NEIGHBOURS = 16
_MAX_SORTS = 200
_MAX_COMPARISONS = 1 << 30  # maximum within crowds: half a minute of one core
_BATCH_PAIRS = 1 << 20  # pairs per batch, 16 bytes each
_PIECE_IMAGES = 20_000  # images of a cluster that are examined together
Pair = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Appearances:
    """Measures of the appearance of images.

    Attributes:
      hashes: uint64[images], perceptual hashes.
      traits: int16[images, 4], steps of aspect ratio and of the mean of each channel, alike up to a difference of 1.
      moments: int16[images, 12], finer steps of mean and deviation of each channel, then still finer steps of both;
        None when not measured.
    """

    hashes: np.ndarray
    traits: np.ndarray
    moments: np.ndarray | None

    def alike(self, one: np.ndarray, other: np.ndarray, distance: int) -> np.ndarray:
        """Returns whether the images at indices `one` look like those at `other`, bool in the shape of the arrays."""
        bits = bit_count(self.hashes[one] ^ self.hashes[other])
        is_alike = (bits <= distance) & (np.abs(self.traits[one] - self.traits[other]) <= 1).all(axis=-1)
        is_strong, is_not_flat = ~(self.weak[one] | self.weak[other]), ~(self._flat[one] | self._flat[other])
        if self.moments is None:
            return is_alike & is_strong
        is_moment_close = np.abs(self.moments[one] - self.moments[other]) <= 1
        is_alike &= is_strong | ((bits <= _WEAK_DISTANCE) & is_moment_close[..., :_MOMENTS].all(axis=-1))
        return is_alike & (is_not_flat | ((bits <= _FLAT_DISTANCE) & is_moment_close[..., _MOMENTS:].all(axis=-1)))

    def take(self, rows: np.ndarray) -> Appearances:
        """Returns the appearances of the images with the indices `rows`."""
        moments = None if self.moments is None else self.moments[rows]
        return Appearances(hashes=self.hashes[rows], traits=self.traits[rows], moments=moments)

    def put(self, start: int, part: Appearances) -> None:
        """Sets the appearances of images from the index `start` on."""
        end = start + len(part.hashes)
        self.hashes[start:end], self.traits[start:end] = part.hashes, part.traits
        if self.moments is not None:
            self.moments[start:end] = part.moments

    @functools.cached_property
    def weak(self) -> np.ndarray:
        """Whether the hash of each image is weak, bool[images]."""
        return self.bits < _WEAK_BITS

    @functools.cached_property
    def bits(self) -> np.ndarray:
        """Number of set or of unset bits of each hash, the smaller of the two numbers, int8[images]."""
        count = bit_count(self.hashes).astype(np.int8)
        return np.minimum(count, _BITS - count)

    @functools.cached_property
    def _flat(self) -> np.ndarray:
        return self.bits < _FLAT_BITS


@dataclass(frozen=True, kw_only=True)
class NearClusters:
    """Clusters of images that look alike.

    Attributes:
      roots: int64[images], index of the first image of the near cluster of each image.
      unsearched: bool[images], images that were not compared with every candidate.
    """

    roots: np.ndarray
    unsearched: np.ndarray


def allocate(count: int, channel_statistics: bool) -> Appearances:
    """Returns appearances with undefined values, to be set by `Appearances.put`."""
    moments = np.empty((count, 2 * _MOMENTS), np.int16) if channel_statistics else None
    return Appearances(hashes=np.empty(count, np.uint64), traits=np.empty((count, 4), np.int16), moments=moments)


def measure(
    dhash: np.ndarray, height: np.ndarray, width: np.ndarray, mean_rgb: np.ndarray, var_rgb: np.ndarray | None
) -> Appearances:
    """Measures the appearance of images.

    Args:
      dhash: int64[images], perceptual hashes.
      height: number[images], height of each stored image in pixels.
      width: number[images], width in pixels.
      mean_rgb: float[images, 3], 0-255; all zeros when not measured.
      var_rgb: float[images, 3], variance of each channel, in levels squared; None when not measured.
    """
    traits = np.empty((len(dhash), 4), np.int16)
    traits[:, 0] = np.floor(_bounded(np.log(width / height)) / _ASPECT_STEP)
    traits[:, 1:] = np.floor(_bounded(mean_rgb) / _COLOUR_STEP)
    moments = None
    if var_rgb is not None:
        moments = np.empty((len(dhash), 2 * _MOMENTS), np.int16)
        values = (_bounded(mean_rgb), _bounded(np.sqrt(var_rgb))) * 2  # in the order of `moments`
        for number, (value, step) in enumerate(zip(values, (*_STEPS, *_FLAT_STEPS), strict=True)):
            moments[:, 3 * number : 3 * number + 3] = np.floor(value / step)
    return Appearances(hashes=dhash.astype(np.int64).view(np.uint64), traits=traits, moments=moments)


def _bounded(values: np.ndarray) -> np.ndarray:
    """Returns values clipped so that their steps fit into int16; a damaged table may have any number, or NaN."""
    return np.nan_to_num(np.clip(values, -_LARGEST, _LARGEST), nan=-_LARGEST)


def measure_facts(rows: pa.Table, channel_statistics: bool) -> Appearances:
    """Measures the appearance of images from their facts.

    Args:
      rows: table with `COLUMNS`.
      channel_statistics: whether the facts include mean and variance of the channels.
    """
    dhash, height, width = (rows[name].to_numpy() for name in ("dhash", "height", "width"))
    variance = schemas.triples(rows["var_rgb"]) if channel_statistics else None
    return measure(dhash, height, width, schemas.triples(rows["mean_rgb"]), variance)


def find(images: Appearances, distance: int) -> NearClusters:
    """Finds the near clusters.

    A cluster is a connected component of the pairs that look alike. Two images that look alike are never in different
    clusters, so splits by cluster have no leaks; the ends of a chain, such as the frames of a video, may differ in more
    bits than `distance`.

    Args:
      images: appearances of the images.
      distance: maximum number of bits in which the hashes of images that look alike differ, 0-8.
    """
    search = _Search(images, distance)
    search.search_hashes()
    search.search_moments()
    for first, image in search.equal:
        search.unsearched[image] |= search.unsearched[first]
    return NearClusters(roots=search.links, unsearched=search.unsearched)


def find_surplus(
    images: Appearances, clusters: NearClusters, distance: int, written: np.ndarray, droppable: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which images to drop so that no two remaining images look alike, and which are unsearched.

    Both are bool[images].

    Within a cluster the images are examined in order, and each image that looks like a retained one is dropped. A chain
    alone drops no image: a dropped image looks like a retained one. Clusters of more than 20,000 images are examined in
    pieces of that size, in order of their hashes, which bounds the work; some of their images that look alike remain,
    and all of them count as unsearched.

    Args:
      images: appearances of the images, in order of precedence; images in shards come first.
      clusters: the near clusters of the images, as `find` returns them.
      distance: maximum number of bits in which the hashes of images that look alike differ.
      written: bool[images], images that are always retained.
      droppable: bool[images], images that may be dropped; images in neither array were dropped before.
    """
    roots, unsearched = clusters.roots, clusters.unsearched.copy()
    surplus = np.zeros(len(roots), bool)
    order = np.argsort(roots, kind="stable")
    starts = run_starts(roots[order])
    sizes = np.diff(starts, append=len(order))
    first, second = order[starts[sizes == 2]], order[starts[sizes == 2] + 1]  # most clusters are pairs
    surplus[second] = droppable[second] & (written | droppable)[first]
    for start, size in zip(starts[sizes > 2], sizes[sizes > 2], strict=True):
        members = order[start : start + size]
        if size > _PIECE_IMAGES:
            members = members[np.argsort(images.hashes[members], kind="stable")]
            unsearched[members] = True
        for piece in range(0, size, _PIECE_IMAGES):
            indices = np.sort(members[piece : piece + _PIECE_IMAGES])
            surplus[_piece_surplus(images, indices[written[indices]], indices[droppable[indices]], distance)] = True
    return surplus, unsearched


def bit_count(values: np.ndarray) -> np.ndarray:
    """Returns the number of set bits of each uint64, by sums of 2, 4 and 8 adjacent bits, then of all bytes."""
    values = values - ((values >> np.uint64(1)) & np.uint64(0x5555555555555555))
    values = (values & np.uint64(0x3333333333333333)) + ((values >> np.uint64(2)) & np.uint64(0x3333333333333333))
    values = (values + (values >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (values * np.uint64(0x0101010101010101)) >> np.uint64(56)


def _piece_surplus(images: Appearances, written: np.ndarray, droppable: np.ndarray, distance: int) -> np.ndarray:
    """Returns the indices of the images to drop, given indices of images in order; see `find_surplus`."""
    pending = droppable
    for image in written:
        pending = pending[~images.alike(image, pending, distance)]
    retained = []
    while len(pending):
        image, pending = pending[0], pending[1:]
        retained.append(image)
        pending = pending[~images.alike(image, pending, distance)]
    return np.setdiff1d(droppable, retained, assume_unique=True)


class _Search:
    """A search for images that look alike.

    Attributes:
      links: int64[images], index of the first image of the cluster of each image, by the pairs found so far.
      unsearched: bool[images], images that were not compared with every candidate.
      equal: pairs of the first of several equal images, the only one that is compared, and each image equal to it.
    """

    def __init__(self, images: Appearances, distance: int) -> None:
        self.links = np.arange(len(images.hashes))
        self.unsearched = images.weak.copy() if images.moments is None else np.zeros(len(images.hashes), bool)
        self._images, self._distance = images, distance
        self._comparisons_left = _MAX_COMPARISONS
        self.equal: list[Pair] = []

    def search_hashes(self) -> None:
        """Links the images that look alike and have no weak hash."""
        self._search_bands(self._merge_equal(np.flatnonzero(~self._images.weak), self._images.traits), self._distance)

    def _search_bands(self, nodes: np.ndarray, distance: int) -> None:
        """Links the nodes (images, one of each set of equal ones) that look alike, by the bands of their hashes."""
        band_counts = _band_counts(len(nodes), distance)
        for bands in band_counts:
            crowded = np.zeros(len(self.links), bool)
            hashes = self._images.hashes[nodes]
            for mask in _masks(bands, bands - distance):
                crowds = self._compare(nodes, hashes & mask)
                if bands == band_counts[-1]:
                    self._compare_crowds(crowds)
                for members in crowds:
                    crowded[members] = True
            nodes = nodes[crowded[nodes]]

    def search_moments(self) -> None:
        """Links the pairs that look alike and have a weak hash."""
        images, distance = self._images, min(self._distance, _WEAK_DISTANCE)
        if images.moments is None:
            return
        members = np.flatnonzero(images.bits < _WEAK_BITS + distance)
        nodes = self._merge_equal(members, images.traits, images.moments)
        cells = np.column_stack([images.traits[nodes, :1], images.moments[nodes][:, _CELLS]])
        searched: set[int] = set()
        for shift in itertools.product((0, 1), repeat=len(_CELL_WEIGHTS)):
            # If |a - b| = 1, then either a // 2 = b // 2 or (a + 1) // 2 = (b + 1) // 2.
            crowds = self._compare(nodes, ((cells + shift) // 2 @ _CELL_WEIGHTS).view(np.uint64))
            # Most shifts move no image to another cell.
            crowds = [members for members in crowds if hash(members.tobytes()) not in searched]
            searched.update(hash(members.tobytes()) for members in crowds)
            self._compare_crowds([members for members in crowds if len(members) <= _LARGE_CROWD])
            for members in crowds:
                if len(members) > _LARGE_CROWD:
                    self._search_bands(members, distance)

    def _merge_equal(self, members: np.ndarray, *columns: np.ndarray) -> np.ndarray:
        """Links images with equal hashes and columns, and returns the first image of each set, in order of hash."""
        hashes = self._images.hashes[members]
        order = np.argsort(hashes, kind="stable")
        repeated = np.flatnonzero(_are_repeated(hashes[order]))  # few: sorting all images by many columns is slow
        rows = order[repeated]
        values = np.column_stack([column[members[rows]] for column in columns])
        by_value = np.lexsort((*values.T, hashes[rows]))
        rows, values = rows[by_value], values[by_value]
        order[repeated] = rows
        starts = run_starts(hashes[rows], values)
        first_rows = np.repeat(rows[starts], np.diff(starts, append=len(rows)))
        self.equal.append((members[first_rows], members[rows]))
        self.links = join_sets(self.links, *self.equal[-1])
        return members[np.delete(order, np.delete(repeated, starts))]  # without those equal to an earlier image

    def _compare(self, nodes: np.ndarray, keys: np.ndarray) -> list[np.ndarray]:
        """Compares nodes with equal keys, except crowds, and returns the crowds; overwrites the keys."""
        # A key and an index become one number, because sorting numbers is several times faster than sorting indices by
        # key. Of the key, only the high bits of a product remain; the few other keys with these bits cost comparisons.
        index_mask = np.uint64((1 << len(nodes).bit_length()) - 1)
        keys *= _HASH_FACTOR
        keys &= ~index_mask
        keys |= np.arange(len(nodes), dtype=np.uint64)
        keys.sort()
        keys = keys[_are_repeated(keys & ~index_mask)]
        starts = run_starts(keys & ~index_mask)
        order = nodes[(keys & index_mask).astype(np.int64)]
        sizes = np.diff(starts, append=len(order))
        successors = np.repeat(starts + sizes, sizes) - np.arange(len(order)) - 1
        is_linked = _linked_runs(self.links[order], starts, sizes)
        is_crowd = (sizes > _CROWD) & ~is_linked
        successors[np.repeat(is_linked | is_crowd, sizes)] = 0
        self._link(_successor_pairs(order, successors))
        # The nodes are in the order of their hashes; in that order, neighbours are the most similar.
        return [order[start : start + size] for start, size in zip(starts[is_crowd], sizes[is_crowd], strict=True)]

    def _compare_crowds(self, crowds: list[np.ndarray]) -> None:
        """Compares neighbours in each crowd, then the images outside of its largest cluster with the whole crowd."""
        if not crowds:
            return
        successors = [np.minimum(np.arange(len(members))[::-1], _NEIGHBOURS) for members in crowds]
        self._link(_successor_pairs(np.concatenate(crowds), np.concatenate(successors)))
        self._link(pair for members in crowds for pair in self._outside_pairs(members))

    def _outside_pairs(self, members: np.ndarray) -> Iterator[Pair]:
        """Yields pairs of each member outside the largest cluster and every member, up to the limit of comparisons."""
        _, clusters = np.unique(self.links[members], return_inverse=True)
        outside = members[clusters != np.bincount(clusters).argmax()]
        if len(outside) * len(members) > self._comparisons_left:
            self.unsearched[members] = True
            return
        self._comparisons_left -= len(outside) * len(members)
        step = max(1, _BATCH_PAIRS // len(members))
        for start in range(0, len(outside), step):
            batch = outside[start : start + step]
            yield np.repeat(batch, len(members)), np.tile(members, len(batch))

    def _link(self, pairs: Iterable[Pair]) -> None:
        """Links the pairs that look alike, many of them at a time."""
        matches, count = list[np.ndarray](), 0
        for one, other in pairs:
            is_close = bit_count(self._images.hashes[one] ^ self._images.hashes[other]) <= self._distance
            close_pairs = np.stack([one[is_close], other[is_close]])
            matches.append(close_pairs[:, self._images.alike(close_pairs[0], close_pairs[1], self._distance)])
            count += matches[-1].shape[1]
            if count >= _BATCH_PAIRS:
                self.links, matches, count = join_sets(self.links, *np.hstack(matches)), [], 0
        if count:
            self.links = join_sets(self.links, *np.hstack(matches))


def _linked_runs(links: np.ndarray, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Returns whether all images of each run are in one cluster, bool[runs]."""
    return ~np.logical_or.reduceat(links != np.repeat(links[starts], sizes), starts) if len(starts) else sizes > 0


def _band_counts(count: int, distance: int) -> list[int]:
    """Returns the number of bands of each pass; each pass after the first searches the crowds of the previous one."""
    if not distance:
        return [1]
    bands = distance + 1
    while count > _RUN * 2 ** (_BITS * (bands - distance) / bands) and math.comb(bands + 1, distance) <= _MAX_SORTS:
        bands += 1  # longer keys: shorter runs, but more sorts
    return [bands, *(more for more in (bands + 1, bands + 2) if math.comb(more, distance) <= _MAX_SORTS)]


def _masks(band_count: int, equal_count: int) -> Iterator[np.uint64]:
    """Yields a mask for every choice of `equal` of `bands` bands."""
    parts = [0] * band_count
    for bit in range(_BITS):
        # 29 is odd, so this permutes the bits: neighbours, which are correlated in photographs, get different bands.
        parts[bit * 29 % _BITS * band_count // _BITS] |= 1 << bit
    for combination in itertools.combinations(parts, equal_count):
        yield np.uint64(sum(combination))


def _are_repeated(keys: np.ndarray) -> np.ndarray:
    """Returns whether each of the sorted values occurs more than once, bool[values]."""
    same = np.concatenate([[False], keys[1:] == keys[:-1], [False]])
    return (same[1:] | same[:-1])[: len(keys)]


def run_starts(*columns: np.ndarray) -> np.ndarray:
    """Returns the start of each run of rows whose values are equal in all columns, which may be matrices."""
    is_start = np.zeros(len(columns[0]), bool)
    is_start[:1] = True
    for values in columns:
        changes = values[1:] != values[:-1]
        is_start[1:] |= changes.any(axis=1) if values.ndim > 1 else changes
    return np.flatnonzero(is_start)


def _successor_pairs(order: np.ndarray, successors: np.ndarray) -> Iterator[Pair]:
    """Yields pairs of each image and each of its successors in `order`; `successors` is their number per image."""
    indices = np.flatnonzero(successors)
    for step in itertools.count(1):
        indices = indices[successors[indices] >= step]
        if not len(indices):
            return
        yield order[indices], order[indices + step]
