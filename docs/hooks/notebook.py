"""Makes a page of the tutorial, so that it can be read on the site and not only in Jupyter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_NOTEBOOK, _PAGE = "tutorial.ipynb", "tutorial.md"
_ABOUT = f"""!!! note "A notebook"
    Download [{_NOTEBOOK}]({_NOTEBOOK}) and run it in Jupyter: it draws what is described here.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page, made of the cells of the notebook; their outputs come from running it."""
    notebook = json.loads((Path(config.docs_dir) / _NOTEBOOK).read_text(encoding="utf-8"))
    title, *cells = (_markdown(cell) for cell in notebook["cells"])
    files.append(File.generated(config, _PAGE, content="\n\n".join([title, _ABOUT, *cells])))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Leads links to the notebook to its page, but for the one from there."""
    return markdown if page.file.src_uri == _PAGE else markdown.replace(f"({_NOTEBOOK})", f"({_PAGE})")


def _markdown(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"```python\n{source}\n```" if cell["cell_type"] == "code" else source
