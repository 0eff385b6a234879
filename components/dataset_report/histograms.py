"""Sections of the report about distributions by split: images per class, histograms of facts, and extreme images."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from beam_jobs.common.strings import plural
from beam_jobs.dataset import divergence
from beam_jobs.dataset.manifest import Manifest
from components.dataset_report import shown
from components.dataset_report.shown import ByteBudget, Facts, Images, Picture, Renderer

_MAX_CLASSES = 200
_MAX_BARS = 12  # bars per class, one for each split


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar in the chart of class sizes: images of one class in one split.

    Attributes:
      split: name of the split.
      images: number of images.
      length: number of images as a share of the largest class of the split, 0-1.
    """

    split: str
    images: int
    length: float


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """A row of the chart of class sizes: one class.

    Attributes:
      label: name of the class.
      images: number of images in all splits.
      bars: one bar per split.
    """

    label: str
    images: int
    bars: Sequence[Bar]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """Sizes of the classes.

    Attributes:
      rows: rows in the order of the labels; of more than 200 classes, only the 100 largest and the 100 smallest.
      left_out: number of classes without a row.
      largest: row with the most images in the first split; None if there are no classes.
      smallest: row with the fewest images in the first split; None if there are no classes.
    """

    rows: Sequence[ClassRow]
    left_out: int
    largest: ClassRow | None
    smallest: ClassRow | None

    @property
    def ratio(self) -> float:
        """Ratio of the largest to the smallest class in the first split; infinite if the smallest is empty."""
        if self.largest is None or self.smallest is None:
            return 1.0
        fewest = self.smallest.bars[0].images
        return self.largest.bars[0].images / fewest if fewest else float("inf")


def balance(dataset: Manifest) -> Balance:
    """Returns the sizes of the classes of a dataset."""
    splits = list(dataset.splits)[:_MAX_BARS]
    largest = {name: max(dataset.splits[name].classes.values(), default=1) for name in splits}
    rows = [_class_row(dataset, label, largest) for label in dataset.labels]
    by_size = sorted(rows, key=lambda row: (-row.bars[0].images, row.label))
    shown_rows = rows
    if len(rows) > _MAX_CLASSES:
        # The largest and the smallest classes show an imbalance.
        shown_labels = {row.label for row in (*by_size[: _MAX_CLASSES // 2], *by_size[-_MAX_CLASSES // 2 :])}
        shown_rows = [row for row in rows if row.label in shown_labels]
    return Balance(
        rows=shown_rows,
        left_out=len(rows) - len(shown_rows),
        largest=by_size[0] if by_size else None,
        smallest=by_size[-1] if by_size else None,
    )


def _class_row(dataset: Manifest, label: str, largest: Mapping[str, int]) -> ClassRow:
    bars = []
    for name, maximum in largest.items():
        count = dataset.splits[name].classes.get(label, 0)
        bars.append(Bar(split=name, images=count, length=count / max(1, maximum)))
    images = sum(info.classes.get(label, 0) for info in dataset.splits.values())
    return ClassRow(label=label, images=images, bars=bars)


_BINS = 24
_LEVELS, _IN_LEVELS = (0.0, 255.0), "(0-255)"
_MAX_SPLITS = 6
_MAX_COLUMNS = 24  # user columns
_MAX_VALUES = 12  # shown values of a text column
_LOG_RATIO = 50.0  # minimum ratio of maximum to minimum for a logarithmic axis
_TAIL = 0.01  # maximum share of values that a linear axis cuts off at each end
_TAIL_RATIO = 3.0  # a tail is cut off if its range is larger than that of the other values by this factor
# Size of the coordinate system of a chart, which the page scales.
WIDTH, HEIGHT = 240.0, 100.0


@dataclass(frozen=True, kw_only=True)
class Line:
    """The line of one split in a histogram.

    Attributes:
      split: name of the split.
      area: SVG path of the steps, closed at the bottom.
      edge: SVG path of the steps, open.
      low: minimum, as text.
      median: median, as text.
      high: maximum, as text.
    """

    split: str
    area: str
    edge: str
    low: str
    median: str
    high: str


@dataclass(frozen=True, kw_only=True)
class Bin:
    """A bin of a histogram: an area with a tooltip.

    Attributes:
      x: left edge, in units of the chart.
      width: width, in units of the chart.
      title: text of the tooltip, one line per split.
    """

    x: float
    width: float
    title: str


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A histogram of a numeric fact or user column.

    Attributes:
      title: name of the fact or user column, with its unit.
      lines: one line per split.
      bins: bins in ascending order.
      ticks: values at the left, in the middle and at the right of the axis.
      is_log: whether the axis is logarithmic.
      note: numbers of values that are not finite or beyond the axis, as text; empty if there are none.
    """

    title: str
    lines: Sequence[Line]
    bins: Sequence[Bin]
    ticks: tuple[str, str, str]
    is_log: bool
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Value:
    """One value of a text column.

    Attributes:
      text: the value.
      bars: for each split: its name, share of its images with this value, 0-1, and number of these images.
    """

    text: str
    bars: Sequence[tuple[str, float, int]]


@dataclass(frozen=True, kw_only=True)
class TopValues:
    """The most frequent values of a text column.

    Attributes:
      title: name of the column.
      values: values, most frequent first.
      left_out: number of values that are not shown.
    """

    title: str
    values: Sequence[Value]
    left_out: int


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """Distributions of facts and user columns over the written images.

    Attributes:
      histograms: histograms of numeric facts and user columns.
      text_columns: most frequent values of text columns.
      splits: names of the shown splits, in order.
      splits_left_out: number of splits that are not shown.
      columns_left_out: number of user columns that are not shown.
    """

    histograms: Sequence[Histogram]
    text_columns: Sequence[TopValues]
    splits: Sequence[str]
    splits_left_out: int
    columns_left_out: int


def distributions(images: Images) -> Distributions:
    """Returns the distributions of size, aspect, bytes, brightness, channels and user columns of the written images."""
    splits = list(images.dataset.splits)[:_MAX_SPLITS]
    histograms = []
    for title, value in _number_columns(images.dataset).items():
        query = _IMAGE_VALUES.format(value=value)
        by_split = {split: images.database.sorted_numbers(query, split=split) for split in splits}
        histograms.append(histogram(title, by_split, _LEVELS if _IN_LEVELS in title else None))
    columns = dict(zip(*images.database.query(_USER_COLUMNS).to_pydict().values(), strict=True))
    text_columns = []
    for name in sorted(columns)[:_MAX_COLUMNS]:
        title = shown.text(name, 60)
        if columns[name]:
            by_split = {
                split: images.database.sorted_numbers(_COLUMN_VALUES, split=split, name=name) for split in splits
            }
            histograms.append(histogram(title, by_split))
        else:
            text_columns.append(_top_values(images, title, name, splits))
    return Distributions(
        histograms=[chart for chart in histograms if chart.lines],
        text_columns=text_columns,
        splits=splits,
        splits_left_out=len(images.dataset.splits) - len(splits),
        columns_left_out=max(0, len(columns) - _MAX_COLUMNS),
    )


def histogram(title: str, values: Mapping[str, np.ndarray], limits: tuple[float, float] | None = None) -> Histogram:
    """Returns a histogram with a line for each split.

    Args:
      title: name of the fact or user column, with its unit.
      values: split -> numbers in ascending order, NaN last, float64[images]; a split without numbers has no line.
        Numbers that are not finite are ignored, but counted in the note, like numbers beyond the axis.
      limits: ends of the axis, if all numbers lie between them; None to derive the axis from the numbers.
    """
    finite = {split: divergence.finite_part(numbers) for split, numbers in values.items()}
    ignored_count = sum(len(values[split]) - len(numbers) for split, numbers in finite.items())
    finite = {split: numbers for split, numbers in finite.items() if len(numbers)}
    note = f"{plural(ignored_count, 'value')} not finite" if ignored_count else ""
    if not finite:
        return Histogram(title=title, lines=(), bins=(), ticks=("", "", ""), is_log=False, note=note)
    edges, is_log = _axis_edges(list(finite.values()), limits)
    counts = {split: np.histogram(numbers, edges)[0] for split, numbers in finite.items()}
    beyond_count = 0
    for split, numbers in finite.items():
        tail_counts = np.searchsorted(numbers, edges[0]), len(numbers) - np.searchsorted(numbers, edges[-1], "right")
        counts[split][[0, -1]] += tail_counts
        beyond_count += int(sum(tail_counts))
    beyond_note = f"{plural(beyond_count, 'value')} beyond the axis, in its outer bins" if beyond_count else ""
    note = "; ".join(filter(None, (note, beyond_note)))
    tallest = max(float((images / images.sum()).max()) for images in counts.values())
    lines = [_line(split, numbers, counts[split], tallest) for split, numbers in finite.items()]
    middle = float(np.sqrt(edges[0] * edges[-1]) if is_log else (edges[0] + edges[-1]) / 2)
    ticks = (shown.number(_round(edges[0], 3)), shown.number(_round(middle, 3)), shown.number(_round(edges[-1], 3)))
    if len(edges) == 2:  # a single value
        ticks = ("", shown.number(edges[0]), "")
    return Histogram(title=title, lines=lines, bins=_bins(edges, counts), ticks=ticks, is_log=is_log, note=note)


_IMAGE_VALUES = "SELECT ({value})::DOUBLE FROM images WHERE place = $split"
_USER_COLUMNS = "SELECT name, bool_and(number IS NOT NULL) FROM user_values GROUP BY name"
_COLUMN_VALUES = "SELECT number FROM user_values WHERE name = $name AND place = $split"
_TEXT_COUNTS = """
    CREATE OR REPLACE TABLE texts AS SELECT text, place, count(*) AS images FROM user_values
    WHERE name = $name AND list_contains($splits, place) GROUP BY text, place"""
_TEXT_TOTALS = "SELECT place, sum(images)::BIGINT FROM texts GROUP BY place"
_FIRST_TEXTS = """
    SELECT text, place, images FROM texts JOIN (
        SELECT text, sum(images) AS total FROM texts GROUP BY text ORDER BY total DESC, text LIMIT $most) AS first
    USING (text) ORDER BY total DESC, text"""


def _top_values(images: Images, title: str, name: str, splits: Sequence[str]) -> TopValues:
    """Returns the most frequent values of a text column, over the given splits."""
    images.database.run(_TEXT_COUNTS, name=name, splits=list(splits))
    totals = dict(zip(*images.database.query(_TEXT_TOTALS).to_pydict().values(), strict=True))
    counts: dict[str, dict[str, int]] = {}
    for row in images.database.query(_FIRST_TEXTS, most=_MAX_VALUES).to_pylist():
        counts.setdefault(row["text"], {})[row["place"]] = row["images"]
    return TopValues(
        title=title,
        values=[
            Value(
                text=shown.text(text, 60),
                bars=[
                    (split, by_split.get(split, 0) / max(1, totals.get(split, 0)), by_split.get(split, 0))
                    for split in splits
                ],
            )
            for text, by_split in counts.items()
        ],
        left_out=images.database.number("SELECT count(DISTINCT text) FROM texts") - len(counts),
    )


def _number_columns(dataset: Manifest) -> dict[str, str]:
    """Returns title -> SQL expression of a numeric fact of an image."""
    columns = {
        "Short side (pixels)": "least(height, width)",
        "Aspect (width : height)": "width / height",
        "File size (kB)": "bytes / 1e3",
    }
    if dataset.channels is not None:
        columns["Brightness (0-255)"] = "(mean_rgb[1]::DOUBLE + mean_rgb[2] + mean_rgb[3]) / 3"
        for index, name in enumerate(("Red", "Green", "Blue"), 1):
            columns[f"{name} mean (0-255)"] = f"mean_rgb[{index}]"
    return columns


def _axis_edges(values: Sequence[np.ndarray], limits: tuple[float, float] | None) -> tuple[np.ndarray, bool]:
    if limits:
        return np.linspace(*limits, _BINS + 1), False
    low, high = float(min(numbers[0] for numbers in values)), float(max(numbers[-1] for numbers in values))
    if low == high:
        return np.array([low, high]), False
    bins = min(_BINS, len(set(itertools.chain.from_iterable(map(_first_distinct, values)))))
    is_log = low > 0 and high / low >= _LOG_RATIO
    inner = [(numbers[count], numbers[-1 - count]) for numbers in values for count in [int(_TAIL * len(numbers))]]
    inner_low, inner_high = float(min(least for least, _ in inner)), float(max(most for _, most in inner))
    # If values include 0, the axis cannot be logarithmic; then, with a long tail, all other values would be in one bin.
    longest_tail = _TAIL_RATIO * (inner_high - inner_low)
    if longest_tail and not is_log:
        low = inner_low if inner_low - low > longest_tail else low
        high = inner_high if high - inner_high > longest_tail else high
    edges = np.geomspace(low, high, bins + 1) if is_log else np.linspace(low, high, bins + 1)
    edges[0], edges[-1] = low, high  # rounding must not exclude a value
    return edges, is_log


def _first_distinct(numbers: np.ndarray) -> Iterator[float]:
    """Yields the smallest distinct values of sorted numbers, at most `_BINS`."""
    index = 0
    for _ in range(_BINS):
        if index < len(numbers):
            yield float(numbers[index])
            index = int(np.searchsorted(numbers, numbers[index], "right"))


def _line(split: str, values: np.ndarray, counts: np.ndarray, tallest: float) -> Line:
    y_values = HEIGHT * (1 - counts / counts.sum() / tallest)  # SVG: 0 is at the top
    bin_width = WIDTH / len(counts)
    steps = " ".join(f"V{y:.1f}H{bin_width * (index + 1):.1f}" for index, y in enumerate(y_values))
    edge = f"M0 {HEIGHT:.1f}{steps}V{HEIGHT:.1f}"
    low, median, high = (
        shown.number(_round(float(value))) for value in (values[0], divergence.median(values), values[-1])
    )
    return Line(split=split, area=f"{edge}Z", edge=edge, low=low, median=median, high=high)


def _bins(edges: np.ndarray, counts: Mapping[str, np.ndarray]) -> list[Bin]:
    width = WIDTH / (len(edges) - 1)
    bins = []
    for index, (low, high) in enumerate(itertools.pairwise(edges)):
        range_text = shown.number(_round(low)) + ("" if low == high else f" to {shown.number(_round(high))}")
        lines = [
            f"{split}: {plural(int(images[index]), 'image')}, {shown.percent(images[index] / images.sum())}"
            for split, images in counts.items()
        ]
        bins.append(Bin(x=round(index * width, 1), width=round(width, 1), title="\n".join([range_text, *lines])))
    return bins


def _round(value: float, digits: int = 4) -> float:
    """Returns a number, rounded to significant digits."""
    return float(f"{value:.{digits}g}")


_MAX_EXTREMES = 8
_EXTREME_SIDE_PX = 100
_EXTREMES_BUDGET_BYTES = 250_000


@dataclass(frozen=True, kw_only=True)
class Extreme:
    """An image with an extreme value of a fact.

    Attributes:
      key: key of the image, as display text.
      value: value of the fact, as text.
      picture: picture of the image; None if the size limit of the section is reached.
      facts: names and values about the image.
    """

    key: str
    value: str
    picture: Picture | None
    facts: Facts


@dataclass(frozen=True, kw_only=True)
class Extremes:
    """The images at one end of a distribution.

    Attributes:
      title: common property, such as `Darkest`.
      images: the images, the most extreme image first.
      limit: setting that would reject all these images or stop the pipeline; empty if there is no such setting.
    """

    title: str
    images: Sequence[Extreme]
    limit: str


@dataclass(frozen=True)
class _End:
    """One end of a distribution; the images with the smallest values are shown."""

    value: str  # SQL expression
    text: Callable[[float], str]  # returns a value as text
    limit: Callable[[float], str] = lambda _: ""  # returns `Extremes.limit` for the largest shown value
    needs_channels: bool = False  # whether the value needs the channel statistics


def _max_aspect_setting(aspect: float) -> str:
    lower_limit = (math.ceil(aspect * 100 - 1e-9) - 1) / 100  # the largest limit with two decimals below `aspect`
    return f"ingest.limits.max_aspect: {lower_limit:.2f}" if lower_limit >= 1 else ""


_ENDS = {
    "Darkest": _End("list_avg(mean_rgb)::DOUBLE", lambda value: f"{value:.1f} of 255", needs_channels=True),
    "Brightest": _End("-list_avg(mean_rgb)::DOUBLE", lambda value: f"{-value:.1f} of 255", needs_channels=True),
    "Flattest": _End(
        "list_max(var_rgb)::DOUBLE",
        lambda value: f"σ² {value:.4g}",
        lambda value: f"gate.blank_variance: {value * 1.001 + 0.001:.4g}, gate.max_blank_ratio: 0",
        needs_channels=True,
    ),
    "Smallest": _End(
        "least(source_height, source_width)::DOUBLE",
        lambda value: f"{value:,.0f} px",
        lambda value: f"ingest.limits.min_side_px: {value + 1:.0f}",
    ),
    "Longest for their width or height": _End(
        "-greatest(source_height / source_width, source_width / source_height)::DOUBLE",
        lambda value: f"{-value:.2f} : 1",
        lambda value: _max_aspect_setting(-value),
    ),
    "Most compressed": _End("bytes / (height::DOUBLE * width)", lambda value: f"{8 * value:.2f} bit/px"),
}
_FIRST_ROWS = """
    SELECT row, {value} AS value FROM images WHERE place <> '' AND isfinite({value}) ORDER BY value, key LIMIT $most"""
_HAS_RANGE = "SELECT count(*) FROM images WHERE place <> '' HAVING min({value}) < max({value})"


def extremes(images: Images, renderer: Renderer) -> list[Extremes]:
    """Returns the images at the ends of the distributions, except for facts with the same value in all images.

    Raises:
      CorruptDataset: a record is damaged.
    """
    budget = ByteBudget(_EXTREMES_BUDGET_BYTES)
    sections = []
    for title, end in _ENDS.items():
        if end.needs_channels and not images.dataset.channels:
            continue
        if not images.database.query(_HAS_RANGE.format(value=end.value)).num_rows:
            continue
        items = images.database.query(_FIRST_ROWS.format(value=end.value), most=_MAX_EXTREMES).to_pylist()
        rows = [(images.row(item["row"]), item["value"]) for item in items]
        sections.append(
            Extremes(
                title=title,
                images=[
                    Extreme(
                        key=shown.short_path(row["key"], 80),
                        value=end.text(value),
                        picture=renderer.render(row, _EXTREME_SIDE_PX, budget),
                        facts=images.facts(row, columns=0),
                    )
                    for row, value in rows
                ],
                limit=end.limit(rows[-1][1]),
            )
        )
    return sections
