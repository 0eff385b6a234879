"""What is shipped: the wheel, the archive that Beam makes of `setup.py`, the wheel of the installed code, the image."""

from __future__ import annotations

import ast
import configparser
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from beam_jobs import stack
from beam_jobs.runners.dataflow import build_wheel

ROOT = Path(__file__).parent.parent
PACKAGES = ("beam_jobs", "components", "feedline", "pipeline", "trainer")
BESIDE = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "constraints")
# Import -> distribution, where another `-` is not all that they differ in.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "absl": "absl-py",
    "apitools": "google-apitools",
    "cv2": "opencv-python-headless",
    "google.cloud": "google-cloud-storage",
    "google.protobuf": "protobuf",
    "grpc": "grpcio",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
# The Python of Airflow runs these, and where there is no certifi the certificates of the system do.
OF_OTHERS = {"airflow", "alembic", "sqlalchemy", "certifi"}
# What only an extra can do, and its module is imported by nothing that works without.
OF_EXTRAS = {
    "beam_jobs/storage/object_stores/gcs.py": "gcp",
    "beam_jobs/storage/object_stores/s3.py": "aws",
    **dict.fromkeys(
        (
            f"pipeline/{name}.py"
            for name in ("pipeline", "runs/history", "runs/lineage", "runs/lineage_find", "runs/summary")
        ),
        "tfx",
    ),
    "trainer/serving/preprocessing.py": "tfx",
}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy, because building leaves files behind."""
    target = tmp_path_factory.mktemp("checkout")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BESIDE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target / name)
    (target / "tests").mkdir()
    (target / "tests" / "__init__.py").write_text("")  # what must never be installed
    return target


@pytest.fixture(scope="module")
def wheel(checkout, tmp_path_factory) -> dict[str, bytes]:
    """Name -> content of the files of the wheel that `setup.py` makes, in a process with nothing but setuptools."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-W", "ignore", "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(out)]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return contents(path)


def contents(path: str | Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def without_info(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if ".dist-info/" not in name}


def of_packages() -> dict[str, bytes]:
    """Every file of the packages as they lie in the checkout."""
    paths = (path for package in PACKAGES for path in (ROOT / package).rglob("*"))
    kept = (path for path in paths if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in kept}


def constraint(name: str, file: str, python: str = platform.python_version()) -> str:
    """Version of a package in the lock of a stack, for a version of Python."""
    lines = [line for line in (ROOT / file).read_text().splitlines() if line.startswith(f"{name}==")]
    markers = {"python_full_version": python}
    asked = (Requirement(line) for line in lines)
    (found,) = (one for one in asked if one.marker is None or one.marker.evaluate(markers))
    return str(found.specifier).removeprefix("==")


def dockerfile() -> list[list[str]]:
    """Instructions, continued lines joined and comments left out."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def instructions(name: str) -> list[list[str]]:
    return [words[1:] for words in dockerfile() if words[0] == name]


def test_the_wheel_holds_every_file_of_the_packages_and_no_other(wheel):
    assert without_info(wheel) == of_packages()


def requirements(wheel: dict[str, bytes]) -> dict[str, set[str]]:
    """Distribution -> the extras that require it; "" is what is always installed."""
    (text,) = (data.decode() for name, data in wheel.items() if name.endswith("METADATA"))
    extras = re.findall(r"^Provides-Extra: (.+)$", text, flags=re.MULTILINE)
    found: dict[str, set[str]] = {}
    for line in re.findall(r"^Requires-Dist: (.+)$", text, flags=re.MULTILINE):
        asked = Requirement(line)
        for extra in ("", *extras):
            if asked.marker is None or asked.marker.evaluate({"extra": extra, "python_version": "3.10"}):
                found.setdefault(asked.name.lower(), set()).add(extra)
    return found


def imports(*, whole: bool) -> dict[tuple[str, str], int]:
    """(File, distribution) -> line of what is imported from elsewhere: anywhere, or when the module is."""
    found = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree) if whole else tree.body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
            for module in modules:
                top = ".".join(module.split(".")[: 2 if module.startswith("google.") else 1])
                if top not in sys.stdlib_module_names and top not in PACKAGES:
                    name = DISTRIBUTIONS.get(top, re.sub("[._]", "-", top))
                    found[path.relative_to(ROOT).as_posix(), name] = node.lineno
    return found


def test_every_import_is_required_by_the_wheel_or_an_extra_that_users_install(wheel):
    required = {name for name, extras in requirements(wheel).items() if extras - {"dev"}}
    assert {(file, name) for file, name in imports(whole=True) if name not in required | OF_OTHERS} == set()


def test_without_extras_a_module_imports_what_is_always_installed(wheel):
    required = requirements(wheel)
    needs = {
        file: required[name]
        for file, name in imports(whole=False)
        if not file.startswith("components/") and "" not in required[name]
    }
    assert {file: extras & {OF_EXTRAS.get(file)} for file, extras in needs.items()} == {
        file: {extra} for file, extra in OF_EXTRAS.items()
    }


def test_the_licence_is_an_spdx_expression_and_its_text_is_in_the_wheel(wheel):
    (text,) = (data.decode() for name, data in wheel.items() if name.endswith("METADATA"))
    assert "License-Expression: Apache-2.0\n" in text
    assert "License ::" not in text
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)


def test_the_wheel_starts_the_command_line(wheel):
    (text,) = (data.decode() for name, data in wheel.items() if name.endswith("entry_points.txt"))
    points = configparser.ConfigParser()
    points.read_string(text)
    assert points["console_scripts"]["feedline"] == "pipeline.entry:main"


def test_the_wheel_of_the_installed_code_is_the_same_code(wheel, tmp_path):
    made = contents(build_wheel(str(tmp_path)))
    assert without_info(made) == without_info(wheel)
    text = next(data.decode() for name, data in made.items() if name.endswith("METADATA"))
    assert f"Requires-Dist: tensorflow=={constraint('tensorflow', stack.constraints())}\n" in text
    assert f"Requires-Dist: apache-beam=={constraint('apache-beam', stack.constraints())}\n" in text
    assert "extra ==" not in text


def test_beam_packs_the_same_files_from_the_setup_file(wheel, checkout, tmp_path):
    from apache_beam.runners.portability.stager import Stager

    archive = Stager._build_setup_package(str(checkout / "setup.py"), str(tmp_path))
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert set(without_info(wheel)) <= names
    assert not any(name.startswith("tests/") for name in names)


def arguments(name: str) -> str:
    """Value of the argument of the build, unless another is given."""
    (found,) = (words[0].partition("=")[2] for words in instructions("ARG") if words[0].startswith(f"{name}="))
    return found


def test_the_image_is_made_of_what_is_there_and_sent_to_the_builder():
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert ignored[0] == "*"
    sent = [line[1:] for line in ignored if line.startswith("!")]
    for words in instructions("COPY"):
        if words[0].startswith("--from="):
            continue
        for source in (word.replace("${STACK}", arguments("STACK")) for word in words[:-1]):
            assert (ROOT / source).exists(), source
            assert any(fnmatch(source, pattern) for pattern in sent), source


LEGACY = dict(
    part.split("=") for part in re.findall(r"--build-arg ([A-Z]+=\S+)", (ROOT / "Dockerfile").read_text())[-4:]
)


@pytest.mark.parametrize("given", [{}, LEGACY], ids=["current", "legacy"])
def test_the_image_has_the_versions_of_the_lock(given):
    names = ("STACK", "PYTHON", "BEAM", "DEBIAN")
    asked = {name: arguments(name) for name in names} | given
    beam = constraint("apache-beam", f"constraints/{asked['STACK']}.txt", f"{asked['PYTHON']}.0")
    assert (asked["BEAM"], asked["DEBIAN"]) == (beam, {"current": "trixie", "legacy": "bookworm"}[asked["STACK"]])
    bases = [words[0] for words in instructions("FROM")]
    launcher = "gcr.io/dataflow-templates-base/python311-template-launcher-base"
    own = ["python:${PYTHON}-slim-${DEBIAN}"] * 2
    assert bases == ["apache/beam_python${PYTHON}_sdk:${BEAM}", *own, launcher, "worker", "worker"]
    for words in instructions("RUN"):
        text = " ".join(words)
        assert not re.search("pip (install|wheel)", text) or "--constraint constraints/${STACK}.txt" in text
        assert set(re.findall(r"apache-beam\[gcp\]==([^\"]+)", text)) <= {"${BEAM}"}


def test_the_image_asks_for_extras_that_exist_and_starts_what_it_copies():
    tree = ast.parse((ROOT / "setup.py").read_text())
    extras = next(node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "EXTRAS")
    known = {key.value for key in extras.keys}
    assert set(arguments("EXTRAS").split(",")) <= known
    (entry,) = instructions("ENTRYPOINT")
    copied = [words[-1] for words in instructions("COPY") if words[0] == "--from=beam"]
    assert entry[0] == f'["{copied[0]}/boot"]'


def test_the_template_starts_a_program_of_the_package():
    (program,) = re.findall(r"command -v ([-\w]+)", (ROOT / "Dockerfile").read_text())
    assert program in [script.name for script in metadata.entry_points(group="console_scripts")]
    link = [words[-1] for words in instructions("RUN") if words[0] == "ln"]
    variables = dict(words[0].split("=") for words in instructions("ENV"))
    assert variables["FLEX_TEMPLATE_PYTHON_PY_FILE"] == f"{instructions('WORKDIR')[0][0]}/{link[0]}"
