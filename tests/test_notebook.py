"""The tutorial runs from top to bottom, in an empty directory, and shows its plots and the report."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doc_places import common, once

pytestmark = [pytest.mark.docs, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

NOTEBOOK = Path(__file__).parent.parent / "docs" / "tutorial.ipynb"
PLAYED = "played.ipynb"
PLOTS = 5


@pytest.fixture(scope="module")
def tutorial() -> Any:
    import nbformat

    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def played(tutorial: Any, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Any:
    """The notebook after all of it has run, once for all processes of this run of the tests."""
    import nbformat

    def make(folder: Path) -> None:
        nbformat.write(play(tutorial, folder), folder / PLAYED)

    folder = once(common(tmp_path_factory.getbasetemp(), worker_id) / "notebook", make)
    return nbformat.read(folder / PLAYED, as_version=4)


def play(tutorial: Any, folder: Path) -> Any:
    """Runs the notebook in the Python of this test, whatever kernels the machine knows."""
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    class OwnPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            arguments = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=arguments, display_name=kernel_name, language="python")

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("IPYTHONDIR", str(folder / ".ipython"))  # settings of whoever runs the test change nothing
        environment.setenv("MPLCONFIGDIR", str(folder / ".matplotlib"))
        client = NotebookClient(
            copy.deepcopy(tutorial),  # what runs writes its outputs into it
            # By files in its own directory: what goes over a port could be read by anybody on the machine.
            km=AsyncKernelManager(kernel_spec_manager=OwnPython(), transport="ipc", ip=str(folder / "kernel")),
            timeout=600,
            startup_timeout=300,  # a busy machine takes its time
            resources={"metadata": {"path": str(folder)}},
        )
        return client.execute()


def outputs(notebook: Any, kind: str = "") -> list[Any]:
    """What the cells put out; with a MIME type, that of it alone."""
    every = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output["data"][kind] for output in every if kind in output.get("data", {})] if kind else every


def printed(notebook: Any, stream: str = "stdout") -> str:
    return "".join(output["text"] for output in outputs(notebook) if output.get("name") == stream)


def test_every_cell_runs_without_an_error(played):
    assert [output for output in outputs(played) if output["output_type"] == "error"] == []
    code = [cell for cell in played.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_the_plots_are_shown(played):
    assert len(outputs(played, "image/png")) == PLOTS


def test_the_report_is_shown_and_needs_nothing_from_elsewhere(played):
    (page,) = [text for text in outputs(played, "text/html") if "<iframe" in text]
    assert 'srcdoc="&lt;!doctype html' in page[:200].lower()
    assert not re.search(r"(?:src|href)=&quot;https?:", page)


def test_the_tables_are_shown(played):
    tables = [text for text in outputs(played, "text/html") if "<table" in text]
    assert any("digit-0000.png" in text for text in tables)
    assert any("undecodable" in text for text in tables)


def test_what_it_claims_is_printed(played):
    text = printed(played)
    assert "found 1,807 = written 1,800 + rejected 7 + dropped 0" in text
    assert "problems: []" in text
    assert text.count("True") == 3, "same images, same pixels, same weights"
    assert float(re.search(r"accuracy (0\.\d+), 95 %", text)[1]) > 0.9


def test_nothing_is_warned_about(played):
    said = printed(played, "stderr")
    assert "Warning" not in said, said


def test_it_is_stored_without_outputs_and_without_a_path_of_a_machine(tutorial):
    assert outputs(tutorial) == [], "clear all outputs before you save"
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.findall(r"/(?:home|root|tmp|work|Users|usr)/[\w./-]*", text) == []
