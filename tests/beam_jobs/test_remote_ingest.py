"""The whole ingest from and to an S3 server, reached by nothing but the environment variables of its client."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from beam_jobs import storage
from beam_jobs.dataset import schemas
from beam_jobs.dataset.verify import verify
from beam_jobs.errors import OptionError, SourceError
from beam_jobs.ingest import run
from beam_jobs.options import HttpOptions, IngestOptions, TableColumns
from tests import image_table
from tests.beam_jobs import s3_server
from tests.beam_jobs.runs import remote_shards, shards_under
from tests.beam_jobs.web_server import body, serving
from tests.make_images import encode, png

GREY = np.zeros((60, 80), np.uint8)
HTTP = HttpOptions(timeout_s=5, retries=0, allow_private=True)


def options(source: str, out: str, **more) -> IngestOptions:
    return IngestOptions(**{"source": source, "out": out, "splits": {"train": 0.7, "eval": 0.3}, "shards": 2, **more})


def test_a_bucket_becomes_the_dataset_that_a_folder_becomes(photos, bucket, dataset, tmp_path):
    s3_server.put_tree(bucket, "photos", photos)
    run(options(f"{bucket}/photos/**/*.{{jpg,png}}", str(tmp_path / "out")))
    assert shards_under(tmp_path / "out") == shards_under(dataset)


def test_a_dataset_is_written_to_a_bucket(photos, bucket, dataset):
    run(options(str(photos), f"{bucket}/out"))
    assert remote_shards(f"{bucket}/out") == shards_under(dataset)
    local = sorted(str(path.relative_to(dataset)) for path in Path(dataset).rglob("*") if path.is_file())
    assert sorted(name for name, *_ in storage.list_objects(f"{bucket}/out")) == local
    assert verify(f"{bucket}/out").problems == []
    with pytest.raises(OptionError, match="already holds a dataset"):
        run(options(str(photos), f"{bucket}/out"))


def test_a_list_of_urls_becomes_the_dataset_and_what_is_not_fetched_a_reject(photos, tmp_path):
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.*"))
    rows = [f"{name},{name.partition('/')[0]}" for name in [*names, "cat/gone.jpg"]]
    with serving({f"/{name}": body((photos / name).read_bytes()) for name in names}) as server:
        text = "\n".join(["image,label", *(server.url("/") + row for row in rows)])
        (tmp_path / "urls.csv").write_text(text, encoding="utf-8")
        made = run(options(str(tmp_path / "urls.csv"), str(tmp_path / "out"), http=HTTP))
        assert sum(split.records for split in made.splits.values()) == len(names)
        assert server.seen == dict.fromkeys([f"/{name}" for name in [*names, "cat/gone.jpg"]], 1)
    (reject,) = pq.read_table(tmp_path / "out" / "rejects.parquet").to_pylist()
    assert (reject["uri"], reject["reason"]) == (server.url("/cat/gone.jpg"), "not_fetched")
    assert reject["detail"] == "127.0.0.1 returned HTTP 404; 1 attempt"


def test_only_what_a_server_kept_out_of_datasets_is_fetched_again_when_that_is_ignored(tmp_path):
    pages = {f"/{number}.png": body(png(number)) for number in range(3)}
    pages["/3.png"] = lambda page: page.answer(200, png(3), X_Robots_Tag="noai")
    with serving(pages) as server:
        (tmp_path / "urls.csv").write_text("\n".join(["image,label", *(f"{server.url(name)},cat" for name in pages)]))
        first = options(str(tmp_path / "urls.csv"), str(tmp_path / "out"), http=HTTP, splits={"all": 1})
        made = replace(first, bucket_images=2, max_reject_ratio=0.3)
        assert run(made).counts.rejects == {"opted_out": 1}
        again = replace(made, http=replace(HTTP, ignore_robots_tag=True), retry_rejects=True)
        assert run(again).counts.rejects == {}
        assert dict(server.seen) == {**dict.fromkeys(pages, 1), "/3.png": 2}


def test_a_bucket_that_is_not_there_is_told_before_anything_is_written(photos, bucket, tmp_path):
    with pytest.raises(SourceError, match="cannot be listed: .*bucket does not exist"):
        run(options(f"{bucket}-not/photos", str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()
    with pytest.raises(OptionError, match="cannot be written: .*bucket does not exist"):
        run(options(str(photos), f"{bucket}-not/out"))


def signed_table(folder: Path, server, signature: str) -> str:
    rows = [
        f"{server.url(f'/{name}')}?{SIGNED}{signature}"
        for name in ("1.png", "2.png", "bad.png", "gone.png", "none.png")
    ]
    mask = f"{server.url('/mask.png')}?sv=1&sig={signature}"
    text = "\n".join(["image,label,mask", *(f"{row},cat,{mask}" for row in rows[:-1]), f"{rows[-1]},,{mask}"])
    (folder / "signed.csv").write_text(text)
    return str(folder / "signed.csv")


SIGNED = "id=7&X-Amz-Credential=owner&X-Amz-Signature="


def test_no_signature_of_a_url_is_stored_and_an_append_knows_the_image_by_the_rest(tmp_path):
    made = options("", str(tmp_path / "out"), http=HTTP, max_reject_ratio=1.0, columns=TableColumns(mask="mask"))
    pages = {f"/{name}?{SIGNED}secret1": body(png(int(name[0]))) for name in ("1.png", "2.png")}
    pages |= {f"/bad.png?{SIGNED}secret1": body(b"no image"), "/mask.png?sv=1&sig=secret1": body(encode(GREY, "PNG"))}
    lines: list[str] = []
    with serving(pages) as server:
        run(replace(made, source=signed_table(tmp_path, server, "secret1")), report=lines.append)
        # Signed anew, and under a key with its signature, as it was stored before signatures were cut.
        edit_keys(tmp_path / "out", lambda key: key.replace("1.png?id=7", f"1.png?{SIGNED}old"))
        again = replace(made, source=signed_table(tmp_path, server, "secret2"), append=True)
        run(again, report=lines.append)
        keys = [server.url(f"/{name}?id=7") for name in ("1.png", "2.png", "bad.png", "gone.png", "none.png")]
        old = keys[0].replace("id=7", f"{SIGNED}old")
    assert "nothing to add" in lines[-1]
    images = image_table.read(tmp_path / "out").to_pylist()
    rejects = pq.read_table(tmp_path / "out" / "rejects.parquet").to_pylist()
    assert {row["key"]: row["uri"] for row in images} == {old: keys[0], keys[1]: keys[1]}
    reasons = {keys[2]: "not_an_image", keys[3]: "not_fetched", keys[4]: "no_label"}
    assert {row["key"]: row["reason"] for row in rejects} == reasons
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert b"secret" not in written
    assert "secret" not in f"{lines} {images} {rejects}"


def edit_keys(out: Path, change) -> None:
    rows = [{**row, "key": change(row["key"])} for row in image_table.read(out).to_pylist()]
    image_table.write(out, pa.Table.from_pylist(rows, schemas.IMAGES))
    image_table.seal(out)
