from __future__ import annotations

import json
from pathlib import Path

import pytest

from beam_jobs import ingest
from beam_jobs.dataset import manifest, record, schemas, tfrecord
from beam_jobs.dataset.verify import verify
from beam_jobs.images import process
from beam_jobs.options import ImageLimits, IngestOptions, PixelOptions
from tests.make_images import class_folders, crop, encode


def small(tmp_path: Path, **fields) -> IngestOptions:
    source = class_folders(tmp_path / "small", per_class=4)
    return IngestOptions(**{"source": str(source), "out": str(tmp_path / "out"), "splits": {"all": 1}, **fields})


def records_of(out: str) -> dict[str, dict[str, list]]:
    """Returns key -> what the record holds, found by `images.parquet`."""
    found = {}
    loaded = manifest.load(out)
    for row in schemas.read(f"{out}/images.parquet").to_pylist():
        path = loaded.shard_paths(out, row["split"])[row["shard"]]
        with open(path, "rb") as stream:
            found[row["key"]] = record.decode(tfrecord.read_record_at(stream, path, row["offset"]))
    return found


POLICIES = {
    "copy": PixelOptions(),
    "short": PixelOptions(policy="resize", side_px=48),
    "inside": PixelOptions(policy="resize", side_px=48, fit="inside", quality=60),
    "raw": PixelOptions(policy="raw", side_px=32),
}


@pytest.mark.parametrize(
    ("pixels", "facts"), zip(POLICIES.values(), ("basic", "all", "basic", "all"), strict=True), ids=POLICIES
)
def test_every_policy_gives_a_sound_dataset_of_what_one_image_gives(tmp_path, pixels, facts):
    options = small(tmp_path, pixels=pixels, facts=facts, bucket_images=3)
    (Path(options.source) / "china" / "x.webp").write_bytes(encode(crop(3), "WEBP"))
    result = ingest.run(options)
    assert (verify(options.out).problems, result.counts.written) == ([], 9)
    for key, values in records_of(options.out).items():
        data = (Path(options.source) / key).read_bytes()
        encoded, known = process.examine(data, options.limits, pixels, facts)
        assert values[record.ENCODED] == [encoded]
        assert (values[record.HEIGHT], values[record.WIDTH]) == ([known.height], [known.width])
        assert values[record.FORMAT] == [known.format.encode()]
        assert (record.MEAN_RGB in values, record.VAR_RGB in values) == (facts == "all", facts == "all")
    assert (result.channels is None) == (facts == "basic")
    assert json.loads(Path(options.out, "dataset.json").read_text())["options"]["pixels"]["policy"] == pixels.policy
    sizes = {(values[record.HEIGHT][0], values[record.WIDTH][0]) for values in records_of(options.out).values()}
    if pixels.policy == "raw":
        assert sizes == {(32, 32)}
    elif pixels.policy == "resize":
        side = min if pixels.fit == "short" else max
        assert all(side(size) <= 48 for size in sizes)
        assert any(side(size) == 48 for size in sizes)


def test_an_image_that_grew_over_the_limit_when_it_was_made_plain_is_written(tmp_path):
    data = encode(crop(3), "WEBP", quality=50)
    (tmp_path / "source" / "cat").mkdir(parents=True)
    (tmp_path / "source" / "cat" / "a.webp").write_bytes(data)
    options = small(tmp_path, source=str(tmp_path / "source"), limits=ImageLimits(max_bytes=len(data)))
    assert ingest.run(options).counts.written == 1
    assert len(records_of(options.out)["cat/a.webp"][record.ENCODED][0]) > len(data)
