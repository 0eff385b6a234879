from __future__ import annotations

import shutil

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.errors import OptionError, SourceError
from beam_jobs.options import ImageLimits
from tests.beam_jobs.broken_decoder import broken_decoders
from tests.make_images import encode
from tests.trainer.evaluation.brightness import linear
from trainer.ops import parse_ops
from trainer.serving.export import export
from trainer.serving.predict import ServingSpec, load_model, newest_version, predict


def sky(upper: int, lower: int) -> np.ndarray:
    pixels = np.full((40, 40, 3), lower, np.uint8)
    pixels[:20] = upper
    return pixels


@pytest.fixture
def write(tmp_path):
    def _write(name: str, data: bytes) -> str:
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return _write


def test_a_model_of_several_labels_gives_every_label_over_the_threshold(tmp_path, write):
    model = linear([1 / 96, -1 / 96, 1 / 192], [-2.0, 0.5, 0.0], "sigmoid", 16)
    ops = parse_ops("decode|resize(16)")
    spec = ServingSpec(multi_label=True)
    export(model, ops, ("bright", "dark", "any"), 16, str(tmp_path / "model"), spec=spec)
    paths = [write(f"{level}.png", encode(np.full((20, 20, 3), level, np.uint8), "PNG")) for level in (255, 0)]
    light, dark = predict(str(tmp_path / "model"), paths)
    assert [label.text for label in light.labels] == ["bright", "any"]
    assert [label.label for label in light.labels] == [0, 2]
    assert (light.text, light.label, light.probability) == ("bright", 0, light.labels[0].probability)
    assert [label.text for label in dark.labels] == ["dark"]  # 0.5 of the last is not over the threshold
    model = linear([0.0, 0.0, 0.0], [-1.0, -1.0, -1.0], "sigmoid", 16)
    export(model, ops, ("bright", "dark", "any"), 16, str(tmp_path / "none"), spec=spec)
    assert predict(str(tmp_path / "none"), paths)[0].labels == ()


def test_the_limits_of_the_ingest_are_those_of_the_files(tmp_path, sky_model, write):
    shutil.copytree(sky_model, tmp_path / "model")
    tall = write("tall.png", encode(sky(255, 0)[:, :4], "PNG"))
    with pytest.raises(SourceError, match="tall.png is not a usable image: too_small: 4x40 pixels; min_side_px is 8"):
        predict(str(tmp_path / "model"), [tall])
    ServingSpec(limits=ImageLimits(min_side_px=4)).write(str(tmp_path / "model"))
    assert predict(str(tmp_path / "model"), [tall])[0].text == "light"
    ServingSpec(limits=ImageLimits(max_bytes=50)).write(str(tmp_path / "model"))
    with pytest.raises(SourceError, match="too_many_bytes: 51 bytes; max_bytes is 50"):
        predict(str(tmp_path / "model"), [tall])


def test_more_files_than_one_batch_keep_their_order(sky_model, write):
    light, dark = write("light.png", encode(sky(255, 0), "PNG")), write("dark.png", encode(sky(0, 0), "PNG"))
    paths = [light if index % 3 else dark for index in range(130)]
    found = predict(str(sky_model), paths)
    assert [prediction.text for prediction in found] == ["light" if index % 3 else "dark" for index in range(130)]
    assert predict(str(sky_model), []) == []


def test_files_that_cannot_be_used_are_told_and_the_others_classified(sky_model, write, tmp_path):
    light, broken = write("light.png", encode(sky(255, 0), "PNG")), write("broken.jpg", b"hello")
    torn = write("torn.png", encode(sky(1, 2), "PNG")[:60])
    refused: list[tuple[str, str]] = []
    found = predict(
        str(sky_model),
        [broken, light, torn, str(tmp_path / "absent.png"), light],
        lambda path, error: refused.append((path, str(error))),
    )
    assert [prediction.path for prediction in found] == [light, light]
    assert [path for path, _ in refused] == [broken, torn, str(tmp_path / "absent.png")]
    for (_, said), reason in zip(refused, ["not_an_image", "undecodable", "No such file"], strict=True):
        assert reason in said


def test_the_folder_of_versions_serves_its_newest(sky_model, tmp_path, write):
    assert newest_version(str(sky_model)) == str(sky_model)
    assert newest_version(str(sky_model.parent)) == str(sky_model)
    (tmp_path / "serving").mkdir()
    for version in ("9", "10", "notes"):
        (tmp_path / "serving" / version).mkdir()
        (tmp_path / "serving" / version / "saved_model.pb").touch()
    assert newest_version(str(tmp_path / "serving")) == str(tmp_path / "serving" / "10")
    light = write("light.png", encode(sky(255, 0), "PNG"))
    assert predict(str(sky_model.parent), [light]) == predict(str(sky_model), [light])


def test_a_half_pushed_version_does_not_hide_the_whole_one_before(sky_model, tmp_path):
    (tmp_path / "8").mkdir()
    (tmp_path / "7").symlink_to(sky_model)
    assert newest_version(str(tmp_path)) == str(tmp_path / "7")


def test_a_model_of_another_kind_is_refused(tmp_path, write):
    module = tf.Module()
    module.double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "foreign"), signatures=module.double)
    light = write("light.png", encode(sky(255, 0), "PNG"))
    with pytest.raises(OptionError, match="foreign has no assets.extra/serving.json: an earlier release or"):
        predict(str(tmp_path / "foreign"), [light])
    with pytest.raises(OptionError, match="foreign was not exported by feedline: it has no signature evaluate"):
        load_model(str(tmp_path / "foreign"))


def test_a_file_that_breaks_its_decoder_is_left_out(sky_model, write, tmp_path):
    data = encode(sky(255, 0), "PNG")
    bad, good = write("bad.png", data + b"<segv>"), write("good.png", data)
    refused: list[str] = []
    with broken_decoders(tmp_path):
        found = predict(str(sky_model), [bad, good], lambda _, error: refused.append(str(error)))
    assert [prediction.path for prediction in found] == [good]
    assert refused == [f"{bad} is not a usable image: decoder_crashed: the decoder failed: SIGSEGV, 3 times"]
