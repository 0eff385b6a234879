from __future__ import annotations

import json

import pytest

from beam_jobs.errors import OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import TableColumns
from beam_jobs.runners import LocalEngine
from beam_jobs.sources.factory import open_source
from beam_jobs.sources.fingerprint import source_fingerprint
from beam_jobs.sources.row_reader import allowed_buckets, parse_bucket
from beam_jobs.stages.dry_run import estimate
from tests.beam_jobs import s3_server
from tests.beam_jobs.make_rows import make_options
from tests.make_images import png


@pytest.mark.parametrize(
    ("path", "bucket"),
    [("GS://Photos/a.jpg", "gs://photos"), ("s3:///a.jpg", "s3://"), ("https://host/s3://photos/a.jpg", "")],
)
def test_the_bucket_of_a_path(path, bucket):
    assert parse_bucket(path) == bucket


@pytest.mark.parametrize("bucket", ["photos", "s3://", "s3://photos/cat"])
def test_a_bucket_that_is_none_is_refused(bucket):
    with pytest.raises(OptionError, match=r"^allow_buckets holds '.*'; write it as s3://NAME or gs://NAME$"):
        allowed_buckets(make_options(allow_buckets=(bucket,)))


@pytest.fixture
def table(tmp_path):
    """Writes a table of image and mask cells."""

    def write(*rows: tuple[str, str]) -> str:
        (tmp_path / "1.png").write_bytes(png(1))
        lines = [json.dumps({"image": image, "mask": mask, "label": "cat"}) for image, mask in rows]
        (tmp_path / "table.jsonl").write_text("\n".join(lines))
        return str(tmp_path / "table.jsonl")

    return write


MASKS = TableColumns(mask="mask")


def test_buckets_that_were_not_allowed_are_listed_and_nothing_is_read(table, tmp_path, monkeypatch):
    names = [("1.png", "s3://masks\x1b[2J/1.png"), *((f"s3://other{number}/1.png", "1.png") for number in range(9))]
    path = table(("1.png", "1.png"), ("gs://mine/1.png", "1.png"), *names)
    monkeypatch.chdir(tmp_path)
    given = make_options(source=path, columns=MASKS, allow_buckets=("gs://mine/",))
    message = (
        r"table.jsonl names images in other buckets, which would be read with your credentials: s3://masks\\x1b\[2j, "
        r"s3://other0, s3://other1, s3://other2, s3://other3 and 5 more; to allow that, give --allow-bucket "
        r"s3://masks\S+ \(setting ingest.allow_buckets\), once for each bucket$"
    )
    for call in (run, source_fingerprint, lambda given: estimate(given, LocalEngine())):
        with pytest.raises(SourceError, match=message):
            call(given)
    assert not (tmp_path / "dataset").exists()


def test_the_buckets_of_the_table_and_of_the_output_are_allowed(monkeypatch):
    bucket = s3_server.new_bucket(monkeypatch)
    s3_server.put(bucket, "table.csv", b"image,label\n1.png,cat\ns3://out/2.png,cat\n" + f"{bucket}/3.png,cat".encode())
    source = open_source(make_options(source=f"{bucket}/table.csv", out="s3://out/dataset"))
    assert [entry.uri for entry in source.entries()] == ["1.png", "s3://out/2.png", f"{bucket}/3.png"]
    with pytest.raises(SourceError, match=r"with your credentials: s3://out;"):
        list(open_source(make_options(source=f"{bucket}/table.csv")).entries())


def test_images_of_coco_json_are_held_to_it_too(tmp_path):
    values = {"images": [{"id": 1, "file_name": "s3://other/1.jpg"}], "annotations": [], "categories": []}
    (tmp_path / "coco.json").write_text(json.dumps(values))
    with pytest.raises(SourceError, match=r"with your credentials: s3://other;"):
        list(open_source(make_options(source=str(tmp_path / "coco.json"))).entries())
