"""Simulates how much the last units of a job prolong it, with the sizes of photographs.

    python -m benchmarks.stragglers --images 100000 1000000 10000000

Units of work (buckets of images to examine) are assigned in random order, each to the next free core. The time of an
image is proportional to its bytes, which have a Pareto distribution. Its shape is 6.3, the Hill estimate of the largest
tenth of 3,000 photographs of 500 x 375 pixels, and for comparison 2.5, a much heavier tail. The ideal time is the time
if the bytes were divided evenly among the cores of the workers that are started, at most `--workers`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys

import numpy as np

from beam_jobs.options import IngestOptions
from beam_jobs.runners.cost_estimate import DataflowPool

SHAPES = (6.3, 2.5)
WORKERS = (1, 10, 100, 1000)
CORES = 4
IMAGES = (100_000, 1_000_000, 10_000_000)


def unit_sizes(images: int, shape: float) -> np.ndarray:
    """Returns the sum of the image sizes of each unit, relative to the smallest image; the last unit is smaller."""
    generator, per_unit = np.random.default_rng(0), IngestOptions.bucket_images
    counts = [per_unit] * (images // per_unit) + [images % per_unit] * bool(images % per_unit)
    return np.array([1 + generator.pareto(shape, count).mean() for count in counts]) * counts


def excess(sizes: np.ndarray, max_workers: int) -> tuple[int, float]:
    """Returns the number of workers of a job at its start, and the time of the job divided by the ideal time."""
    pool = DataflowPool(region="", machine_type="", cores=CORES, min_workers=0, max_workers=max_workers)
    slots = pool.workers(len(sizes)) * CORES
    ends = [0.0] * slots
    for size in np.random.default_rng(0).permutation(sizes):
        heapq.heapreplace(ends, ends[0] + size)
    return slots // CORES, max(ends) / (sizes.sum() / min(slots, len(sizes)))


def main(arguments: list[str]) -> None:
    """Prints one line of JSON for each shape, number of images and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    given = parser.parse_args(arguments)
    for shape in SHAPES:
        for images in given.images:
            sizes = unit_sizes(images, shape)
            for max_workers in given.workers:
                workers, ratio = excess(sizes, max_workers)
                row = {"shape": shape, "images": images, "units": len(sizes), "max_workers": max_workers}
                sys.stdout.write(f"{json.dumps({**row, 'workers': workers, 'of_ideal': round(ratio, 3)})}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
