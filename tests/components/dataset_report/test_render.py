from __future__ import annotations

import base64
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pytest
from PIL import Image

from beam_jobs import manifest
from beam_jobs.errors import CorruptDataset, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, PixelOptions, TableColumns
from components.dataset_report.render import class_bars, clusters, histograms, render
from components.evaluation import Accuracy, Evaluation
from tests.components.conftest import manifest_of
from tests.make_images import png

HOSTILE_CLASS = "<script>alert(1)<"  # with a folder "script>" below it, the key closes the tag
HOSTILE_NAME = "\"'><img src=x onerror=alert(2)>.png"


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data):
        self.text += data

    def images(self) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.tags if tag == "img"]


def ingest(tmp_path: Path, files: dict[str, bytes], **options) -> Path:
    for name, data in files.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    given = {"splits": {"train": 1}, "max_reject_ratio": 1, **options}
    run(IngestOptions(source=str(tmp_path / "source"), out=str(tmp_path / "made"), **given))
    return tmp_path / "made"


def hostile(tmp_path: Path) -> Path:
    files = {
        f"{HOSTILE_CLASS}/script>/{HOSTILE_NAME}": png(1),
        "plain/a.png": png(2),
        f"plain/{HOSTILE_NAME}": b"<b>not an image",
    }
    return ingest(tmp_path, files)


def test_the_page_loads_nothing_and_may_run_nothing(dataset):
    text = render(str(dataset))
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert "http://" not in text
    assert "https://" not in text
    policy = [attributes["content"] for _, attributes in page.tags if "http-equiv" in attributes]
    assert policy == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "a"})
    for _, attributes in page.tags:
        assert attributes.get("src", "data:").startswith("data:")
        assert attributes.keys().isdisjoint({"href", "srcset", "action"})
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text


def test_hostile_names_stay_text(tmp_path):
    text = render(str(hostile(tmp_path)))
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert len(page.images()) == 2
    for attributes in page.images():
        assert attributes.keys() == {"src", "alt", "title"}
        assert attributes["src"].startswith("data:image/jpeg;base64,")
    keys = {attributes["alt"] for attributes in page.images()}
    assert keys == {f"{HOSTILE_CLASS}/script>/{HOSTILE_NAME}", "plain/a.png"}
    assert HOSTILE_CLASS in page.text
    assert f"plain/{HOSTILE_NAME}" in page.text  # the reject
    assert "<script>alert(1)" not in text
    assert html.escape(HOSTILE_CLASS) in text


def test_hostile_classes_of_an_evaluation_stay_text(dataset):
    accuracy = Accuracy(value=0.5, low=0.25, high=0.75, images=8)
    page = Page(render(str(dataset), Evaluation(overall=accuracy, classes={"<script>alert(3)</script>": accuracy})))
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert(3)</script>" in page.text


def test_splits_classes_and_counts_are_those_of_the_manifest(dataset):
    text = render(str(dataset))
    made = manifest.load(str(dataset))
    assert made.digest[:16] in text
    for name, info in made.splits.items():
        shown = f'<tr><td>{name}</td><td class="number">{info.records}</td><td class="number">2</td>'
        assert shown in text
        for label, count in info.classes.items():
            assert f'title="{label}: {count}"' in text
    assert f"<b>{made.counts.found}</b>images found" in text
    assert f'<div class="card"><b>{made.counts.rejected}</b>rejected' in text
    assert text.count("<p>None.</p>") == 2  # neither rejects nor duplicates


def test_rejects_appear_with_their_reason(tmp_path):
    page = Page(render(str(hostile(tmp_path))))
    assert "not_an_image" in page.text
    assert "it starts with b'<b>not a'" in page.text
    assert ("div", {"class": "card bad"}) in page.tags


def test_many_rejects_are_cut(tmp_path):
    files = {f"cat/{index:03d}.jpg": b"no" for index in range(203)}
    text = render(str(ingest(tmp_path, {**files, "cat/good.png": png(1)})))
    assert "cat/199.jpg" in text
    assert "cat/200.jpg" not in text
    assert "The first 200 of 203; all of them are in rejects.parquet." in text


@pytest.mark.parametrize(("policy", "second"), [("keep", "dog, train"), ("drop", "dog, dropped")])
def test_duplicates_appear_together_with_what_became_of_them(tmp_path, policy, second):
    files = {"cat/a.png": png(1), "dog/b.png": png(1), "dog/c.png": png(2)}
    page = Page(render(str(ingest(tmp_path, files, duplicates=policy))))
    (row,) = re.findall(r"^.*dog/b\.png.*$", page.text, re.MULTILINE)
    assert sorted(row.split("; ")) == ["cat/a.png cat, train", f"dog/b.png {second}"]
    assert "Duplicate sets whose copies carry different labels: 1." in page.text
    assert len(page.images()) == (3 if policy == "keep" else 2)


def test_clusters_come_largest_first_and_only_the_first_of_many():
    rows = [
        {"cluster": f"{number:03d}", "key": f"{number:03d}-{copy}", "label": "x", "split": "train"}
        for number in range(205)
        for copy in range(3 if number == 150 else 2)
    ]
    rows.append({"cluster": "", "key": "alone", "label": "x", "split": "train"})
    found = clusters(pa.Table.from_pylist(rows))
    assert [members[0]["key"] for members in found[:3]] == ["150-0", "000-0", "001-0"]
    assert [len(members) for members in found] == [3] + 199 * [2]


def test_thumbnails_are_small_jpegs_of_the_first_images_of_each_class(dataset):
    images = Page(render(str(dataset))).images()
    assert [picture["alt"].split("/")[0] for picture in images] == ["china"] * 8 + ["flower"] * 8
    for picture in images:
        data = base64.b64decode(picture["src"].removeprefix("data:image/jpeg;base64,"), validate=True)
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert image.format == "JPEG"
            assert max(image.size) <= 112


def test_a_thumbnail_shows_its_own_image(tmp_path):
    from tests.make_images import encode

    colours = {"red": (200, 0, 0), "green": (0, 200, 0), "blue": (0, 0, 200)}
    files = {f"{name}/x.png": encode(Image.new("RGB", (300, 150), colour), "PNG") for name, colour in colours.items()}
    for picture in Page(render(str(ingest(tmp_path, files, shards=2)))).images():
        with Image.open(io.BytesIO(base64.b64decode(picture["src"].split(",")[1]))) as image:
            assert image.size == (112, 56)
            seen = image.getpixel((50, 30))
        expected = colours[picture["alt"].split("/")[0]]
        assert max(abs(one - other) for one, other in zip(seen, expected, strict=True)) <= 6


def test_bars_are_relative_to_the_largest_class_of_their_split():
    bars = class_bars(manifest_of({"train": {"cat": 2000, "dog": 500}, "eval": {"cat": 5}}))
    found = {name: [(bar.label, bar.value, bar.share) for bar in rows] for name, rows in bars.items()}
    assert found == {
        "train": [("cat", "2,000", 1.0), ("dog", "500", 0.25)],
        "eval": [("cat", "5", 1.0), ("dog", "0", 0.0)],
    }


def test_histograms_count_every_image_once():
    sizes = [(10, 20), (30, 20), (30, 60), (99, 100)] * 300
    rows = [
        {"height": height, "width": width, "bytes": 1000 * width, "mean_rgb": [width, width, width + 3]}
        for height, width in sizes
    ]
    found = histograms(pa.Table.from_pylist(rows))
    assert list(found) == ["Short side (pixels)", "Aspect (width : height)", "File size (kB)", "Brightness (0-255)"]
    counts = {title: [int(bar.value.replace(",", "")) for bar in bars] for title, bars in found.items()}
    assert {title: sum(values) for title, values in counts.items()} == dict.fromkeys(found, 1200)
    # Short sides 10, 20, 30 and 99 in four columns of equal width, 10 to 99.
    assert counts["Short side (pixels)"] == [900, 0, 0, 300]
    assert found["Short side (pixels)"][0].label == "10 - 32.25"
    for bars in found.values():
        assert max(bar.share for bar in bars) == 1.0


def test_equal_values_make_one_column():
    rows = [{"height": 10, "width": 10, "bytes": 500, "mean_rgb": [1, 2, 3]}] * 7
    found = histograms(pa.Table.from_pylist(rows))
    for bars in found.values():
        assert [(bar.value, bar.share) for bar in bars] == [("7", 1.0)]
    assert [bars[0].label for bars in found.values()] == ["10 - 10", "1 - 1", "0.5 - 0.5", "2 - 2"]


def test_many_classes_keep_the_page_small(tmp_path):
    files = {f"class{index:02d}/x.png": png(index, 100, 120) for index in range(60)}
    text = render(str(ingest(tmp_path, files)))
    assert [picture["alt"] for picture in Page(text).images()] == [f"class{index:02d}/x.png" for index in range(40)]
    assert "The first 40 of 60 classes." in text
    assert 'title="class59: 1"' in text
    assert len(text) < 500_000


def test_an_evaluation_is_shown_with_its_interval(dataset):
    overall = Accuracy(value=0.8125, low=0.75, high=0.9, images=64)
    text = render(str(dataset), Evaluation(overall=overall, classes={"china": overall}))
    assert "<b>81.2 %</b>accuracy (75.0 to 90.0, 95 %)" in text
    assert '<tr><td>china</td><td class="number">64</td><td class="number">81.2 %</td>' in text
    assert "accuracy (" not in render(str(dataset))


def test_equal_datasets_give_equal_pages(dataset):
    assert render(str(dataset)) == render(str(dataset))


def test_no_dataset_and_a_damaged_one_are_refused(dataset, tmp_path):
    with pytest.raises(SourceError, match=r"none is not a dataset: it has no dataset\.json"):
        render(str(tmp_path / "none"))
    for shard in (dataset / "Split-train").iterdir():
        data = bytearray(shard.read_bytes())
        data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
        shard.write_bytes(data)
    with pytest.raises(CorruptDataset, match=r"Split-(train|eval)/data-0000\d-of-00002\.tfrecord has a corrupt"):
        render(str(dataset))


@pytest.mark.parametrize("name", ["images.parquet", "rejects.parquet"])
def test_a_damaged_table_is_refused_by_name(dataset, name):
    (dataset / name).write_bytes(b"not parquet")
    with pytest.raises(CorruptDataset, match=name):
        render(str(dataset))


@pytest.mark.parametrize(
    ("columns", "options", "shown"),
    [
        (TableColumns(labels="tags"), {}, ["cat", "dog"]),
        (TableColumns(label=""), {"facts": "basic"}, ["no class"]),
        (TableColumns(label="tags"), {"pixels": PixelOptions(policy="raw", side_px=16)}, ["cat|dog"]),
    ],
)
def test_datasets_of_every_kind_have_a_page(tmp_path, columns, options, shown):
    lines = ["image,tags"]
    for index in range(4):
        (tmp_path / f"{index}.png").write_bytes(png(index))
        lines.append(f"{index}.png,cat|dog")
    (tmp_path / "table.csv").write_text("\n".join(lines))
    out = str(tmp_path / "out")
    run(IngestOptions(source=str(tmp_path / "table.csv"), out=out, splits={"all": 1}, columns=columns, **options))
    page = render(out)
    for name in shown:
        assert name in page
    assert page.count("data:image/jpeg;base64,") == 4 * len(shown)
    assert ("Channel mean" in page) == ("Brightness" in page) == (options.get("facts") != "basic")
