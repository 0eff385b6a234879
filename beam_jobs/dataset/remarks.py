"""Warnings of an ingest: sentences and counts for `dataset.json`, the summary and the report."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from beam_jobs.common.strings import plural, some
from beam_jobs.dataset.manifest import Remarks
from beam_jobs.errors import Float32Loss
from beam_jobs.images.annotations import BINARY_OR_IGNORED
from beam_jobs.options import IngestOptions
from beam_jobs.planning.plan import Plan
from beam_jobs.sources.archive import TarSource, ZipSource
from beam_jobs.sources.base import HiddenNames
from beam_jobs.sources.class_folders import ClassFolders, GlobSource
from beam_jobs.sources.factory import Source

_SHOWN_CLASSES = 8
_WHITE = 255
_CLASS_FOLDER_SOURCES = (ClassFolders, GlobSource, TarSource, ZipSource)  # sources whose first folder names the class
_SPLIT_NAME = re.compile(r"train(ing)?|test(ing)?|val(id(ation)?)?|eval(uation)?|dev|holdout", re.IGNORECASE)
_BATCH_NAME = re.compile(r"(span|batch|day|week|month|part|version|fold|shard|chunk)[-_ ]?\d+", re.IGNORECASE)
_FEW_IMAGES = 10  # a set of at most this many images is never large
_LARGE_NEAR_SET = 0.05  # share of all images above which a set of near duplicates is probably unintended
LARGE_NEAR_SET = "one set of near duplicates holds"  # start of the warning, by which the gate finds it


def collect_remarks(
    plan: Plan, source: Source, options: IngestOptions, hidden: HiddenNames, existing_images: int = 0
) -> Remarks:
    """Returns the warnings about a planned dataset, including images of earlier ingests.

    Args:
      plan: plan of the dataset.
      source: source of the new images.
      options: options of the ingest.
      hidden: hidden names that the scan skipped.
      existing_images: number of images in the dataset to which the ingest adds images.

    Raises:
      Float32Loss: float32 changes numbers of a user column, and `float32_loss` is `refuse`.
    """
    changes = plan.float32_changes
    float32_warnings = [column.warning(name) for name, column in changes.items()]
    if float32_warnings and options.float32_loss == "refuse":
        raise Float32Loss(f"{'. '.join(float32_warnings)}, or set --float32-loss report")
    return Remarks(
        warnings=(
            *_warn_of_empty_classes(plan, source),
            *_warn_of_large_near_set(plan, existing_images),
            *float32_warnings,
            *_warn_of_white_masks(plan, options),
            *_warn_of_class_names(plan, source),
        ),
        float32_changes={name: column.changed for name, column in changes.items()},
        hidden=hidden.count,
        hidden_names=tuple(hidden.examples),
    )


def _warn_of_empty_classes(plan: Plan, source: Source) -> Iterator[str]:
    folders = source.classes() if isinstance(source, ClassFolders) else ()
    empty_classes = sorted(set(folders) - set(plan.labels))
    if empty_classes:
        counted_folders = plural(len(empty_classes), "class folder holds", "class folders hold")
        yield f"{counted_folders} no good image, so the dataset has no such class: {some(empty_classes)}"


def largest_usual_set(images: int) -> int:
    """Returns the largest size of a set of near duplicates, among this many images, that causes no warning."""
    return max(_FEW_IMAGES, int(_LARGE_NEAR_SET * images))


def _warn_of_large_near_set(plan: Plan, existing_images: int) -> Iterator[str]:
    if plan.near_largest > largest_usual_set(existing_images + sum(split.images for split in plan.splits)):
        yield (
            f"{LARGE_NEAR_SET} {plan.near_largest:,} images: a chain of images, each a little "
            "different from the next, is one set; a smaller --near-distance splits it"
        )


def _warn_of_white_masks(plan: Plan, options: IngestOptions) -> Iterator[str]:
    """Warns when 255 counts as a class of the new masks, though it probably marks ignored pixels or a binary mask."""
    mask_values, limits = plan.mask_values, options.limits
    if limits.mask_classes or limits.mask_ignore == _WHITE or _WHITE not in mask_values or _WHITE - 1 in mask_values:
        return  # with 254, too, 255 is probably a class
    largest = max(mask_values - {_WHITE}, default=0)
    classes = f"0 to {largest}" if largest else "0"
    yield f"255 counts as a class of the masks, in addition to {classes}: {BINARY_OR_IGNORED}"


def _warn_of_class_names(plan: Plan, source: Source) -> Iterator[str]:
    if isinstance(source, _CLASS_FOLDER_SOURCES) and plan.labels:
        if all(map(_SPLIT_NAME.fullmatch, plan.labels)):
            yield (
                f"all classes are named like splits ({some(plan.labels)}): the first folder below the source is the "
                "class; give the folder of one split as the source, or a table with a --split-column"
            )
        if all(map(_BATCH_NAME.fullmatch, plan.labels)):
            yield (
                f"all classes are named like batches ({some(plan.labels)}): the first folder below the source is the "
                "class; give the folder of one batch as the source, or {SPAN} for its number"
            )
    spellings: dict[str, list[str]] = {}
    for label in plan.labels:
        spellings.setdefault(unicodedata.normalize("NFC", label).casefold(), []).append(label)
    similar_names = [names for _, names in sorted(spellings.items()) if len(names) > 1]
    if similar_names:
        listing = "; ".join(
            f"{', '.join(map(ascii, names[:-1]))} and {names[-1]!a}" for names in similar_names[:_SHOWN_CLASSES]
        )
        listing += "; ..." * (len(similar_names) > _SHOWN_CLASSES)
        yield f"names that differ only in case or Unicode form: {listing}; each is a separate class, rename all but one"
