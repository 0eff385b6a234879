"""The folder of pages with all images: each image is where the index says."""

from __future__ import annotations

from pathlib import Path

import pytest

from beam_jobs.errors import CorruptDataset, OptionError
from components.dataset_report import render
from components.dataset_report.render import render_all
from tests import image_table
from tests.components.dataset_report.page import HOSTILE_CLASS, HOSTILE_NAME, Page, ingest
from tests.make_images import png


def links(path: Path) -> list[str]:
    tags = Page(path.read_text()).tags
    return [attributes["href"] for tag, attributes in tags if tag == "a" and not attributes["href"].startswith("#")]


def keys(path: Path) -> list[str]:
    """The keys of the images of a page, in their order."""
    return [attributes["title"] for _, attributes in Page(path.read_text()).tags if "data-open" in attributes]


def followed(out: Path, first: str) -> list[Path]:
    """The pages that follow a page, itself included."""
    pages, name = [], [first]
    while name:
        pages.append(out / name[0])
        tags = Page(pages[-1].read_text()).tags
        name = [attributes["href"] for _, attributes in tags if attributes.get("rel") == "next"]
    return pages


def test_every_image_is_on_a_page_of_its_class_and_split(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(render, "_PAGE_IMAGES", 3)
    out, rows = tmp_path / "pages", image_table.read(dataset).to_pylist()
    assert render_all(str(dataset), str(out)) == len(rows)
    found = {}
    for first in links(out / "index.html"):
        pages = followed(out, first)
        title = Page(pages[0].read_text()).words().partition(" All images ")[2].partition(" ")[0].rstrip(",")
        assert all(len(keys(page)) == 3 for page in pages[:-1])
        found |= {key: (title, first.split("-")[2]) for page in pages for key in keys(page)}
    assert found == {row["key"]: (row["label"], row["split"]) for row in rows}
    assert sorted(path.name for path in out.iterdir()) == sorted(
        ["index.html", *(page.name for first in links(out / "index.html") for page in followed(out, first))]
    )


def test_pages_load_nothing_and_names_of_strangers_stay_text(tmp_path):
    made = ingest(tmp_path, {f"{HOSTILE_CLASS}/script>/{HOSTILE_NAME}": png(1), "plain/a.png": png(2)})
    render_all(str(made), str(tmp_path / "pages"))
    for path in (tmp_path / "pages").iterdir():
        page = Page(path.read_text())
        assert "default-src 'none'" in page.tags[4][1]["content"]
        assert [tag for tag, _ in page.tags].count("script") == 1
        assert all(attributes.get("src", "data:").startswith("data:") for _, attributes in page.tags)
        assert all((tmp_path / "pages" / name).is_file() for name in links(path))


def test_images_are_found_by_what_a_model_takes_them_for_mistakes_first(dataset, tmp_path, always_first_class):
    out = tmp_path / "pages"
    render_all(str(dataset), str(out), str(always_first_class))
    labels = {row["key"]: row["label"] for row in image_table.read(dataset).to_pylist() if row["split"] == "eval"}
    [first] = [name for name in links(out / "index.html") if name.startswith("predicted")]
    shown = keys(out / first)
    assert sorted(shown) == sorted(labels)
    right = [labels[key] == min(labels.values()) for key in shown]
    assert right == sorted(right)
    assert f"Predicted {min(labels.values())}, " in Page((out / first).read_text()).words()


def test_of_very_many_images_a_part_is_shown_and_the_index_says_so(dataset, tmp_path, monkeypatch):
    count = image_table.read(dataset).num_rows
    monkeypatch.setattr(render, "_MAX_IMAGES", count // 2)
    shown = render_all(str(dataset), str(tmp_path / "pages"))
    assert shown == -(-count // 2)
    words = Page((tmp_path / "pages" / "index.html").read_text()).words()
    assert f"{count} images; one image in 2 is shown, {shown} images" in words


def test_files_of_others_are_left_alone_and_damage_leaves_nothing(dataset, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    with pytest.raises(OptionError, match="which holds files; name a new or empty directory"):
        render_all(str(dataset), str(tmp_path / "mine"))
    shard = next((dataset / "Split-eval").glob("*.tfrecord"))
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(CorruptDataset):
        render_all(str(dataset), str(tmp_path / "pages"))
    assert sorted(path.name for path in tmp_path.iterdir() if path != dataset) == ["mine"]
