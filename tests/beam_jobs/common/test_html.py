from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import jinja2
import pytest

from beam_jobs.common.html import render_page

EVIL = "</title><script>1</script>"


def templates(folder: Path, body: str, script: str | None = None) -> Path:
    text = (
        "{% extends 'base.html' %}{% block title %}{{ name }}{% endblock %}{% block body %}" + body + "{% endblock %}"
    )
    (folder / "some.html").write_text(text, encoding="utf-8")
    (folder / "some.css").write_text(".some { color: red }", encoding="utf-8")
    if script is not None:
        (folder / "some.js").write_text(script, encoding="utf-8")
    return folder


def content(page: str, tag: str) -> list[str]:
    return re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)


def source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(page: str) -> dict[str, str]:
    (found,) = re.findall('Content-Security-Policy" content="([^"]*)"', page)
    return dict(part.strip().split(" ", 1) for part in found.replace("&#39;", "'").split(";"))


@pytest.mark.parametrize("script", [None, "document.title = 'x'"])
def test_a_page_may_use_its_own_style_and_script_and_nothing_else(tmp_path, script):
    page = render_page(templates(tmp_path, "<p>{{ name }}</p>", script), "some", {"name": "photos"})
    (style,) = content(page, "style")
    assert style.startswith(":root")
    assert style.endswith(".some { color: red }")
    assert content(page, "script") == ([] if script is None else [script])
    expected = {"default-src": "'none'", "img-src": "data:", "style-src": source(style)}
    if script is not None:
        expected["script-src"] = source(script)
    assert policy(page) == {**expected, "base-uri": "'none'", "form-action": "'none'"}


def test_values_are_escaped_in_the_head_and_in_the_body(tmp_path):
    page = render_page(templates(tmp_path, "<p>{{ name }}</p>"), "some", {"name": EVIL})
    assert "<script" not in page
    assert page.count("&lt;/title&gt;&lt;script&gt;1&lt;/script&gt;") == 2


def test_a_value_that_is_not_given_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError, match="other"):
        render_page(templates(tmp_path, "{{ other }}"), "some", {"name": "a"})
