"""Names that well-known writers of image records give to features: a table, and no guess beyond it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from beam_jobs.dataset import record


@dataclass(frozen=True, kw_only=True)
class FeatureRoles:
    """Which features of records hold the image, its class and its identity.

    Attributes:
      looks_like: who writes records with these names; empty when the names are unknown.
      image: features that hold the encoded image, or its bare pixels.
      labels: features that hold the class, as a number or as a name.
      keys: features that hold the identity of the image.
      marks: features that tell these records from others with the same `image`.
    """

    looks_like: str = ""
    image: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    marks: frozenset[str] = frozenset()

    def of(self, feature: str) -> str:
        """Returns `image`, `label` or `key`; empty for a feature without a role."""
        roles = {"image": self.image, "label": self.labels, "key": self.keys}
        return next((role for role, names in roles.items() if feature in names), "")


_OBJECT_LABELS = ("image/object/class/label", "image/object/class/text")

# The first row counts that has an image and all of its marks among the features of a file.
KNOWN = (
    FeatureRoles(
        looks_like="Feedline",
        image=(record.ENCODED,),
        labels=(record.LABEL, record.TEXT, *_OBJECT_LABELS),
        keys=(record.FILENAME,),
        marks=frozenset({record.FORMAT, record.FILENAME, record.SHA256, record.BYTES, record.ASPECT_RATIO}),
    ),
    FeatureRoles(
        looks_like="TensorFlow Object Detection",
        image=("image/encoded",),
        labels=_OBJECT_LABELS,
        keys=("image/filename", "image/source_id"),
        marks=frozenset({"image/object/class/label"}),
    ),
    FeatureRoles(
        looks_like="TF-Slim",
        image=("image/encoded",),
        labels=("image/class/label", "image/class/text", "image/class/synset"),
        keys=("image/filename",),
    ),
    FeatureRoles(
        looks_like="TFDS",
        image=("image",),
        labels=("label", "coarse_label", "objects/label"),
        keys=("file_name", "image/filename", "image/id", "id"),
    ),
    FeatureRoles(
        looks_like="WebDataset",
        image=("jpg", "jpeg", "png", "webp"),
        labels=("cls",),
        keys=("__key__",),
    ),
    FeatureRoles(looks_like="the TFRecord tutorial of TensorFlow", image=("image_raw",), labels=("label",)),
)


def roles_of(features: Collection[str]) -> FeatureRoles:
    """Returns the row of the table that fits, reduced to the features that are there; an empty one when none fits.

    Args:
      features: names of all features of the records.
    """
    for known in KNOWN:
        image, labels, keys = (_present(names, features) for names in (known.image, known.labels, known.keys))
        if image and known.marks <= set(features):
            return replace(known, image=image, labels=labels, keys=keys)
    return FeatureRoles()


def _present(names: tuple[str, ...], features: Collection[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in features)
