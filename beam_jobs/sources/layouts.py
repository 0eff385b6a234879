"""Which feature of a `tf.train.Example` holds what, and its features as the cells of a row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from beam_jobs.dataset import record
from beam_jobs.errors import BadImage, RejectReason, SourceError
from beam_jobs.options import TableColumns
from beam_jobs.types import ExtraValue

DEFAULTS = TableColumns()

# Columns of our own; no feature of a user has such a name.
URI, SPLIT = "\0uri", "\0split"

_NO_CLASS = -1  # what TFDS writes for an image whose class is not known

Features = Mapping[str, list]
Observed = Mapping[str, type | None]  # type of the values of each feature; None for those that never had any


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What the features of the records of a source are.

    Attributes:
      columns: feature names; `image` is the one that holds the image.
      kinds: type of each extra column.
      names: class names by feature, of features that hold indices into them; none for classes without names.
    """

    columns: TableColumns
    kinds: Mapping[str, type] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def image(self, features: Features) -> bytes:
        """Returns the bytes of the image.

        Raises:
          BadImage: there is none, or more than one.
        """
        name = self.columns.image
        values = features.get(name, [])
        if len(values) == 1 and isinstance(values[0], bytes):
            return values[0]
        kind = f" of {type(values[0]).__name__}" if values else ""
        detail = f"feature {name!r} holds {len(values)} values{kind}; it must hold the bytes of one image file"
        raise BadImage(RejectReason.BAD_MEMBER, detail)

    def row(self, features: Features, uri: str, split: str) -> dict[str, Any]:
        """Returns column -> cell of all facts about an image.

        Args:
          features: of the record.
          uri: what to call the image.
          split: of the file.

        Raises:
          BadImage: a feature does not hold what it should.
        """
        wanted = set(self.columns.named().values()) - {self.columns.image, SPLIT}
        return {URI: uri, SPLIT: split} | {name: self._cell(features.get(name, []), name) for name in wanted}

    def _cell(self, values: list, name: str) -> Any:
        if name in self.names:
            values = [_class_name(value, name, self.names[name]) for value in values if value != _NO_CLASS]
        # What is not UTF-8 stays recognisable, so that the row is refused for it.
        cells = [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value for value in values]
        if cells and name in self.kinds and type(cells[0]) is not self.kinds[name]:
            kind, before = type(cells[0]).__name__, self.kinds[name].__name__
            detail = f"feature {name!r} holds {kind}; in the first records it was {before}"
            raise BadImage(RejectReason.BAD_ANNOTATION, detail)
        if name == self.columns.labels:
            return [str(cell) for cell in cells]
        return cells if len(cells) > 1 else cells[0] if cells else None


def layout_of(
    path: str,
    columns: TableColumns,
    observed: Observed,
    *,
    split_of_file: bool,
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> Layout:
    """Returns the layout of a source, with the customary keys of image records for defaults that are not there.

    Args:
      path: of the source, for errors.
      columns: which feature holds what.
      observed: features of the first records.
      split_of_file: whether the split is that of the file, and no feature.
      names: class names by feature.

    Raises:
      SourceError: a feature that is named is not there; the message lists those that are.
    """
    image, label = columns.image, columns.label
    if image == DEFAULTS.image and image not in observed:
        image = record.ENCODED
    if not columns.labels and label == DEFAULTS.label and label not in observed:
        label = next((name for name in (record.TEXT, record.LABEL) if name in observed), label)
    key = columns.key or (record.FILENAME if record.FILENAME in observed else "")
    split = SPLIT if split_of_file else columns.split
    resolved = replace(columns, image=image, label=label, key=key, split=split)
    for role, name in resolved.named().items():
        if name not in observed and name != SPLIT:
            known = ", ".join(map(repr, sorted(observed))) or "none"
            raise SourceError(f"{path} has no feature {name!r} for the {role}; its first records have {known}")
    names = names or {}
    kinds = {name: str if names.get(name) else _extra_kind(observed[name]) for name in columns.extra}
    return Layout(columns=resolved, kinds=kinds, names=names)


def _extra_kind(observed: type | None) -> type[ExtraValue]:
    return observed if observed in (int, float) else str


def _class_name(value: Any, name: str, names: tuple[str, ...]) -> Any:
    if not names:
        return value
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise BadImage(RejectReason.BAD_ANNOTATION, f"feature {name!r} holds {value!r:.60}; it has {len(names)} names")
    return names[value]
