from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from beam_jobs.dataset import manifest, record
from beam_jobs.errors import CorruptDataset, OptionError
from beam_jobs.ingest import run
from beam_jobs.options import IngestOptions, TableColumns
from tests import image_table
from tests.make_images import crop, encode
from tests.trainer.batches import graph, ops_of
from tests.trainer.conftest import keys_of
from trainer.input.parse import (
    BOX_LABELS,
    BOXES,
    MASK,
    batch_ragged,
    columns_spec,
    decode_mask,
    deliver_columns,
    join_targets,
)
from trainer.input_fn import KEY, make_dataset
from trainer.ops import IMAGE
from trainer.options import InputOptions

pytestmark = pytest.mark.filterwarnings("ignore")

HEIGHT, WIDTH = 40, 60
EXTRA = ("age", "dose", "site", "tags", "scores", "visits", "note")
COUNT = 20


def cells_of(number: int) -> dict[str, Any]:
    """The user columns of one image: three that are always there, lists of any length, and cells that may be empty."""
    return {
        "age": 30 + number,
        "dose": number / 4,
        "site": f"site {number % 3}",
        "tags": [f"t{index}" for index in range(number % 4)],
        "scores": [number + index / 2 for index in range(number % 3)],
        "visits": number if number % 2 else None,
        "note": "seen" if number == 3 else "",
    }


def boxes_of(number: int) -> list[tuple[int, int, int, int]]:
    """xmin, ymin, width, height in pixels; every third image has none."""
    return [(index, 2 * index, 12 + index, 16) for index in range(number % 3)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A COCO dataset with boxes, class masks and every sort of user column. Read only."""
    source, out = tmp_path_factory.mktemp("coco"), tmp_path_factory.mktemp("coco_dataset")
    images, annotations = [], []
    for number in range(COUNT):
        name = f"{number:02d}.png"
        (source / name).write_bytes(encode(crop(number, HEIGHT, WIDTH), "PNG"))
        (source / f"mask_{name}").write_bytes(encode(np.full((HEIGHT, WIDTH), number, np.uint8), "PNG"))
        mask = {"labels_file": f"mask_{name}"}
        images.append({"id": number, "file_name": name, "height": HEIGHT, "width": WIDTH, **mask, **cells_of(number)})
        for box in boxes_of(number):
            kind = {"category_id": 1 + len(annotations) % 2, "area": 12.0, "iscrowd": 0}
            annotations.append({"id": len(annotations), "image_id": number, "bbox": box, **kind})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (source / "all.json").write_text(json.dumps(document))
    columns = TableColumns(mask="labels_file", extra=EXTRA)
    run(IngestOptions(source=str(source / "all.json"), out=str(out), splits={"train": 1}, shards=2, columns=columns))
    return out


def options(**values) -> InputOptions:
    return InputOptions(**{"batch_size": 4, **values})


def spec_of(directory: Path, given: InputOptions) -> dict[str, Any]:
    return columns_spec(manifest.load(str(directory)), str(directory), given)


def pipeline(directory: Path, given: InputOptions, drop_remainder: bool = False) -> tf.data.Dataset:
    """The stages of an input pipeline: parsed in batches, taken apart, prepared one by one, batched, delivered."""
    dataset = manifest.load(str(directory))
    spec = {**record.feature_spec([record.FILENAME]), **spec_of(directory, given)}
    stream = tf.data.TFRecordDataset(dataset.shard_paths(str(directory), "train")).batch(7)
    stream = stream.map(lambda serialized: join_targets(tf.io.parse_example(serialized, spec)), 2).unbatch()
    stream = stream.map(decode_mask, 2)
    stream = batch_ragged(stream, given.batch_size, drop_remainder)
    return stream.map(lambda features: deliver_columns(features, given), 2)


def by_key(stream: tf.data.Dataset, name: str) -> dict[str, Any]:
    found = {}
    for features in stream:
        value = features[name]
        rows = value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        found.update(zip((key.decode() for key in features[record.FILENAME].numpy()), rows, strict=True))
    return found


def expected_cell(number: int, name: str) -> Any:
    value = cells_of(number)[name]
    values = value if isinstance(value, list) else [] if value in (None, "") else [value]
    values = [item.encode() if isinstance(item, str) else item for item in values]
    return values[0] if name in ("age", "dose", "site") else values


def test_a_column_is_parsed_as_what_its_cells_hold(many):
    spec = spec_of(many, options(columns=EXTRA))
    fixed, ragged = tf.io.FixedLenFeature, tf.io.RaggedFeature
    assert {name.removeprefix("extra/"): (type(feature), feature.dtype) for name, feature in spec.items()} == {
        "age": (fixed, tf.int64),
        "dose": (fixed, tf.float32),
        "site": (fixed, tf.string),
        "tags": (ragged, tf.string),
        "scores": (ragged, tf.float32),
        "visits": (ragged, tf.int64),
        "note": (ragged, tf.string),
    }


def test_ragged_columns_hold_the_values_of_the_source(many):
    found = by_key(pipeline(many, options(columns=EXTRA)), "extra/tags")
    assert sorted(found) == sorted(keys_of(many, "train"))
    assert found == {f"{number:02d}.png": expected_cell(number, "tags") for number in range(COUNT)}


def test_dense_columns_are_padded_with_zeros_to_the_longest_of_the_batch(many):
    pads = {"tags": b"", "scores": 0.0, "visits": 0, "note": b""}
    widths = set()
    for batch in pipeline(many, options(columns=EXTRA, columns_form="dense")):
        numbers = [int(key[:2]) for key in batch[record.FILENAME].numpy()]
        for name, pad in pads.items():
            rows = [expected_cell(number, name) for number in numbers]
            longest = max(map(len, rows))
            assert batch[f"extra/{name}"].numpy().tolist() == [row + [pad] * (longest - len(row)) for row in rows]
            widths.add((name, longest))
        assert batch["extra/age"].numpy().tolist() == [30 + number for number in numbers]
    assert len(widths) > len(pads)  # some batches are wider than others


def test_no_sparse_tensor_is_serialised_anywhere(many):
    for form in ("ragged", "dense"):
        given = options(columns=EXTRA, columns_form=form, targets=("boxes", "mask"))
        ops = ops_of(graph(pipeline(many, given)))
        assert "ParseExampleV2" in ops
        assert not {op for op in ops if "Sparse" in op}
    # What the test looks for is there when a column is parsed the way that every tutorial shows.
    naive = tf.data.TFRecordDataset([]).batch(2)
    naive = naive.map(lambda data: tf.io.parse_example(data, {"extra/tags": tf.io.VarLenFeature(tf.string)}))
    assert "DeserializeSparse" in ops_of(graph(naive.unbatch().map(lambda parsed: parsed["extra/tags"].values)))


def corner_of(window: np.ndarray, image: np.ndarray) -> tuple[int, int]:
    """Top and left of the place where an image shows a window of it."""
    side = len(window)
    places = np.lib.stride_tricks.sliding_window_view(image, (side, side, 3))[:, :, 0]
    ((top, left),) = np.argwhere((places == window).all((2, 3, 4)))
    return int(top), int(left)


@pytest.mark.parametrize(
    ("chain", "outputs", "targets"),
    [
        ("multi_crop(2, 24, keep=0.0)", 4, ("boxes", "mask")),
        ("multi_crop(1, 24, mirror=False, keep=0.0)", 1, ("boxes",)),
    ],
)
def test_each_crop_has_the_boxes_and_masks_of_its_image(many, chain, outputs, targets):
    given = options(
        image_side_px=24, train_ops=f"decode|{chain}", targets=targets, columns=("tags",), shuffle_mb=0.03, cache="none"
    )
    firsts = np.cumsum([0, *(len(boxes_of(number)) for number in range(COUNT))])
    seen = 0
    for features, _ in make_dataset(str(many), "train", given, training=True):
        assert features[IMAGE].shape == (4, 24, 24, 3)
        for row, key in enumerate(features[KEY].numpy()):
            number, window, image = int(key[:2]), features[IMAGE][row].numpy(), crop(int(key[:2]), HEIGHT, WIDTH)
            mirrored = seen // given.lanes % 2 == 1  # groups of eight records: all first crops, all of their mirrors
            top, left = corner_of(window[:, ::-1] if mirrored and outputs > 1 else window, image)
            rows, labels = [], []
            for index, (x, y, width, height) in enumerate(boxes_of(number)):
                box = np.clip(np.array([y - top, x - left, y + height - top, x + width - left]) / 24, 0, 1)
                if mirrored and outputs > 1:
                    box[[1, 3]] = 1 - box[[3, 1]]
                if box[0] < box[2] and box[1] < box[3]:
                    rows.append(box)
                    labels.append((firsts[number] + index) % 2)
            np.testing.assert_allclose(features[BOXES][row].numpy(), np.reshape(rows, [-1, 4]), atol=1e-6)
            assert features[BOX_LABELS][row].numpy().tolist() == labels
            if "mask" in targets:
                assert set(np.unique(features[MASK][row])) == {number}
            seen += 1
    assert seen == COUNT * outputs


def test_nothing_named_costs_nothing(many):
    assert spec_of(many, options()) == {}
    stream = tf.data.Dataset.from_tensors({"image": tf.zeros([4, 4, 3], tf.uint8)})
    batches = batch_ragged(stream, 2, drop_remainder=True)
    assert {op for op in ops_of(graph(batches)) if op.endswith("V2")} == {"BatchDatasetV2"}
    assert batches.element_spec["image"].shape == (2, 4, 4, 3)


def test_the_last_batch_is_dropped_or_kept_like_that_of_images(many):
    stream = pipeline(many, options(columns=("tags",), batch_size=8), drop_remainder=False)
    assert [int(features[record.FILENAME].shape[0]) for features in stream] == [8, 8, 4]


def test_an_unknown_column_is_answered_with_the_nearest(many):
    with pytest.raises(OptionError, match=r"columns: there is no user column 'agee'; did you mean age\?"):
        spec_of(many, options(columns=("agee",)))


def test_what_a_dataset_does_not_have_is_refused_in_one_line(shades):
    with pytest.raises(OptionError, match="there is no user column 'age', the images have none"):
        spec_of(shades, options(columns=("age",)))
    with pytest.raises(OptionError, match=r"targets contains 'boxes', but the images of .* have no boxes$"):
        spec_of(shades, options(targets=("boxes",)))
    with pytest.raises(OptionError, match=r"targets contains 'mask', but the images of .* have no masks$"):
        spec_of(shades, options(targets=("mask",)))


def ingest_table(folder: Path, ages: list[str]) -> None:
    lines = ["image,label,age"]
    for number, age in enumerate(ages):
        (folder / f"{number}.png").write_bytes(encode(crop(number, 20, 20), "PNG"))
        lines.append(f"{number}.png,cat,{age}")
    (folder / "table.csv").write_text("\n".join(lines))
    columns = TableColumns(extra=("age",))
    out = folder / "out"
    more = {"append": True} if out.exists() else {}
    run(IngestOptions(source=str(folder / "table.csv"), out=str(out), splits={"train": 1}, columns=columns, **more))


def test_a_column_without_a_single_value_is_empty_everywhere(tmp_path):
    ingest_table(tmp_path, ["", ""])
    given = options(columns=("age",))
    assert spec_of(tmp_path / "out", given)["extra/age"].dtype == tf.int64
    assert list(by_key(pipeline(tmp_path / "out", given), "extra/age").values()) == [[], []]


def test_a_column_whose_later_part_holds_another_type_is_refused(tmp_path):
    ingest_table(tmp_path, ["1", "2"])
    assert spec_of(tmp_path / "out", options(columns=("age",)))["extra/age"].dtype == tf.int64
    ingest_table(tmp_path, ["1", "2", "2.5"])
    with pytest.raises(
        OptionError, match=r"columns: user column 'age' has the types int and float, .*; ingest all parts together"
    ):
        spec_of(tmp_path / "out", options(columns=("age",)))


def test_a_table_that_cannot_be_read_is_an_error_that_names_it(many, tmp_path):
    copied = shutil.copytree(many, tmp_path / "copied")
    image_table.files(copied)[0].write_bytes(b"")
    with pytest.raises(CorruptDataset, match=r"images/part-.*\.parquet cannot be read"):
        spec_of(copied, options(columns=("age",)))
