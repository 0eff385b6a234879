from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from beam_jobs.dataset import manifest
from components.dataset_report.histograms import HEIGHT, WIDTH, distributions, extremes, histogram
from components.dataset_report.shown import Images, Renderer, open_images
from tests import image_table
from tests.components.dataset_report.page import ingest
from tests.make_images import encode


def counts_of(chart, split: str) -> list[int]:
    lines = [line for bin_ in chart.bins for line in bin_.title.splitlines() if line.startswith(f"{split}: ")]
    return [int(line.split()[1].replace(",", "")) for line in lines]


def heights_of(line) -> list[float]:
    """Height of each step of a path, of the whole chart."""
    return [HEIGHT - float(part.split("H")[0]) for part in line.edge.split("V")[1:-1]]


def test_every_value_is_counted_once_in_its_bin():
    values = np.sort([10.0, 30, 30, 99] * 300)
    chart = histogram("x", {"train": values})
    # Three different values make three bins of equal width, 10 to 99.
    assert counts_of(chart, "train") == [900, 0, 300]
    assert chart.bins[0].title.splitlines()[0] == "10 to 39.67"
    assert chart.ticks == ("10", "54.5", "99")
    assert sum(bin_.width for bin_ in chart.bins) == pytest.approx(WIDTH, abs=0.5)
    assert not chart.is_log


def test_splits_share_bins_and_scale_by_their_own_size():
    chart = histogram("x", {"train": np.array([1.0] * 60 + [2.0] * 40), "eval": np.array([1.0, 2.0, 2.0, 2.0])})
    train, held_back = chart.lines
    assert (counts_of(chart, "train"), counts_of(chart, "eval")) == ([60, 40], [1, 3])
    # The tallest share, three quarters of eval, fills the chart.
    assert heights_of(held_back) == pytest.approx([100 / 3, 100], abs=0.1)
    assert heights_of(train) == pytest.approx([80, 160 / 3], abs=0.1)
    assert (train.low, train.median, train.high) == ("1", "1", "2")


def test_equal_values_make_one_bin():
    chart = histogram("x", {"train": np.full(7, 3.0)})
    assert counts_of(chart, "train") == [7]
    assert chart.bins[0].title.startswith("3\n")
    assert chart.ticks == ("", "3", "")


def test_a_wide_range_counts_in_factors():
    chart = histogram("x", {"train": np.array([1.0, 10.0, 100.0, 1000.0])})
    assert chart.is_log
    assert counts_of(chart, "train") == [1, 1, 1, 1]


def test_a_long_tail_beside_a_zero_is_cut_off_and_counted():
    usual = np.arange(990.0)
    chart = histogram("x", {"train": np.array([*usual, *[1e6] * 9]), "eval": usual[:500]})
    assert (chart.ticks[0], chart.ticks[2], chart.is_log) == ("0", "989", False)
    assert chart.note == "9 values beyond the axis, in its outer bins"
    assert (sum(counts_of(chart, "train")), counts_of(chart, "train")[-1]) == (999, 42 + 9)
    assert chart.lines[0].high == "1,000,000"
    chart = histogram("x", {"train": np.array([-1e6, *usual])})
    assert (chart.ticks[0], chart.ticks[2], chart.note[:8]) == ("8", "989", "9 values")  # a hundredth of them
    assert counts_of(chart, "train")[0] == 9 + 41
    assert histogram("x", {"train": np.array([0.0, 1.0, 1e6])}).note == ""  # too few to call any of them a tail


def test_a_range_that_is_known_is_kept():
    chart = histogram("x", {"train": np.array([3.0, 250.0])}, (0, 255))
    assert (chart.ticks[0], chart.ticks[2], chart.is_log) == ("0", "255", False)
    assert counts_of(chart, "train")[0] == counts_of(chart, "train")[-1] == 1


def test_what_is_not_finite_is_left_out_and_said():
    chart = histogram("x", {"train": np.array([1.0, 2.0, np.inf, np.nan]), "eval": np.array([np.nan])})
    assert [line.split for line in chart.lines] == ["train"]
    assert chart.note == "3 values not finite"
    assert histogram("x", {"train": np.array([np.nan])}).lines == ()


def test_the_most_frequent_values_come_first(dataset, images_of):
    # 24 images: of those of train, 3 have "b", 3 "a" and 1 "c"; each of eval has "c" and further ones.
    splits = image_table.read(dataset)["split"].to_pylist()
    train, rest = iter([[name] for name in "bbbaaac"]), iter(f"v{number}" for number in range(100))
    cameras = [next(train, []) if split == "train" else ["c", *itertools.islice(rest, 3)] for split in splits]
    found = distributions(images_of(dataset, extra=[json.dumps({"camera": camera}) for camera in cameras]))
    (chart,) = found.text_columns
    evaluated = splits.count("eval")
    assert [value.text for value in chart.values][:4] == ["c", "a", "b", "v0"]
    assert len(chart.values) == 12
    assert chart.left_out == 3 + 3 * evaluated - 12
    assert chart.values[0].bars == [("train", 1 / 7, 1), ("eval", 1 / 4, evaluated)]


def test_the_charts_of_a_dataset_count_its_images(dataset, images_of):
    found = distributions(images_of(dataset))
    made = manifest.load(str(dataset))
    assert [chart.title for chart in found.histograms] == [
        *("Short side (pixels)", "Aspect (width : height)", "File size (kB)"),
        *("Brightness (0-255)", "Red mean (0-255)", "Green mean (0-255)", "Blue mean (0-255)"),
    ]
    for chart in found.histograms:
        for split, info in made.splits.items():
            assert sum(counts_of(chart, split)) == info.records
    table = image_table.read(dataset).to_pydict()
    columns = zip(table["split"], table["height"], table["width"], strict=True)
    sides = [min(height, width) for split, height, width in columns if split == "train"]
    assert found.histograms[0].lines[0].low == str(min(sides))
    assert found.histograms[0].lines[0].high == str(max(sides))


def test_user_columns_become_histograms_or_values(dataset, images_of):
    extras = [json.dumps({"age": index, "tags": ["x", f"t{index % 2}"]}) for index in range(24)]
    found = distributions(images_of(dataset, extra=extras))
    assert found.histograms[-1].title == "age"
    assert [(column.title, [value.text for value in column.values]) for column in found.text_columns] == [
        ("tags", ["x", "t0", "t1"])
    ]
    assert found.columns_left_out == 0


def test_dropped_images_are_not_counted(dataset, images_of):
    shards = image_table.read(dataset)["shard"].to_pylist()
    images = images_of(dataset, shard=[-1, *shards[1:]])
    found = distributions(images)
    assert sum(sum(counts_of(found.histograms[0], split)) for split in images.dataset.splits) == len(shards) - 1


def test_of_very_many_splits_the_first_are_drawn(dataset, images_of):
    images = images_of(dataset)
    some = images.dataset.splits["train"]
    many = replace(images.dataset, splits={**images.dataset.splits, **{f"s{index}": some for index in range(7)}})
    found = distributions(Images(images.database, many))
    assert (list(found.splits), found.splits_left_out) == (["train", "eval", "s0", "s1", "s2", "s3"], 3)


def grey(level: int, width: int, height: int) -> bytes:
    """A PNG of noise around one grey."""
    noise = np.random.default_rng(level).integers(-5, 6, (height, width, 3))
    return encode(Image.fromarray(np.clip(level + noise, 0, 255).astype(np.uint8)), "PNG")


@pytest.mark.parametrize("facts", ["all", "basic"])
def test_the_images_at_the_ends_are_shown_with_the_limit_that_would_stop_them(tmp_path, facts):
    files = {f"a/{level}.png": grey(level, 40, 30) for level in range(20, 240, 20)}
    files["a/flat.png"] = encode(Image.new("RGB", (40, 30), (100, 100, 100)), "PNG")
    files["b/long.png"] = grey(110, 160, 20)
    made = ingest(tmp_path, files, facts=facts)
    data = manifest.load(str(made))
    with open_images(str(made), data) as images:
        found = {end.title: end for end in extremes(images, Renderer(str(made), data))}
    first = {title: end.images[0].key for title, end in found.items()}
    by_bytes = {"Smallest": "b/long.png", "Longest for their width or height": "b/long.png"}
    by_bytes["Most compressed"] = "a/flat.png"
    of_channels = {"Darkest": "a/20.png", "Brightest": "a/220.png", "Flattest": "a/flat.png"}
    assert first == (of_channels if facts == "all" else {}) | by_bytes
    assert {len(end.images) for end in found.values()} == {8}
    assert found["Smallest"].images[0].value == "20 px"
    assert found["Smallest"].limit == "ingest.limits.min_side_px: 31"
    if facts == "all":
        variance = found["Flattest"].limit.split()[1].rstrip(",")
        assert float(variance) > float(found["Flattest"].images[-1].value.split()[1])
    aspect = found["Longest for their width or height"].limit
    assert aspect == "ingest.limits.max_aspect: 1.33"  # of 40x30, which the ingest rejects above it
    assert found["Longest for their width or height"].images[0].value == "8.00 : 1"
    assert all(image.picture for end in found.values() for image in end.images)
