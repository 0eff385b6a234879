from __future__ import annotations

import functools
import re

import pytest

from pipeline.cli import execute as run
from tests.make_images import flipped
from trainer.bench import measure as bench

pytestmark = pytest.mark.filterwarnings("ignore")

SHORT = "--image-side 16 --batch-size 4 --threads 2 --seconds 0.05"


@pytest.fixture(autouse=True)
def one_round(monkeypatch):
    monkeypatch.setattr(bench, "measure", functools.partial(bench.measure, rounds=1))  # what is measured stays


def test_the_table_comes_first_and_the_page_holds_the_same(dataset, tmp_path, capsys):
    page = tmp_path / "bench.html"
    assert run(["bench", "input", str(dataset), *SHORT.split(), "--html", str(page)]) == 0
    captured = capsys.readouterr()
    assert "decode_random_crop(16)" in captured.out
    assert "of the limit" in captured.out
    assert "cases, 0.05 s each, in 3 interleaved rounds: about 0:" in captured.err
    assert str(page) in captured.err
    text = page.read_text()
    assert "decode_random_crop(16)" in text
    assert "</html>" in text


WRONG = [
    ("nowhere", "nowhere is not a dataset: it has no dataset.json"),
    ("DATASET --split test", "no split 'test'; it has train, eval"),
    ("DATASET --ops decode|resize(8)", "image_side_px is 16"),
    ("DATASET --model small_cn", "there is no model 'small_cn'; did you mean small_cnn"),
    ("DATASET --html DATASET", "is a directory; name a file"),
    ("DATASET --batch-size 100000000", "batch_size is 100000000: 4 batches of 307.2 GB, as floats, are in memory"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_request_is_one_line_with_code_2(dataset, here, refused, line, message):
    before = sorted(here.rglob("*"))
    words = line.replace("DATASET", str(dataset)).split()
    assert message in refused("bench", "input", *words, "--image-side", 16)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: flipped(data, 40), "offset 0: the record of '.*' has changed: its checksum .*"),
        (None, "offset 0: the record of '.*' is missing: the shard does not exist"),
    ],
    ids=["flipped", "missing"],
)
def test_a_damaged_shard_is_named_with_its_record(dataset, capsys, damage, message):
    for shard in (dataset / "Split-train").iterdir():
        data = shard.read_bytes()
        shard.unlink()
        if damage:
            shard.write_bytes(damage(data))
    assert run(["bench", "input", str(dataset), *SHORT.split()]) == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(f"{message}.*; see `feedline verify .*`, ingest again$", said)
