from __future__ import annotations

from collections import Counter

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions
from pipeline.cli import demo, execute
from pipeline.runs import unchanged
from pipeline.runs.unchanged import RunOutput


def test_the_demo_writes_all_digits_and_its_faults_are_found(tmp_path):
    demo.write_images(str(tmp_path / "images"))
    files = [path for path in (tmp_path / "images").rglob("*") if path.is_file()]
    assert len(files) == 1797 + 7 + 3
    assert Counter(path.parent.name for path in files if path.name.startswith("digit"))["0"] == 178
    pixels = np.asarray(Image.open(tmp_path / "images" / "0" / "digit-0000.png"))
    assert np.array_equal(pixels, np.round(load_digits().images[0] * (255 / 16)))
    before = {path: path.read_bytes() for path in files}
    demo.write_images(str(tmp_path / "images"))
    assert {path: path.read_bytes() for path in (tmp_path / "images").rglob("*") if path.is_file()} == before

    config = demo.config(str(tmp_path / "images"), str(tmp_path / "root"))
    options = IngestOptions.from_json({**config.ingest.to_json(), "out": str(tmp_path / "out")})
    result = run(options)
    assert result.counts.rejects == {
        "undecodable": 2,
        "empty_file": 1,
        "not_an_image": 1,
        "too_large": 1,
        "too_small": 1,
        "no_label": 1,
    }
    assert (result.counts.duplicate_clusters, result.counts.duplicate_images, result.counts.label_conflicts) == (
        3,
        6,
        1,
    )
    assert len(result.splits["train"].shards) > 1


def test_the_demo_answers_from_the_record_if_it_may(tmp_path, capsys):
    root = tmp_path / "root"
    (root / "images").mkdir(parents=True)
    (root / "images" / "0").write_text("a file, so that no images can be written")
    for name in ("metadata.sqlite", "report.html", "serving/1/saved.pb"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("output")
    config = demo.config(str(root / "images"), str(root))
    answer = RunOutput(text="images  3", values={"images": 3}, refusal="", model_dir=str(root / "serving" / "1"))
    unchanged.write_record(config, unchanged.input_digest(config), answer)
    assert execute(["demo", "--root", str(root)]) == 0
    assert "images  3" in capsys.readouterr().out
    assert execute(["demo", "--root", str(root), "--no-fast"]) == 2
    assert "cannot be written" in capsys.readouterr().err
