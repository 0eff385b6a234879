from __future__ import annotations

import pytest
from packaging.version import Version

from tests.security import advisories

KNOWN = [
    {
        "package": "pyarrow",
        "version": "10.0.1",
        "ids": ["CVE-1", "GHSA-1"],
        "what": "w",
        "pinned_by": "p",
        "reason": "r",
        "seen": "text",
    }
]


def audit(*found: tuple[str, list[str]], skipped: int = 0) -> dict:
    vulns = [{"id": name, "aliases": aliases, "fix_versions": ["14.0.1"]} for name, aliases in found]
    unasked = [{"name": f"x{n}", "skip_reason": "not found"} for n in range(skipped)]
    return {"dependencies": [{"name": "pyarrow", "version": "10.0.1", "vulns": vulns}, *unasked]}


@pytest.mark.parametrize(
    ("found", "code", "lines"),
    [
        (audit(), 0, ["1 packages, nothing that is not accepted"]),
        (audit(("PYSEC-1", ["CVE-1"])), 0, ["1 packages, nothing that is not accepted"]),
        (audit(("PYSEC-2", ["CVE-2"])), 1, ["pyarrow 10.0.1: PYSEC-2, fixed in 14.0.1"]),
        (audit(skipped=3), 2, ["no audit: the service knew nothing of 3 of 4 packages"]),
    ],
)
def test_an_audit_is_sound_only_when_every_package_was_asked_for_and_all_it_found_is_known(found, code, lines):
    assert advisories.judge(found, KNOWN) == (code, lines)


def test_what_is_accepted_is_accepted_for_the_versions_that_the_legacy_stack_pins():
    pins = advisories.pins("legacy")
    assert len(pins) > 250
    assert {
        one["package"]: one["version"] for one in advisories.accepted() if pins[one["package"]] != one["version"]
    } == {}


def test_the_current_stack_has_the_versions_that_mend_what_the_legacy_one_accepts():
    pins = advisories.pins("current")
    assert len(pins) > 300
    assert [one for one in advisories.accepted() if Version(pins[one["package"]]) < Version(one["fixed"])] == []


def test_every_accepted_advisory_says_why_and_how_it_is_known():
    for one in advisories.accepted():
        assert all(one[name] for name in ("what", "pinned_by", "reason", "ids")), one
        assert one["seen"] in ("pypa", "text", "range"), one
        assert "|" not in "".join(map(str, one.values())), one


def test_the_page_holds_the_table_of_what_is_accepted():
    text = advisories.PAGE.read_text(encoding="utf-8")
    assert text == advisories.page(text, advisories.accepted()), "run python -m tests.security.advisories --page"
