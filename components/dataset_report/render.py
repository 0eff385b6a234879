"""Renders the report about a dataset, a model and a run, and the folder of pages with all images of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from beam_jobs import storage
from beam_jobs.common import strings, system
from beam_jobs.common.html import render_page
from beam_jobs.common.system import Progress, Watch, no_watch
from beam_jobs.dataset import lookup, manifest, schemas
from beam_jobs.dataset.manifest import Manifest
from beam_jobs.export import staging
from beam_jobs.storage import disk
from components.dataset_report import RunDetails, shown
from components.dataset_report.card import card, run_view, title
from components.dataset_report.card import verdict as verdict_view
from components.dataset_report.evaluated import Predictions, evaluation_view, predict, worst_mistakes
from components.dataset_report.gallery import DUPLICATES_BUDGET_BYTES, Tile, duplicates, gallery, rejects
from components.dataset_report.histograms import HEIGHT, WIDTH, balance, distributions, extremes
from components.dataset_report.shown import ByteBudget, Images, Renderer, open_images
from components.dataset_report.training import augmentation
from components.dataset_report.training import training as training_view
from components.evaluation import Evaluation

_TEMPLATES = Path(__file__).parent / "templates"
_FILTERS: Mapping[str, Callable[..., Any]] = {
    "line": shown.text,
    "lines": shown.lines,
    "short_path": shown.short_path,
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

    The number of pictures and rows is limited; the page states the number of omitted ones. Equal datasets and arguments
    result in equal pages.

    Args:
      directory: directory of the dataset.
      evaluation: results of Evaluator for a model of the dataset.
      verdict: content of the `verdict.json` of the gate.
      model: directory of a SavedModel trained on the dataset, for predictions on the evaluation split.
      input_options: `InputOptions` as JSON values, for the preview of augmentation.
      run: training, durations and lineage of a run of the pipeline.
      source: directory of the source images, for pictures of the rejects; no file outside of it is opened.

    Raises:
      UsageError: the directory is not a dataset, or the model was not trained on it.
      CorruptDataset: a file of the dataset is damaged.
    """
    dataset = manifest.load(directory)
    kinds = lookup.select_leak_kinds(dataset.options.get("near_duplicates", "off"))
    rejected = schemas.read_rejects(storage.join(directory, manifest.REJECTS_NAME))
    renderer = Renderer(directory, dataset)
    budget = ByteBudget(DUPLICATES_BUDGET_BYTES)
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
                "gallery": gallery(images, renderer),
                "distributions": distributions(images),
                "extremes": extremes(images, renderer),
                "chart": {"width": WIDTH, "height": HEIGHT},
                "rejects": rejects(rejected, source),
                "exact": duplicates(images, renderer, "cluster", budget),
                "near": duplicates(images, renderer, "near", budget),
                "augmentation": None if input_options is None else augmentation(images, renderer, input_options),
                "training": training_view(run.training) if run and run.training else None,
                "evaluation": evaluation_view(evaluation, predictions, dataset.labels),
                "mistakes": None if predictions is None else worst_mistakes(images, renderer, predictions),
                "run": run_view(run) if run and run.steps else None,
            },
            _FILTERS,
        )


_PAGE_IMAGES = 500  # maximum number of images of a page
_MAX_IMAGES = 1_000_000  # maximum number of images of the folder
_SIDE_PX = 96
_GROUPS = """
    SELECT classes.label AS label, place, list(row ORDER BY row) AS rows FROM classes JOIN images USING (row)
    WHERE shard >= 0 AND row % $every = 0 GROUP BY classes.label, place ORDER BY classes.label, place"""
_ROWS = "SELECT * EXCLUDE (place, labels) FROM images WHERE row IN (SELECT unnest($rows))"


@dataclass(frozen=True, kw_only=True)
class _Group:
    """Images on consecutive pages of the folder.

    Attributes:
      title: common property of the images, such as class and split.
      stem: beginning of the names of the pages.
      rows: row numbers in the image table, int64[images].
      facts: row number -> names and values to display with the image, besides those of the dataset.
    """

    title: str
    stem: str
    rows: Sequence[int]
    facts: Mapping[int, tuple[tuple[str, str], ...]]

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def page_count(self) -> int:
        return -(-len(self.rows) // _PAGE_IMAGES)

    @property
    def file(self) -> str:
        return self.page(1)

    def page(self, number: int) -> str:
        """Returns the file name of a page; empty if the number is not in 1 to `page_count`."""
        return f"{self.stem}-{number}.html" if 1 <= number <= self.page_count else ""


def render_all(directory: str, out: str, model: str = "", watch: Watch = no_watch) -> int:
    """Writes all images of a published dataset as a folder of pages with an index, and returns the number of images.

    A page has at most 500 images of one class and split, or of one predicted class. Of more than a million images, only
    every n-th is shown. The pages load no files, and link only to one another. One page at a time is in memory.

    Args:
      directory: directory of the dataset.
      out: directory to write, new or empty.
      model: directory of a SavedModel trained on the dataset, for predictions on the evaluation split.
      watch: displays the progress.

    Raises:
      UsageError: the directory is not a dataset, `out` cannot be used, or the model was not trained on the dataset.
      CorruptDataset: a file of the dataset is damaged.
    """
    dataset, path = manifest.load(directory), staging.check(out)
    every = -(-max(1, dataset.counts.written) // _MAX_IMAGES)
    system.local_progress.reset()
    with (
        disk.explain_errors("writing the pages", path, resumable=False),
        open_images(directory, dataset) as images,
        staging.staged(path) as stage,
    ):
        predictions = predict(images, directory, model) if model else None
        class_rows = images.database.query(_GROUPS, every=every).to_pylist()
        label_numbers = {label: number for number, label in enumerate((*dataset.labels, shown.NO_CLASS))}
        by_class: dict[str, dict[str, _Group]] = {}
        for entry in class_rows:
            label, split = entry["label"], entry["place"]
            stem = f"class-{label_numbers.setdefault(label, len(label_numbers)):04d}-{split}"
            by_class.setdefault(label, {})[split] = _Group(
                title=f"{label}, {split}", stem=stem, rows=entry["rows"], facts={}
            )
        predicted = list(_predicted_groups(predictions, dataset)) if predictions else []
        groups = [group for splits in by_class.values() for group in splits.values()]
        groups += [group for _, group, _ in predicted]
        total = sum(group.count for group in groups)
        renderer = Renderer(directory, dataset)
        with watch("rendering", Progress(total), system.local_progress.read):
            for group in groups:
                _write_group(images, renderer, group, stage.path)
        index = {
            "title": title(dataset),
            "dataset": dataset,
            "every": every,
            "shown": len({row for entry in class_rows for row in entry["rows"]}),
            "classes": {label: by_class[label] for label in sorted(by_class, key=label_numbers.__getitem__)},
            "predicted": predicted,
            "predictions": predictions,
        }
        page = render_page(_TEMPLATES, "folder_index", index, _FILTERS, look="page")
        storage.write_bytes(storage.join(stage.path, "index.html"), page.encode())
    return total


def _predicted_groups(predictions: Predictions, dataset: Manifest) -> Iterator[tuple[str, _Group, int]]:
    """Yields class, images and number of wrong predictions of each predicted class; wrong predictions come first."""
    wrong, certainty = predictions.predicted != predictions.true, predictions.certainty
    for index, label in enumerate(dataset.labels):
        members = np.flatnonzero(predictions.predicted == index)
        if len(members):
            order = members[np.lexsort((-certainty[members], ~wrong[members]))]
            facts = {int(predictions.rows[image]): (predictions.fact(image, dataset.labels),) for image in order}
            group = _Group(title=f"Predicted as {label}", stem=f"predicted-{index:04d}", rows=list(facts), facts=facts)
            yield label, group, int(wrong[members].sum())


def _write_group(images: Images, renderer: Renderer, group: _Group, folder: str) -> None:
    for page_number in range(1, group.page_count + 1):
        numbers = list(group.rows[_PAGE_IMAGES * (page_number - 1) : _PAGE_IMAGES * page_number])
        rows = {row["row"]: row for row in images.database.query(_ROWS, rows=numbers).to_pylist()}
        make_tile = partial(_make_tile, images, renderer, group)
        values = {
            "title": group.title,
            "count": group.count,
            "number": page_number,
            "numbers": group.page_count,
            "before": group.page(page_number - 1),
            "after": group.page(page_number + 1),
            "has_predictions": bool(group.facts),
            "tiles": list(system.map_ordered(make_tile, (rows[number] for number in numbers), system.cores())),
        }
        page = render_page(_TEMPLATES, "folder_page", values, _FILTERS, look="page")
        storage.write_bytes(storage.join(folder, group.page(page_number)), page.encode(), durable=False)


def _make_tile(images: Images, renderer: Renderer, group: _Group, row: dict[str, Any]) -> Tile:
    # Values as plain text instead of links to the section of duplicates, which is not in the folder.
    facts = (*group.facts.get(row["row"], ()), *((name, str(value)) for name, value in images.facts(row)))
    picture = renderer.picture(row, renderer.values(row), _SIDE_PX)
    system.local_progress.add(Progress(1))
    label = ", ".join(images.labels(row))
    return Tile(label=label, split=row["split"], key=shown.short_path(row["key"]), picture=picture, facts=facts)
