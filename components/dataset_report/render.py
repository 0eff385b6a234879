"""Renders the report: what is known of a dataset, its model and its run, gathered section by section.

The templates of the report, and the words they have for numbers and names, are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from beam_jobs import storage
from beam_jobs.common import strings
from beam_jobs.common.html import render_page
from beam_jobs.dataset import lookup, manifest, schemas
from components.dataset_report import RunDetails, shown
from components.dataset_report.augmentation import augmentation
from components.dataset_report.card import card, run_view
from components.dataset_report.card import verdict as verdict_view
from components.dataset_report.evaluated import evaluated, predict, worst
from components.dataset_report.gallery import DUPLICATES_ROOM_BYTES, duplicates, gallery, rejects
from components.dataset_report.histograms import HEIGHT, WIDTH, balance, distributions
from components.dataset_report.shown import Album, Images, Room
from components.evaluation import Evaluation

_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS: Mapping[str, Callable[..., Any]] = {
    "line": shown.text,
    "place": shown.place,
    "number": shown.number,
    "percent": shown.percent,
    "weight": strings.size,
    "plural": strings.plural,
}


def pour(values: Mapping[str, Any]) -> str:
    """Returns the page.

    Args:
      values: what the templates name.
    """
    return render_page(_TEMPLATES, "page", values, _FILTERS)


def render(
    directory: str,
    evaluation: Evaluation | None = None,
    *,
    verdict: Mapping[str, Any] | None = None,
    model: str = "",
    input_options: Mapping[str, Any] | None = None,
    run: RunDetails | None = None,
    source: str = "",
) -> str:
    """Returns the report of a published dataset as one self-contained HTML page of under 10 MB.

    Pictures and rows are samples of bounded size; the page states what is left out. Equal datasets and arguments
    give equal pages.

    Args:
      directory: of the dataset.
      evaluation: what Evaluator measured of a model trained on it.
      verdict: content of the `verdict.json` of the gate.
      model: directory of a SavedModel trained on the dataset; it is asked about the held-back split.
      input_options: `InputOptions` as JSON values, for a preview of what the model sees.
      run: timings and lineage.
      source: directory that the images came from, to show what was rejected; nothing outside of it is opened.

    Raises:
      UsageError: the directory is not a dataset, or the model was not trained on it.
      CorruptDataset: a file of it is damaged.
    """
    dataset = manifest.load(directory)
    images = Images(schemas.read_published(storage.join(directory, manifest.IMAGES_NAME)), dataset)
    kinds = lookup.leak_kinds_of(dataset.options.get("near_duplicates", "off"))
    rejected = schemas.read_published(storage.join(directory, manifest.REJECTS_NAME))
    album = Album(directory, dataset)
    room = Room(DUPLICATES_ROOM_BYTES)
    predictions = predict(images, directory, model) if model else None
    return pour(
        {
            "dataset": dataset,
            "card": card(dataset, lookup.find_leaks(images.table, kinds)),
            "verdict": None if verdict is None else verdict_view(verdict),
            "balance": balance(dataset),
            "gallery": gallery(images, album),
            "distributions": distributions(images),
            "chart": {"width": WIDTH, "height": HEIGHT},
            "rejects": rejects(rejected, source),
            "exact": duplicates(images, album, "cluster", room),
            "near": duplicates(images, album, "near", room),
            "augmentation": None if input_options is None else augmentation(images, album, input_options),
            "evaluated": evaluated(evaluation, predictions, dataset.labels),
            "mistakes": None if predictions is None else worst(images, album, predictions),
            "run": None if run is None else run_view(run),
        }
    )
