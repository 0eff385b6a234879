"""Renders the report from its templates, with the sections about a dataset, its model and its run."""

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
from components.dataset_report.evaluated import evaluation_view, predict, worst_mistakes
from components.dataset_report.gallery import DUPLICATES_ROOM_BYTES, duplicates, gallery, rejects
from components.dataset_report.histograms import HEIGHT, WIDTH, balance, distributions
from components.dataset_report.shown import Album, Room, open_images
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

    Pictures and rows are samples of bounded size; the page states how many are omitted. Equal datasets and arguments
    result in equal pages.

    Args:
      directory: directory of the dataset.
      evaluation: figures of Evaluator for a model of the dataset.
      verdict: content of the `verdict.json` of the gate.
      model: directory of a SavedModel trained on the dataset, for predictions on the evaluation split.
      input_options: `InputOptions` as JSON values, for the preview of augmentation.
      run: durations and lineage.
      source: directory of the source images, for pictures of the rejects; no file outside of it is opened.

    Raises:
      UsageError: the directory is not a dataset, or the model was not trained on it.
      CorruptDataset: a file of the dataset is damaged.
    """
    dataset = manifest.load(directory)
    kinds = lookup.select_leak_kinds(dataset.options.get("near_duplicates", "off"))
    rejected = schemas.read_rejects(storage.join(directory, manifest.REJECTS_NAME))
    album = Album(directory, dataset)
    room = Room(DUPLICATES_ROOM_BYTES)
    with open_images(directory, dataset) as images:
        predictions = predict(images, directory, model) if model else None
        return render_page(
            _TEMPLATES,
            "page",
            {
                "dataset": dataset,
                "card": card(dataset, lookup.find_leaks(images.database, kinds)),
                "verdict": None if verdict is None else verdict_view(verdict),
                "balance": balance(dataset),
                "gallery": gallery(images, album),
                "distributions": distributions(images),
                "chart": {"width": WIDTH, "height": HEIGHT},
                "rejects": rejects(rejected, source),
                "exact": duplicates(images, album, "cluster", room),
                "near": duplicates(images, album, "near", room),
                "augmentation": None if input_options is None else augmentation(images, album, input_options),
                "evaluation": evaluation_view(evaluation, predictions, dataset.labels),
                "mistakes": None if predictions is None else worst_mistakes(images, album, predictions),
                "run": None if run is None else run_view(run),
            },
            _FILTERS,
        )
