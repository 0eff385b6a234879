"""Distributions by split: images of each class, and other facts as a line a split over the same bins."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from beam_jobs.common.strings import plural
from beam_jobs.dataset.manifest import Manifest
from components.dataset_report import shown
from components.dataset_report.shown import Images

_MOST_CLASSES = 200
_MOST_BARS = 12


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Images of a class in a split.

    Attributes:
      split: name.
      images: how many.
      length: share of the images of the largest class of the split, 0-1.
    """

    split: str
    images: int
    length: float


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """One class.

    Attributes:
      label: its name.
      images: in all splits.
      bars: one a split.
    """

    label: str
    images: int
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """The classes.

    Attributes:
      rows: in order of the labels; of very many, the largest and the smallest.
      left_out: classes between these.
      largest: the row with the most images in the first split; None without classes.
      smallest: the row with the fewest.
    """

    rows: Sequence[ClassRow]
    left_out: int
    largest: ClassRow | None
    smallest: ClassRow | None

    @property
    def ratio(self) -> float:
        """Images of the largest class for each of the smallest, in the first split; infinite when that has none."""
        if self.largest is None or self.smallest is None:
            return 1.0
        fewest = self.smallest.bars[0].images
        return self.largest.bars[0].images / fewest if fewest else float("inf")


def balance(dataset: Manifest) -> Balance:
    """Returns the classes of a dataset with their images."""
    splits = list(dataset.splits)[:_MOST_BARS]
    most = {name: max(dataset.splits[name].classes.values(), default=1) for name in splits}
    rows = [_class_row(dataset, label, most) for label in dataset.labels]
    by_size = sorted(rows, key=lambda row: (-row.bars[0].images, row.label))
    kept = rows
    if len(rows) > _MOST_CLASSES:
        # An imbalance is at the two ends.
        ends = {row.label for row in (*by_size[: _MOST_CLASSES // 2], *by_size[-_MOST_CLASSES // 2 :])}
        kept = [row for row in rows if row.label in ends]
    return Balance(
        rows=kept,
        left_out=len(rows) - len(kept),
        largest=by_size[0] if by_size else None,
        smallest=by_size[-1] if by_size else None,
    )


def _class_row(dataset: Manifest, label: str, most: Mapping[str, int]) -> ClassRow:
    bars = []
    for name, longest in most.items():
        count = dataset.splits[name].classes.get(label, 0)
        bars.append(Bar(split=name, images=count, length=count / max(1, longest)))
    images = sum(info.classes.get(label, 0) for info in dataset.splits.values())
    return ClassRow(label=label, images=images, bars=bars)


_BINS = 24
_LEVELS, _IN_LEVELS = (0.0, 255.0), "(0-255)"
_MOST_SPLITS = 6
_MOST_COLUMNS = 24  # user columns
_MOST_VALUES = 12  # of a column of names
_LOG_RATIO = 50.0  # from this spread on the axis counts in factors
# The chart is drawn in a box of this size, stretched to whatever room there is.
WIDTH, HEIGHT = 240.0, 100.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """One split in a chart.

    Attributes:
      split: name.
      area: SVG path of its steps, closed at the bottom.
      edge: SVG path of its steps alone.
      low: least value, as text.
      median: middle one.
      high: greatest one.
    """

    split: str
    area: str
    edge: str
    low: str
    median: str
    high: str


@dataclass(frozen=True, kw_only=True)
class Bin:
    """One bin, for the pointer.

    Attributes:
      x: left edge in the chart.
      width: of it.
      title: what it holds, a line a split.
    """

    x: float
    width: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """The distribution of numbers.

    Attributes:
      title: what is counted.
      lines: one a split.
      bins: the bins.
      ticks: values at the left, in the middle and at the right of the axis.
      is_log: whether the axis counts in factors.
      note: what a reader must know, or nothing.
    """

    title: str
    lines: Sequence[Line]
    bins: Sequence[Bin]
    ticks: tuple[str, str, str]
    is_log: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a column of names.

    Attributes:
      text: the value.
      bars: split, share of its images, 0-1, and images.
    """

    text: str
    bars: Sequence[tuple[str, float, int]]


@dataclass(frozen=True, kw_only=True)
class TopValues:
    """The most frequent values of a column of names.

    Attributes:
      title: of the column.
      values: most frequent first.
      left_out: further values.
    """

    title: str
    values: Sequence[Value]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """Everything that is counted over the written images.

    Attributes:
      numbers: histograms.
      names: columns of names.
      splits: the splits shown, in order.
      splits_left_out: further splits.
      columns_left_out: user columns beyond those shown.
    """

    numbers: Sequence[Histogram]
    names: Sequence[TopValues]
    splits: Sequence[str]
    splits_left_out: int
    columns_left_out: int


def distributions(images: Images) -> Distributions:
    """Counts size, aspect, bytes, brightness, channels and user columns of the written images, for each split."""
    splits = list(images.dataset.splits)[:_MOST_SPLITS]
    rows = {split: np.flatnonzero(images.splits == split) for split in splits}
    numbers = [
        histogram(
            title, {split: values[found] for split, found in rows.items()}, _LEVELS if _IN_LEVELS in title else None
        )
        for title, values in _columns(images).items()
    ]
    extras, left_out = _extras(images)
    names = []
    for title, values in extras.items():
        if all(isinstance(value, (int, float)) for found in values.values() for value in found):
            given = {split: np.asarray(values[split], np.float64) for split in splits}
            numbers.append(histogram(title, given))
        else:
            names.append(top_values(title, {split: values[split] for split in splits}))
    return Distributions(
        numbers=[chart for chart in numbers if chart.lines],
        names=names,
        splits=splits,
        splits_left_out=len(images.dataset.splits) - len(splits),
        columns_left_out=left_out,
    )


def histogram(title: str, values: Mapping[str, np.ndarray], limits: tuple[float, float] | None = None) -> Histogram:
    """Returns the histogram of numbers.

    Args:
      title: what is counted.
      values: split -> numbers, float[images]; a split without any has no line. Numbers that are not finite are left
        out and counted in the text.
      limits: ends of the axis, which hold all numbers; None takes the least and the greatest of them.
    """
    finite = {split: numbers[np.isfinite(numbers)] for split, numbers in values.items()}
    ignored = sum(len(values[split]) - len(numbers) for split, numbers in finite.items())
    finite = {split: numbers for split, numbers in finite.items() if len(numbers)}
    note = f"{plural(ignored, 'value')} not finite" if ignored else ""
    if not finite:
        return Histogram(title=title, lines=(), bins=(), ticks=("", "", ""), is_log=False, note=note)
    edges, is_log = _edges(np.concatenate(list(finite.values())), limits)
    counts = {split: np.histogram(numbers, edges)[0] for split, numbers in finite.items()}
    tallest = max(float((images / images.sum()).max()) for images in counts.values())
    lines = [_line(split, numbers, counts[split], tallest) for split, numbers in finite.items()]
    middle = float(np.sqrt(edges[0] * edges[-1]) if is_log else (edges[0] + edges[-1]) / 2)
    ticks = (shown.number(_short(edges[0], 3)), shown.number(_short(middle, 3)), shown.number(_short(edges[-1], 3)))
    if len(edges) == 2:  # one value alone: no axis leads from it to itself
        ticks = ("", shown.number(edges[0]), "")
    return Histogram(title=title, lines=lines, bins=_bins(edges, counts), ticks=ticks, is_log=is_log, note=note)


def top_values(title: str, values: Mapping[str, Sequence[Any]]) -> TopValues:
    """Returns the most frequent values of a column of names.

    Args:
      title: of the column.
      values: split -> values, one an image that has any.
    """
    counts = {split: Counter(map(str, found)) for split, found in values.items()}
    total: Counter[str] = Counter()
    for found in counts.values():
        total.update(found)
    first = sorted(total, key=lambda value: (-total[value], value))[:_MOST_VALUES]
    return TopValues(
        title=title,
        values=[
            Value(
                text=shown.text(value, 60),
                bars=[(split, found[value] / max(1, found.total()), found[value]) for split, found in counts.items()],
            )
            for value in first
        ],
        left_out=len(total) - len(first),
    )


def _columns(images: Images) -> dict[str, np.ndarray]:
    height, width = images.numbers("height"), images.numbers("width")
    columns = {
        "Short side (pixels)": np.minimum(height, width),
        "Aspect (width : height)": width / height,
        "File size (kB)": images.numbers("bytes") / 1e3,
    }
    if images.dataset.channels is not None:
        means = images.channels("mean_rgb").astype(np.float64)
        columns["Brightness (0-255)"] = means.mean(1)
        columns |= {f"{name} mean (0-255)": means[:, place] for place, name in enumerate(("Red", "Green", "Blue"))}
    return columns


def _extras(images: Images) -> tuple[dict[str, dict[str, list]], int]:
    """Returns user column -> split -> values, lists taken apart; and how many columns are left out."""
    found: dict[str, dict[str, list]] = {}
    for split, is_written, row in zip(images.splits, images.is_written, images.extras(), strict=True):
        if not is_written:
            continue
        for name, value in row.items():
            column = found.setdefault(name, defaultdict(list))
            column[split] += value if isinstance(value, list) else [value]
    names = sorted(found)
    return {shown.text(name, 60): found[name] for name in names[:_MOST_COLUMNS]}, max(0, len(names) - _MOST_COLUMNS)


def _edges(values: np.ndarray, limits: tuple[float, float] | None) -> tuple[np.ndarray, bool]:
    if limits:
        return np.linspace(*limits, _BINS + 1), False
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([low, high]), False
    bins = min(_BINS, len(np.unique(values)))
    is_log = low > 0 and high / low >= _LOG_RATIO
    edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # rounding must push no image over the edge
    return edges, is_log


def _line(split: str, values: np.ndarray, counts: np.ndarray, tallest: float) -> Line:
    heights = HEIGHT * (1 - counts / counts.sum() / tallest)
    step = WIDTH / len(counts)
    steps = " ".join(f"V{height:.1f}H{step * (place + 1):.1f}" for place, height in enumerate(heights))
    edge = f"M0 {HEIGHT:.1f}{steps}V{HEIGHT:.1f}"
    low, median, high = (shown.number(_short(float(value))) for value in np.quantile(values, (0, 0.5, 1)))
    return Line(split=split, area=f"{edge}Z", edge=edge, low=low, median=median, high=high)


def _bins(edges: np.ndarray, counts: Mapping[str, np.ndarray]) -> list[Bin]:
    step = WIDTH / (len(edges) - 1)
    bins = []
    for place, (low, high) in enumerate(itertools.pairwise(edges)):
        between = shown.number(_short(low)) + ("" if low == high else f" to {shown.number(_short(high))}")
        lines = [
            f"{split}: {plural(int(found[place]), 'image')}, {shown.percent(found[place] / found.sum())}"
            for split, found in counts.items()
        ]
        bins.append(Bin(x=round(place * step, 1), width=round(step, 1), title="\n".join([between, *lines])))
    return bins


def _short(value: float, digits: int = 4) -> float:
    """Returns a number with a few digits, for a reader; edges of bins have sixteen."""
    return float(f"{value:.{digits}g}")
