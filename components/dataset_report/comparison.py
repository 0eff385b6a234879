"""What the gate found, and how splits and spans differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from components.dataset_gate.findings import Comparison, Finding
from components.dataset_report import shown

_MOST_FINDINGS = 50
_LONGEST = 240
_MOST_COMPARISONS = 200
_MEASURES = {"l_infinity": "L-infinity", "jensen_shannon": "Jensen-Shannon"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the gate wrote.

    Attributes:
      only_reports: whether findings let the pipeline go on.
      findings: crossed limits; of very many the first.
      findings_left_out: further ones.
      comparisons: over their limit first, then the largest.
      comparisons_left_out: further ones.
      anomalies: split -> anomalous features.
      limits: name -> what is allowed.
      notes: what could not be measured, and why.
    """

    only_reports: bool
    findings: Sequence[Finding]
    findings_left_out: int
    comparisons: Sequence[Comparison]
    comparisons_left_out: int
    anomalies: Mapping[str, int]
    limits: Mapping[str, str]
    notes: Sequence[str]


def verdict(values: Mapping[str, Any]) -> Verdict:
    """Returns the content of a `verdict.json`; what it does not hold is empty."""
    names = ("check", "split", "feature", "value", "limit", "remedy")
    findings = [
        Finding(**{name: shown.text(item.get(name, ""), _LONGEST) for name in names})
        for item in values.get("findings", ())
    ]
    comparisons = sorted(
        (_comparison(item) for item in values.get("comparisons", ())),
        key=lambda item: (not item.is_over, -item.value, item.feature, item.split),
    )
    return Verdict(
        only_reports=values.get("mode") == "report",
        findings=findings[:_MOST_FINDINGS],
        findings_left_out=max(0, len(findings) - _MOST_FINDINGS),
        comparisons=comparisons[:_MOST_COMPARISONS],
        comparisons_left_out=max(0, len(comparisons) - _MOST_COMPARISONS),
        anomalies=dict(values.get("anomalies", {})),
        limits={name: shown.text(value) for name, value in sorted(dict(values.get("limits", {})).items())},
        notes=[shown.text(note, _LONGEST) for note in values.get("notes", ())][:_MOST_FINDINGS],
    )


def _comparison(item: Mapping[str, Any]) -> Comparison:
    return Comparison(
        kind=shown.text(item["kind"], 40),
        baseline=shown.place(str(item["baseline"]), 80),
        split=shown.text(item["split"], 60),
        feature=shown.text(item["feature"], 80),
        measure=_MEASURES.get(item["measure"], shown.text(item["measure"], 40)),
        value=float(item["value"]),
        limit=float(item["limit"]),
    )
