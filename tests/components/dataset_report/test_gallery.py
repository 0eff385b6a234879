from __future__ import annotations

import pytest
from PIL import Image

from beam_jobs.dataset import manifest, record
from beam_jobs.errors import CorruptDataset
from components.dataset_report import gallery as module
from components.dataset_report.gallery import gallery
from components.dataset_report.histograms import balance
from components.dataset_report.render import render
from components.dataset_report.shown import Renderer, open_images
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.components.conftest import manifest_of
from tests.components.dataset_report.page import ingest, pixels
from tests.make_images import encode, png


def gallery_of(made):
    dataset = manifest.load(str(made))
    with open_images(str(made), dataset) as images:
        return gallery(images, Renderer(str(made), dataset))


def test_every_class_and_split_has_a_strip_of_its_first_images(dataset):
    found = gallery_of(dataset)
    made = manifest.load(str(dataset))
    assert list(found.classes) == ["china", "flower"]
    for label, strips in found.classes.items():
        assert [strip.split for strip in strips] == ["train", "eval"]
        for strip in strips:
            assert strip.images == made.splits[strip.split].classes[label]
            assert len(strip.tiles) == min(8, strip.images)
            assert all(tile.key.startswith(label) and tile.split == strip.split for tile in strip.tiles)
    assert (found.images, found.all_images) == (sum(len(s.tiles) for x in found.classes.values() for s in x), 24)


def test_a_tile_shows_its_own_image_and_says_what_it_is(tmp_path):
    colours = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}
    files = {f"{name}/x.png": encode(Image.new("RGB", (600, 300), colour), "PNG") for name, colour in colours.items()}
    for label, (strip,) in gallery_of(ingest(tmp_path, files, shards=2)).classes.items():
        (tile,) = strip.tiles
        image = pixels(tile.picture.url)
        assert image.size == (tile.picture.width, tile.picture.height) == (320, 160)
        assert max(abs(one - two) for one, two in zip(image.getpixel((160, 80)), colours[label], strict=True)) <= 6
        facts = dict(tile.facts)
        assert (facts["Image"], facts["Class"], facts["Split"]) == (f"{label}/x.png", label, "train")
        assert facts["Size"] == "600 x 300 pixels"
        assert tile.search == f"{label}/x.png {label} train"


def test_tiny_images_keep_their_pixels(tmp_path):
    data = png(3, 8, 8)
    ((strip,),) = gallery_of(ingest(tmp_path, {"a/x.png": data})).classes.values()
    picture = strip.tiles[0].picture
    assert picture.is_tiny
    assert picture.url.startswith("data:image/png;")
    with Image.open(tmp_path / "source/a/x.png") as original:
        assert list(pixels(picture.url).getdata()) == list(original.getdata())


def test_a_full_page_ends_for_all_strips_alike(dataset, monkeypatch):
    one = len(gallery_of(dataset).classes["china"][0].tiles[0].picture.url)
    monkeypatch.setattr(module, "_BUDGET_BYTES", 9 * one)
    strips = [strip for strips in gallery_of(dataset).classes.values() for strip in strips]
    assert all(strip.tiles for strip in strips)
    assert sum(len(strip.tiles) for strip in strips) < 20


def test_classes_are_counted_for_each_split():
    found = balance(manifest_of({"train": {"cat": 2000, "dog": 500}, "eval": {"cat": 5}}))
    assert [(row.label, row.images) for row in found.rows] == [("cat", 2005), ("dog", 500)]
    assert [[(bar.images, bar.length) for bar in row.bars] for row in found.rows] == [
        [(2000, 1.0), (5, 1.0)],
        [(500, 0.25), (0, 0.0)],
    ]
    assert (found.largest.label, found.smallest.label, found.ratio, found.left_out) == ("cat", "dog", 4.0, 0)


@pytest.mark.parametrize(("fewest", "ratio"), [(0, float("inf")), (1, 1299.0)])
def test_of_very_many_classes_the_largest_and_smallest_are_listed(fewest, ratio):
    found = balance(manifest_of({"train": {f"{index:04d}": index + fewest for index in range(1299 - fewest + 1)}}))
    assert len(found.rows) == 200
    assert (found.rows[0].images, found.rows[-1].images) == (fewest, 1299)
    assert found.left_out == 1300 - fewest - 200
    assert found.ratio == ratio


def test_a_stored_image_over_a_limit_is_a_placeholder_with_its_reason(tmp_path):
    made = ingest(tmp_path, {"a/bad.png": png(3) + b"<bug>", "a/good.png": png(1)})
    (tmp_path / "site").mkdir()
    with broken_decoders(tmp_path / "site"):
        ((strip,),) = gallery_of(made).classes.values()
        page = render(str(made))
    pictures = {tile.key: tile.picture for tile in strip.tiles}
    assert pictures["a/bad.png"].url == ""
    assert pictures["a/bad.png"].problem == "decoder_crashed: the decoder failed: KeyError: 'a bug'"
    assert pictures["a/good.png"].url
    assert 'title="decoder_crashed: the decoder failed' in page


RAW = {record.ENCODED: [b"pixels"], record.FORMAT: [b"raw"]}


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({**RAW, record.HEIGHT: [1 << 31], record.WIDTH: [1 << 31]}, "forged_size"),
        ({**RAW, record.HEIGHT: [], record.WIDTH: [1]}, "IndexError"),
        ({record.ENCODED: [png(1)[:500]], record.FORMAT: [b"png"]}, "undecodable"),
        ({record.ENCODED: [png(1)]}, "KeyError"),
    ],
)
def test_a_damaged_image_is_named_by_its_place(dataset, values, problem):
    renderer = Renderer(str(dataset), manifest.load(str(dataset)))
    row = {"split": "train", "shard": 0, "offset": 7, "key": "a/x.png"}
    with pytest.raises(CorruptDataset, match=rf"Split-train/\S+ offset 7: the image 'a/x.png' .*{problem}") as caught:
        renderer.picture(row, values, 40)
    assert "BytesIO" not in str(caught.value)
