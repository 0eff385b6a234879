"""What a model says of the held-back images, and where it is most sure of a wrong class."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from beam_jobs import record, storage, tfrecord
from beam_jobs.errors import OptionError
from beam_jobs.types import LABEL_KINDS
from components.dataset_report import shown
from components.dataset_report.images import Facts, Images
from components.dataset_report.pictures import Album, Picture, Room, open_stored

MOST_IMAGES = 2000  # shown to the model
_BATCH = 32
_MOST_MISTAKES = 24
_SIDE_PX = 200
_ROOM_BYTES = 600_000
_SIGNATURE, _INPUT = "serving_default", "image_bytes"

Serve = Callable[[Sequence[bytes]], Mapping[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a model says of the first images of a split, in stored order, which is that of a hash.

    Attributes:
      split: name.
      images: in the split; those asked about are the first.
      rows: of `images.parquet`, int64[asked].
      true: class indices, int64[asked].
      said: class indices, int64[asked].
      probabilities: float32[asked, classes].
    """

    split: str
    images: int
    rows: np.ndarray
    true: np.ndarray
    said: np.ndarray
    probabilities: np.ndarray

    @property
    def certainty(self) -> np.ndarray:
        """Probability of the class the model says, float32[asked]."""
        return self.probabilities[np.arange(len(self.said)), self.said]


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One image of which the model is wrong.

    Attributes:
      key: identity, as it is shown.
      said: class the model says.
      true: class of the image.
      probability: of the class it says, 0-1.
      true_probability: of the class of the image.
      picture: of it; None when the section is full.
      facts: about it.
    """

    key: str
    said: str
    true: str
    probability: float
    true_probability: float
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Mistakes:
    """The worst mistakes.

    Attributes:
      rows: most certain first.
      wrong: how many images the model is wrong about.
      asked: how many it was asked about.
      images: in the split.
      split: name.
    """

    rows: Sequence[Mistake]
    wrong: int
    asked: int
    images: int
    split: str


def predict(images: Images, directory: str, model: str, most: int = MOST_IMAGES) -> Predictions:
    """Asks a model about the held-back split, the second one if there are several.

    Args:
      images: of the dataset.
      directory: of the dataset.
      model: directory of the SavedModel.
      most: images at most.

    Raises:
      OptionError: the model, or the dataset, cannot be used for that.
      CorruptDataset: a record is damaged.
    """
    dataset = images.dataset
    if dataset.label_kind != "single":
        raise OptionError(f"the images have {LABEL_KINDS[dataset.label_kind]}; a model is judged on one label each")
    split = list(dataset.splits)[min(1, len(dataset.splits) - 1)]
    found = images.is_written & (images.splits == split)
    order = np.lexsort((images.numbers("offset"), images.numbers("shard")))
    rows = order[found[order]][:most]
    serve = load_model(model)
    answers = [serve(batch) for batch in _batches(images, directory, split, len(rows))]
    probabilities = np.concatenate([answer["probabilities"] for answer in answers])
    if probabilities.shape[1] != len(dataset.labels):
        raise OptionError(
            f"the model knows {probabilities.shape[1]} classes, the dataset {len(dataset.labels)}; "
            "give the model that was trained on it"
        )
    said = np.concatenate([answer["class"] for answer in answers])
    named = [text.decode() for answer in answers for text in answer["text"]]
    for text, index in zip(named, said, strict=True):
        if text != dataset.labels[index]:
            raise OptionError(
                f"class {index} of the model is {text!r}, of the dataset {dataset.labels[index]!r}; "
                "give the model that was trained on it"
            )
    return Predictions(
        split=split,
        images=int(found.sum()),
        rows=rows,
        true=images.numbers("label_index")[rows],
        said=said,
        probabilities=probabilities,
    )


def load_model(model: str) -> Serve:
    """Loads the serving signature of a model: encoded images -> class, text, probability and probabilities.

    Raises:
      OptionError: there is no such model, or it was exported by something else.
    """
    import tensorflow as tf

    if not tf.io.gfile.exists(storage.join(model, "saved_model.pb")):
        raise OptionError(f"{shown.place(model)} holds no model; give the folder that `feedline run` pushed to")
    loaded = tf.saved_model.load(model)
    signature = loaded.signatures.get(_SIGNATURE)
    if signature is None or _INPUT not in signature.structured_input_signature[1]:
        raise OptionError(f"{shown.place(model)} was not exported by feedline: its signature takes no {_INPUT}")

    def serve(encoded: Sequence[bytes]) -> Mapping[str, np.ndarray]:
        # `loaded` must live as long as the signature: its variables die with it.
        answer = loaded.signatures[_SIGNATURE](**{_INPUT: tf.constant(list(encoded))})
        return {name: value.numpy() for name, value in answer.items()}

    return serve


def worst(images: Images, album: Album, predictions: Predictions) -> Mistakes:
    """Returns the images with the highest probability for a wrong class.

    Raises:
      CorruptDataset: a record is damaged.
    """
    wrong = np.flatnonzero(predictions.said != predictions.true)
    certain = predictions.certainty
    order = wrong[np.argsort(-certain[wrong], kind="stable")][:_MOST_MISTAKES]
    room = Room(_ROOM_BYTES)
    labels = images.dataset.labels
    rows = []
    for place in order:
        row = images.row(int(predictions.rows[place]))
        true, said = int(predictions.true[place]), int(predictions.said[place])
        rows.append(
            Mistake(
                key=shown.place(row["key"]),
                said=shown.text(labels[said], 60),
                true=shown.text(labels[true], 60),
                probability=float(certain[place]),
                true_probability=float(predictions.probabilities[place, true]),
                picture=album.draw(row, _SIDE_PX, room),
                facts=images.facts(row),
            )
        )
    return Mistakes(
        rows=rows,
        wrong=len(wrong),
        asked=len(predictions.said),
        images=predictions.images,
        split=predictions.split,
    )


def _batches(images: Images, directory: str, split: str, most: int) -> Iterator[list[bytes]]:
    """Yields lists of encoded images, the first `most` of a split in stored order."""
    batch: list[bytes] = []
    left = most
    for path in images.dataset.shard_paths(directory, split):
        with storage.open_read(path) as stream:
            for _, payload in tfrecord.read_records(stream, path):
                if not left:
                    break
                left -= 1
                batch.append(_encoded(record.decode(payload)))
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
    if batch:
        yield batch


def _encoded(values: Mapping[str, list]) -> bytes:
    if values[record.FORMAT][0] != b"raw":
        return values[record.ENCODED][0]
    out = io.BytesIO()  # serving takes files; a PNG holds the same pixels
    open_stored(values).save(out, "PNG")
    return out.getvalue()
