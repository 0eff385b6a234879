from __future__ import annotations

import dataclasses
import os

import pyarrow as pa
import pytest
from PIL import Image

from beam_jobs.dataset import schemas
from components.dataset_report import gallery
from components.dataset_report.gallery import rejects, render_reject
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.components.dataset_report.page import ingest, pixels
from tests.make_images import encode, forged_png, jpeg, png


def table_of(rows: list[dict]) -> pa.Table:
    plain = {"uri": "x.png", "stage": "examine", "detail": "why", "bytes": 5}
    return pa.Table.from_pylist([{**plain, **row} for row in rows], schemas.REJECTS)


def test_what_can_still_be_seen_of_a_cut_file_is_shown(tmp_path):
    data = jpeg(0, 60, 80)
    made = ingest(tmp_path, {"a/good.jpg": data, "a/cut.jpg": data[: len(data) * 2 // 3], "a/text.jpg": b"hello"})
    found = rejects(schemas.read_rejects(str(made / "rejects.parquet")), str(tmp_path / "source"))
    rows = {row.key: row for row in found.rows}
    assert rows["a/text.jpg"].picture.problem.startswith("not_an_image: ")
    seen = pixels(rows["a/cut.jpg"].picture.url)
    with Image.open(tmp_path / "source/a/good.jpg") as good:
        top = [abs(one - two) for one, two in zip(seen.getpixel((40, 5)), good.getpixel((40, 5)), strict=True)]
    assert max(top) < 24
    assert (found.total, found.reasons) == (2, {"not_an_image": 1, "undecodable": 1})


def test_without_a_source_nothing_is_opened(tmp_path):
    made = ingest(tmp_path, {"good.png": png(1), "a/x.png": png(2)})
    found = rejects(schemas.read_rejects(str(made / "rejects.parquet")))
    assert [(row.reason, row.picture) for row in found.rows] == [("no_label", None)]
    assert not found.has_source


def test_every_reason_is_among_the_rows_of_very_many():
    rows = [{"key": f"{index:05d}", "reason": "common"} for index in range(5000)] + [{"key": "z", "reason": "rare"}]
    found = rejects([table_of(rows)])
    assert len(found.rows) == 200
    assert [row.reason for row in found.rows] == ["common"] * 199 + ["rare"]
    assert (found.total, found.reasons) == (5001, {"common": 5000, "rare": 1})


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "good.png").write_bytes(png(1))
    (tmp_path / "secret.png").write_bytes(png(2))
    return folder


def size_of(picture) -> tuple[int, int]:
    return picture.width, picture.height


def test_a_good_file_is_seen(source):
    assert size_of(render_reject(str(source), "good.png", 40)) == (40, 30)
    assert size_of(render_reject(str(source), str(source / "good.png"), 40)) == (40, 30)  # as a table may name it


@pytest.mark.parametrize("uri", ["../secret.png", "{outside}", "https://example.org/x.png", "\0", ""])
def test_nothing_outside_the_source_is_opened(source, uri):
    assert render_reject(str(source), uri.format(outside=source.parent / "secret.png"), 40) is None


def test_a_link_out_of_the_source_is_not_followed(source):
    os.symlink(source.parent / "secret.png", source / "link.png")
    os.symlink(source.parent, source / "folder")
    os.symlink(source / "good.png", source / "inside.png")
    assert render_reject(str(source), "link.png", 40) is None
    assert render_reject(str(source), "folder/secret.png", 40) is None
    assert render_reject(str(source), "inside.png", 40) is not None


@pytest.mark.timeout(20)
def test_pipes_and_folders_are_not_read(source):
    os.mkfifo(source / "pipe.png")
    (source / "folder.png").mkdir()
    assert render_reject(str(source), "pipe.png", 40) is None
    assert render_reject(str(source), "folder.png", 40) is None


@pytest.mark.parametrize(
    "data",
    [
        forged_png(13_000),
        encode(Image.new("1", (4000, 20)), "PNG"),  # an aspect of 200
        b"",
        png(1)[:60],
    ],
    ids=["forged", "long", "empty", "cut"],
)
def test_what_must_or_can_not_be_decoded_is_not(source, data):
    (source / "bad.png").write_bytes(data)
    assert render_reject(str(source), "bad.png", 40).problem


def test_a_file_that_breaks_its_decoder_costs_its_own_picture(source, tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "_REJECTED_LIMITS", dataclasses.replace(gallery._REJECTED_LIMITS, max_seconds=1.0))
    for name, marker in (("slow.png", b"<spin>"), ("crash.png", b"<segv>")):
        (source / name).write_bytes(png(3) + marker)
    with broken_decoders(tmp_path):
        found = {name: render_reject(str(source), name, 40) for name in ("slow.png", "crash.png", "good.png")}
    assert found["slow.png"].problem.startswith("too_slow: it took more than 1 s")
    assert found["crash.png"].problem == "decoder_crashed: the decoder failed: SIGSEGV, 3 times"
    assert size_of(found["good.png"]) == (40, 30)
