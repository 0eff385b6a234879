from __future__ import annotations

import re
import time
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest
import tensorflow as tf

from beam_jobs.errors import CorruptDataset, OptionError, SourceError
from tests.make_images import flipped, grey_image
from tests.trainer.conftest import keys_of
from tests.trainer.streams.test_make import greys, options
from trainer.input.position import Position
from trainer.input_fn import make_dataset
from trainer.streams import FOREVER, TFDS, RecordLayout, explain_files, make_file_stream

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(60)]

CLASSES = ("dark", "light")
NAMED = RecordLayout(image="image", label="label", key="id")


def example(grey: int, **more) -> bytes:
    """A record as TFDS writes it, with a few features besides."""
    image = grey_image(grey % 256)
    values = {"image": image, "label": grey % 2, "id": f"{grey:03d}", "number": grey, "name": CLASSES[grey % 2]}
    values["both"] = [name for bit, name in enumerate(CLASSES) if grey >> bit & 1]
    features = {name: feature(value) for name, value in {**values, **more}.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString(deterministic=True)


def feature(value) -> tf.train.Feature:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(item, int) for item in values) and values:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    values = [item.encode() if isinstance(item, str) else item for item in values]
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def write(folder: Path, compression: str = "", count: int = 60, files: int = 3) -> str:
    """Writes files of as many records each and returns the pattern that matches them."""
    folder.mkdir(exist_ok=True, parents=True)
    for number in range(files):
        with tf.io.TFRecordWriter(str(folder / f"x.tfrecord-{number:05d}-of-{files:05d}"), compression) as writer:
            for grey in range(number * count // files, (number + 1) * count // files):
                writer.write(example(grey))
    return str(folder / "x.tfrecord-*")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Compression -> pattern of three files with 60 records in all. Read only."""
    folder = tmp_path_factory.mktemp("foreign")
    return {kind: write(folder / (kind or "NONE"), kind) for kind in ("", "GZIP", "ZLIB")}


def stream_of(files, training=True, layout=NAMED, compression="auto", epochs=1, start=Position(), **given):  # noqa: B008
    return make_file_stream(files, options(**given), training, layout, compression, epochs, start)


def contents(stream) -> list[tuple]:
    return [
        (key.decode(), image.tobytes(), label.tolist(), tuple(draw))
        for features, labels in stream.as_numpy_iterator()
        for key, image, draw, label in zip(features["key"], features["image"], features["draw"], labels, strict=True)
    ]


@pytest.mark.parametrize(("kind", "training"), [("GZIP", True), ("ZLIB", False)])
def test_compressed_files_give_the_same_records_as_uncompressed_files(written, kind, training):
    plain = contents(stream_of(written[""], training, shuffle="window"))
    assert len(plain) == 60
    assert contents(stream_of(written[kind], training, shuffle="window")) == plain
    assert contents(stream_of(written[kind], training, compression=kind.lower(), shuffle="window")) == plain


def test_files_of_different_compression_are_read_together(written):
    files = [f"{pattern[:-1]}{number:05d}-of-00003" for number, pattern in enumerate(written.values())]
    assert greys(stream_of(files, training=False)) == list(range(60))


def test_training_reads_every_record_once_an_epoch_in_another_order(written):
    orders = [greys(stream_of(written[""], shuffle="window", start=Position(epoch=epoch))) for epoch in range(3)]
    assert all(sorted(order) == list(range(60)) for order in orders)
    assert len({tuple(order) for order in orders} | {tuple(range(60))}) == 4
    assert greys(stream_of(written[""], shuffle="window", seed=1)) != orders[0]
    tf.random.set_seed(7)
    assert greys(stream_of(written[""], shuffle="window")) == orders[0]


def test_speed_settings_change_no_record(written):
    changed = stream_of(written[""], threads=1, parse_batch=7, prefetch_batches=5)
    assert contents(changed) == contents(stream_of(written[""]))


def test_the_window_is_counted_in_bytes(written):
    one = len(example(0)) / 1e6
    order = greys(stream_of(written[""], shuffle="window", shuffle_mb=5.5 * one, readers=1))
    first = [greys(stream_of(written[""], shuffle="window", shuffle_mb=0, readers=1))][0]
    moved = [first.index(grey) - place for place, grey in enumerate(order)]
    assert 2 <= max(moved) <= 6  # a record comes early by no more than the window


@pytest.mark.parametrize(("mode", "records"), [("window", 1), ("none", 60)])
def test_starting_later_gives_exactly_what_was_left(written, mode, records):
    whole = contents(stream_of(written["GZIP"], shuffle=mode, epochs=3))
    start = Position(epoch=1, records=records)
    assert contents(stream_of(written["GZIP"], shuffle=mode, epochs=2, start=start)) == whole[60 + records :]
    endless = stream_of(written["GZIP"], shuffle=mode, epochs=FOREVER, start=start).unbatch().batch(1)
    assert contents(endless.take(120 - records)) == whole[60 + records :]


def test_our_own_datasets_need_no_layout(shades):
    stream = make_file_stream(f"{shades}/Split-train/*", options(), training=False)
    published = make_dataset(str(shades), "train", options(), training=False)
    assert stream.element_spec == published.element_spec
    assert [key for key, *_ in contents(stream)] == keys_of(shades, "train")
    assert contents(stream) == contents(published)


def test_records_without_a_key_are_named_by_file_and_place(written, tmp_path):
    seen = contents(stream_of(written["ZLIB"], training=False, layout=TFDS))
    assert [key for key, *_ in seen[18:22]] == [
        "x.tfrecord-00000-of-00003:18",
        "x.tfrecord-00000-of-00003:19",
        "x.tfrecord-00001-of-00003:0",
        "x.tfrecord-00001-of-00003:1",
    ]
    assert len({draw for *_, draw in seen}) == 60
    mixed = contents(stream_of(written[""], layout=TFDS, shuffle="window"))
    assert sorted(mixed) == sorted(seen)
    write(tmp_path / "a", count=2, files=1)
    write(tmp_path / "b", count=2, files=1)
    both = contents(stream_of(str(tmp_path / "*" / "x*"), training=False, layout=TFDS))
    assert [key for key, *_ in both] == [
        f"{name}/x.tfrecord-00000-of-00001:{place}" for name in "ab" for place in (0, 1)
    ]


def test_a_dataset_that_tfds_prepared_is_read_as_it_is(tmp_path):
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {"image": tfds.features.Image(shape=(None, None, 3)), "label": tfds.features.ClassLabel(num_classes=2)}
    )

    def rows():
        for grey in range(10):
            yield f"{grey}", {"image": np.full((9, 11, 3), grey, np.uint8), "label": grey % 2}

    tfds.dataset_builders.store_as_tfds_dataset(
        name="greys", version="1.0.0", features=features, data_dir=tmp_path, split_datasets={"train": rows()},
        disable_shuffling=True,
    )  # fmt: skip
    seen = contents(stream_of(str(tmp_path / "greys/1.0.0/greys-train.tfrecord-*"), training=False, layout=TFDS))
    assert [(image[0], label) for _, image, label, _ in seen] == [(grey, grey % 2) for grey in range(10)]


@pytest.mark.parametrize(
    ("layout", "labels"),
    [
        (RecordLayout(image="image", label="", key="id"), [-1, -1, -1, -1]),
        (RecordLayout(image="image", text="name", key="number", classes=CLASSES), [0, 1, 0, 1]),
        (RecordLayout(image="image", text="name", key="id", classes=CLASSES[::-1]), [1, 0, 1, 0]),
        (
            RecordLayout(image="image", text="both", key="id", classes=CLASSES, multi=True),
            [[0, 0], [1, 0], [0, 1], [1, 1]],
        ),
        (RecordLayout(image="image", label="label", key="id", classes=CLASSES, multi=True), [[1, 0], [0, 1]] * 2),
    ],
    ids=str,
)
def test_labels_come_from_an_index_a_name_or_several(written, layout, labels):
    seen = contents(stream_of(written[""], training=False, layout=layout))
    assert [label for _, _, label, _ in seen[:4]] == labels
    assert len(seen) == 60


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"image": "picture"}, r"x\.tfrecord-00000-of-00003: there is no feature 'picture'; known are both, id, image"),
        ({"label": "lable"}, r"there is no feature 'lable'; did you mean label\?"),
        ({"label": "name"}, r"the feature 'name' is a bytes_list; the layout needs an int64_list"),
        ({"image": "number"}, r"the feature 'number' is an int64_list; the layout needs a bytes_list"),
    ],
)
def test_a_layout_that_does_not_fit_is_answered_in_one_line(written, layout, message):
    given = {"image": "image", "label": "label", "key": "id", **layout}
    with pytest.raises(OptionError, match=message):
        stream_of(written[""], layout=RecordLayout(**given))


def test_a_layout_that_contradicts_itself_is_refused():
    for wrong in ({"text": "name"}, {"multi": True}):
        with pytest.raises(OptionError, match="needs classes"):
            RecordLayout(**wrong)
    with pytest.raises(OptionError, match="the image of a layout is empty"):
        RecordLayout(image="")


def test_a_class_that_is_not_in_the_list_is_an_error(written):
    layout = RecordLayout(image="image", text="name", key="id", classes=("dark", "bright"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a class that is not in classes"):
        list(stream_of(written[""], layout=layout))


@pytest.mark.parametrize(("kind", "claimed"), [("", "GZIP"), ("GZIP", "ZLIB"), ("ZLIB", "")])
def test_the_wrong_compression_is_a_clear_error_before_anything_is_read(written, kind, claimed):
    expected = rf"of-00003 begins like {kind.lower() or 'none'}, but compression is '{claimed.lower() or 'none'}'"
    with pytest.raises(SourceError, match=expected):
        stream_of(written[kind], compression=claimed.lower() or "none")


def torn(source: str, folder: Path, keep) -> tuple[str, Path]:
    """Copies the files of a pattern, cuts the second to `keep` bytes; returns the pattern and that file."""
    folder.mkdir(exist_ok=True)
    files = sorted(Path(source).parent.iterdir())
    for file in files:
        (folder / file.name).write_bytes(file.read_bytes())
    victim = folder / files[1].name
    victim.write_bytes(victim.read_bytes()[: keep(victim.stat().st_size)])
    return str(folder / "x*"), victim


@pytest.mark.parametrize(
    ("kind", "training", "keep"),
    [("GZIP", True, lambda size: size // 2), ("ZLIB", True, lambda size: size - 1), ("GZIP", True, lambda size: 15)],
    ids=["gzip, half", "zlib, without its end", "gzip, its head"],
)
def test_a_truncated_compressed_file_raises_an_error_with_its_name(written, tmp_path, kind, training, keep):
    pattern, victim = torn(written[kind], tmp_path / "torn", keep)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(stream_of(pattern, training))
    assert f"{victim} cannot be unpacked: " in caught.value.message


def test_a_compressed_file_with_a_changed_byte_is_an_error_that_names_it(written, tmp_path):
    pattern, victim = torn(written["GZIP"], tmp_path / "torn", lambda size: size)
    victim.write_bytes(flipped(victim.read_bytes(), -6))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=re.escape(f"{victim} cannot be unpacked: CRC check failed")
    ):
        list(stream_of(pattern))


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_a_torn_first_file_is_an_error_at_once(written, tmp_path, kind):
    pattern, _ = torn(written[kind], tmp_path / "torn", lambda size: size)
    first = min((tmp_path / "torn").iterdir())
    first.write_bytes(first.read_bytes()[:500])
    with pytest.raises(CorruptDataset, match=re.escape(str(first))):
        stream_of(pattern)


def test_damage_of_a_plain_file_ends_training_and_is_explained(written, tmp_path):
    pattern, victim = torn(written[""], tmp_path / "torn", lambda size: size - 5)
    with pytest.raises(tf.errors.DataLossError) as caught:
        list(stream_of(pattern))
    explained = explain_files(pattern, caught.value)
    assert isinstance(explained, CorruptDataset)
    assert str(explained).startswith(f"{victim} ends inside the record at offset ")
    assert "training stopped: " in str(explained)
    assert explain_files(written[""], caught.value) is None


def test_a_file_that_goes_away_is_an_error(written, tmp_path):
    for kind in ("", "GZIP"):
        pattern, victim = torn(written[kind], tmp_path / (kind or "none"), lambda size: size)
        stream = stream_of(pattern)
        victim.unlink()
        with pytest.raises(tf.errors.OpError, match=re.escape(victim.name)):
            list(stream)


def test_what_cannot_be_read_is_refused_before_any_batch(written, tmp_path):
    with pytest.raises(SourceError, match=r"there is no file .*none\*"):
        stream_of(str(tmp_path / "none*"))
    with pytest.raises(SourceError, match=r"there is no file \[\]"):
        stream_of([])
    with pytest.raises(SourceError, match="missing cannot be read: No such file"):
        stream_of([str(tmp_path / "missing")])
    with pytest.raises(OptionError, match="compression is 'bzip2'; it must be one of auto, none, gzip, zlib"):
        stream_of(written[""], compression="bzip2")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(SourceError, match="empty holds no record"):
        stream_of(str(tmp_path / "empty"))
    (tmp_path / "xz").write_bytes(b"\xfd7zXZ\x00" + bytes(20))
    with pytest.raises(SourceError, match="xz is compressed with xz; TFRecord files must be plain"):
        stream_of(str(tmp_path / "xz"))
    (tmp_path / "text").write_bytes(b"image,label\na.png,cat\n" * 9)
    with pytest.raises(CorruptDataset, match="text has a corrupt length at offset 0"):
        stream_of(str(tmp_path / "text"))


def test_a_plain_record_whose_length_looks_like_zlib_is_read_as_plain(tmp_path):
    for size in range(30_000, 70_000):
        head = size.to_bytes(8, "little")
        if head[0] & 0x8F == 8 and int.from_bytes(head[:2], "big") % 31 == 0:
            break
    pad = size - len(example(3, pad=b"x" * 20_000)) + 20_000
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as writer:
        writer.write(example(3, pad=b"x" * pad))
    head = (tmp_path / "a.tfrecord").read_bytes()[:2]
    assert int.from_bytes(head, "big") % 31 == 0
    with pytest.raises(zlib.error):
        zlib.decompress((tmp_path / "a.tfrecord").read_bytes())
    assert greys(stream_of(str(tmp_path / "a*"))) == [3]


def test_open_files_do_not_grow_with_the_number_of_files(tmp_path):
    pattern = write(tmp_path / "many", count=6000, files=120)  # more than is read ahead
    next(stream := iter(stream_of(pattern, readers=4, shuffle="none")))
    looks: list[set[str]] = []
    while not any(looks[-1:]) or looks[-1:] * 20 != looks[-20:]:  # until the readers rest: in motion they have up to 12
        time.sleep(0.02)
        looks.append({file.path for file in psutil.Process().open_files() if "/many/" in file.path})
    assert len(looks[-1]) <= 8
    assert len(list(stream)) == 5999
