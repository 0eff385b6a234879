from __future__ import annotations

import json

import numpy as np
from PIL import Image

from pipeline.cli import execute as run
from tests.make_images import class_folders


def test_a_dataset_a_shard_and_one_image_can_be_looked_at(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    photos = class_folders(tmp_path / "photos", per_class=6)
    assert run("ingest photos --out dataset --splits train=0.5,eval=0.5 --shards 1".split()) == 0
    capsys.readouterr()

    assert run("inspect dataset -n 1".split()) == 0
    shown = capsys.readouterr().out
    assert "classes    2: china, flower" in shown
    assert shown.count("image/filename") == 1

    assert run("inspect dataset/Split-train/data-00000-of-00001.tfrecord -n 0 --json".split()) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["compression"] == "none"
    assert values["features"]["image/mean_rgb"] == {
        "kind": "float",
        "records": values["records"],
        "least": 3,
        "most": 3,
    }

    assert run("inspect dataset --key china/002.png --export out".split()) == 0
    assert "image/class/text                 china" in capsys.readouterr().out
    assert (tmp_path / "out" / "00000.png").read_bytes() == (photos / "china" / "002.png").read_bytes()


def test_nothing_to_export_and_wrong_paths_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.tfrecord").write_bytes(b"")
    assert run("inspect empty.tfrecord --export out".split()) == 2
    assert "nothing to export" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run("inspect nowhere".split()) == 2
    assert capsys.readouterr().err == "feedline: error: nowhere cannot be read: No such file or directory\n"


def test_raw_pixels_are_exported_as_pictures(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    class_folders(tmp_path / "photos", per_class=2)
    assert run("ingest photos --out out --splits all=1 --policy raw --side-px 20".split()) == 0
    assert run("inspect out --export pictures".split()) == 0
    first = min((tmp_path / "pictures").iterdir())
    with Image.open(first) as image:
        assert (image.format, image.size, image.mode) == ("PNG", (20, 20), "RGB")
        assert np.asarray(image).std() > 1
