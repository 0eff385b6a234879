"""What the options of the command line that are no settings change, each run without and with it.

An option that is a setting has its row in another file here; one that costs too much is tested where `ELSEWHERE` says.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from beam_jobs.dataset import manifest
from beam_jobs.dataset.manifest import Manifest
from pipeline import cli
from pipeline.cli.ingest_options import option_names
from pipeline.cli.reference import every_command
from tests.components.conftest import always_first_class
from tests.make_images import class_folders, jpeg
from tests.pipeline.runs.test_lineage import make as make_root
from tests.settings.published import threads_started
from tests.settings.table import COVERED, documented, grows

__all__ = ["always_first_class"]

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[2]
# Option that many commands have -> the test of all of them. The help is click's own, and no parameter of a command.
EVERYWHERE = {
    "--json": "tests/pipeline/cli/test_json_schema.py::test_every_command_with_a_result_has_a_schema",
    "--json-schema": "tests/pipeline/cli/test_json_schema.py::test_the_schema_is_printed_without_any_other_argument",
}
# Command and option -> the test of what costs too much here, or needs a terminal.
_VERIFY_ON_FLINK = "tests/engines/test_flink.py::test_verify_on_an_embedded_cluster_finds_what_this_process_finds"
ELSEWHERE = {
    ("verify", "-c"): "tests/pipeline/cli/test_verify.py::test_the_runner_of_the_configuration_is_used",
    **{("verify", option): _VERIFY_ON_FLINK for option in ("--work", "--runner", "--runner-option")},
    ("inspect", "--draw"): "tests/pipeline/cli/test_inspect.py::test_a_terminal_gets_a_ruled_table_and_drawings",
    ("bench input", "--ablation"): "tests/pipeline/cli/test_json_schema.py::test_the_result_of_bench",
    ("run", "--verbose"): "tests/pipeline/runners/test_local.py::"
    "test_log_lines_go_to_the_file_progress_to_the_user_and_logging_is_put_back",
    ("run", "--fast"): "tests/test_reruns.py::test_the_record_of_a_run_says_what_all_components_would",
    ("demo", "--fast"): "tests/pipeline/cli/test_demo.py::test_the_demo_answers_from_the_record_if_it_may",
}
FILES = {
    "pipeline.yaml": "name: first\nroot: work\ningest: {source: photos, splits: {one: 1, two: 1}}\n"
    "input: {parse_batch: 7, image_side_px: 8}\ntrain: {epochs: 3}\n",
    "second.yaml": "name: second\nroot: work\ningest: {source: photos}\n",
    "targets.yaml": "root: gs://bucket/work\ningest: {source: gs://bucket/raw}\nkubeflow: {image: registry/image:1}\n",
    "old.pbtxt": 'feature { name: "old" }',
    "server.jar": "",
    "java/bin/java": "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n",  # a dry run asks for no more
}


@dataclass(frozen=True)
class Ran:
    """A command that ended: its exit code, what it printed and said, its folder, and the threads it used for images."""

    code: int
    out: str
    err: str
    folder: Path
    threads: int

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)

    def manifest(self, name: str = "new") -> Manifest:
        return manifest.load(str(self.folder / name))

    def files(self, pattern: str) -> list[str]:
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.glob(pattern))

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


Observe = Callable[[Ran], Any]
Run = Callable[[str], Ran]


@dataclass(frozen=True)
class Row:
    """One option of a command.

    Attributes:
      name: the command, as it is typed behind `feedline`, and the first name of the option.
      words: of both command lines.
      given: further words of the one with the option.
      observe: looks at the end of the way.
      expected: what is observed without and with the option, or a function that compares both.
      without: further words of the line without the option, or with another value of it.
    """

    name: str
    words: str
    given: str
    observe: Observe
    expected: tuple[Any, Any] | Callable[[Any, Any], bool]
    without: str = ""

    @property
    def place(self) -> tuple[str, str]:
        """Command and option."""
        command, _, option = self.name.rpartition(" ")
        return command, option

    def check(self, run: Run) -> None:
        """Runs both command lines and compares."""
        command, option = self.place
        assert option in shlex.split(self.given)
        before, after = (run(" ".join([command, self.words, more])) for more in (self.without, self.given))
        found = self.observe(before), self.observe(after)
        assert found[0] != found[1], (found, before, after)
        if isinstance(self.expected, tuple):
            assert found == self.expected, after
        else:
            assert self.expected(*found), (found, after)


def coded(observe: Observe) -> Observe:
    """Returns what observes the exit code too."""
    return lambda ran: (ran.code, observe(ran))


def has(word: str) -> Observe:
    return lambda ran: word in ran.out


def new(ran: Ran) -> list[str]:
    return ran.files("new*")


def images(name: str) -> Observe:
    return coded(lambda ran: ran.manifest(name).counts.written)


def labels(ran: Ran) -> tuple[str, ...]:
    return ran.manifest().labels


def epochs(ran: Ran) -> int:
    return ran.json["settings"]["train"]["epochs"]


def engine(ran: Ran) -> str:
    return re.findall(r"^engine +(\w+)$", ran.out, re.MULTILINE)[0]


def cores(ran: Ran) -> str:
    return re.findall(r" on (\d+) cores", ran.out)[0]


def shown(ran: Ran) -> list[str]:
    """Keys of the records that are shown."""
    return re.findall(r"^  image/filename +(\S+/\S+)$", ran.out, re.MULTILINE)


def suffixes(ran: Ran) -> set[str]:
    return {Path(name).suffix for name in ran.files("new/**/*-0000*")}


def in_report(ran: Ran) -> list[str]:
    """Of some sections of the report, those it has."""
    return re.findall(r'<section id="(augmentation|mistakes)"', ran.text("report.html"))


def rejected(ran: Ran) -> int:
    """Pictures of what was rejected in the report."""
    return ran.text("report.html").partition('<section id="rejects"')[2].partition("</section>")[0].count("<img")


def refused(ran: Ran) -> list[str]:
    """The root that cannot be written."""
    return re.findall(r"root (\S+) cannot be written", ran.err)


def source_of(ran: Ran) -> str:
    """The source that a new project names."""
    return Path(yaml.safe_load(ran.text("new/pipeline.yaml"))["ingest"]["source"]).name


def inferred(ran: Ran) -> list[str]:
    """The files that hold the schema of a dataset."""
    return [name for name in ran.files("*.pbtxt") if "image/format" in ran.text(name)]


def compiled(ran: Ran) -> dict[str, bool]:
    """The new files, and whether each is for Airflow."""
    return {name: "make_dag" in ran.text(name) for name in new(ran)}


def pipeline_of(ran: Ran) -> str:
    """The name of a pipeline that was written for Airflow."""
    return ran.err.split()[-1]


def checks(ran: Ran) -> dict[str, bool]:
    """What the doctor found out about a cluster and an image, if it looked."""
    return {check["name"]: check["ok"] for check in ran.json["checks"] if check["name"] in ("cluster", IMAGE)}


def croissant(option: str, value: str, name: str, entry: Any) -> Row:
    """Returns the row of an option of `export` that makes an entry of the Croissant metadata."""
    line, file = "dataset --to croissant --out new", "new/croissant.json"
    given = shlex.join([option, value])
    return Row(f"export {option}", line, given, lambda ran: json.loads(ran.text(file)).get(name), (None, entry))


def bench(option: str, observe: Observe, expected: tuple[Any, Any]) -> Row:
    """Returns a row of the bench. It costs seconds of CPU, so all its options change at once; each is seen alone."""
    before = "--split train --image-side 8 --batch-size 2 --threads 1 --seconds 0.05"
    after = (
        "--split eval -c pipeline.yaml --image-side 12 --batch-size 3 --ops 'decode|resize(12)' --threads 2"
        " --model small_cnn --seconds 0.06 --html new.html"
    )
    return Row(f"bench input {option}", "dataset --json", after, observe, expected, before)


def fact(name: str) -> Observe:
    return lambda ran: ran.json["facts"][name]


def ops(ran: Ran) -> list[str]:
    return [stage["name"] for stage in ran.json["stages"] if stage["kind"] in ("decode", "augment")]


NEW, TARS, ABSENT = "photos --out new", "dataset --to webdataset --out new", "--images nowhere --root new"
SPANS = "batches/{SPAN}/v{VERSION} --out new --splits all=1"
DRY, FLINK = f"{NEW} --dry-run", "--runner flink --runner-option job_server_jar=server.jar"
SLOTS, OLD, IMAGE = "--runner-option parallelism=", "--out old.pbtxt", "container image"
SHOW = "--images photos --root work --show-config --json"
AIRFLOW, KUBEFLOW = "--target airflow --out new.py", "--target kubeflow --out new.json"
LOCAL = f"{AIRFLOW} --set root=work --set ingest.source=photos"
REFUSED_OR_DONE, OTHER_OUT = ((2, False), (0, True)), (["new1"], ["new2"])

ROWS = [
    Row("--version", "", "--version", coded(has("feedline, version")), REFUSED_OR_DONE),
    Row(" --debug", "verify photos", "--debug", lambda ran: "Traceback" in ran.err, (False, True)),
    Row("demo --root", "", "--root second.yaml", refused, (["server.jar"], ["second.yaml"]), "--root server.jar"),
    Row("init --images", "new", "--images batches", source_of, ("photos", "batches")),
    Row("ingest --out", "photos", "--out new2", new, OTHER_OUT, "--out new1"),
    Row("ingest --span", SPANS, "--span 1", labels, (("second",), ("first_v2",))),
    Row("ingest --span-version", f"{SPANS} --span 1", "--span-version 1", labels, (("first_v2",), ("first_v1",))),
    Row("ingest --overwrite", "china --out dataset", "--overwrite", images("dataset"), ((2, 12), (0, 6))),
    Row("ingest --append", "more --out dataset", "--append", images("dataset"), ((2, 12), (0, 13))),
    Row("ingest --retry-rejects", "mended --out gaps", "--retry-rejects", images("gaps"), ((2, 5), (0, 6))),
    Row(
        "ingest --dry-run", NEW, "--dry-run", lambda ran: (has("sample")(ran), new(ran)), ((False, ["new"]), (True, []))
    ),
    Row(
        "ingest -c", NEW, "-c pipeline.yaml", lambda ran: [*ran.manifest().splits], (["train", "eval"], ["one", "two"])
    ),
    Row("ingest --runner", DRY, FLINK, engine, ("local", "flink")),
    Row("ingest --runner-option", f"{DRY} {FLINK}", f"{SLOTS}5", cores, ("3", "5"), f"{SLOTS}3"),
    Row("run -c", SHOW, "-c pipeline.yaml", epochs, (10, 3)),
    Row("run --set", SHOW, "--set train.epochs=4", epochs, (10, 4)),
    Row("run --show-config", ABSENT, "--show-config", coded(has("epochs: 10")), REFUSED_OR_DONE),
    Row("verify --threads", "dataset", "--threads 2", lambda ran: ran.threads > 0, (False, True), "--threads 1"),
    Row("inspect -n", "dataset", "-n 9", lambda ran: len(shown(ran)), (3, 9), "-n 3"),
    Row("inspect --key", "dataset -n 1", "--key flower/002.png", shown, lambda _, after: after == ["flower/002.png"]),
    Row("inspect --export", "dataset -n 3", "--export new", lambda ran: len(ran.files("new/*")), (0, 3)),
    Row("diff --limit", "half dataset", "--limit 2", lambda ran: ran.out.count("\n  + "), (6, 2)),
    Row("diff --exit-code", "half dataset", "--exit-code", lambda ran: ran.code, (0, 3)),
    Row("export --to", "dataset --out new", "--to parquet", suffixes, ({".tar"}, {".parquet"}), "--to webdataset"),
    Row("export --out", "dataset --to dali", "--out new2", new, OTHER_OUT, "--out new1"),
    Row("export --split", TARS, "--split eval", coded(has("train ")), ((0, True), (0, False))),
    Row("export --shard-mb", TARS, "--shard-mb 0.005", lambda ran: len(ran.files("new/**/*.tar")), grows),
    croissant("--license", "CC-BY-4.0", "license", "https://spdx.org/licenses/CC-BY-4.0.html"),
    croissant("--creator", "Ada", "creator", [{"@type": "sc:Person", "name": "Ada"}]),
    croissant("--organization", "Acme", "creator", [{"@type": "sc:Organization", "name": "Acme"}]),
    croissant("--title", "Two Animals", "alternateName", "Two Animals"),
    Row(
        "export --intended-use",
        "dataset --to croissant --out new",
        "--intended-use 'To tell them apart.'",
        lambda ran: json.loads(ran.text("new/croissant.json"))["description"].partition(". ")[0],
        lambda before, after: before != after == "To tell them apart",
    ),
    croissant("--citation", "Ada, 2026", "citeAs", "Ada, 2026"),
    croissant("--url", "https://a.example", "url", "https://a.example"),
    croissant("--date-published", "2026-01-31", "datePublished", "2026-01-31"),
    Row("report --model", "dataset", "--model serving", in_report, ([], ["mistakes"])),
    Row("report --images", "gaps", "--images mended", rejected, (0, 1)),
    Row("report -c", "dataset", "-c pipeline.yaml", in_report, ([], ["augmentation"])),
    Row("report --all", "dataset", "--all pages", lambda ran: len(ran.files("pages/*.html")), (0, 5)),
    Row("report --out", "dataset", "--out new1", new, ([], ["new1"])),
    Row("schema init --out", "dataset --overwrite", "--out old.pbtxt", inferred, (["schema.pbtxt"], ["old.pbtxt"])),
    Row(
        "schema init --overwrite", "dataset", f"--overwrite {OLD}", coded(inferred), ((2, []), (0, ["old.pbtxt"])), OLD
    ),
    Row("lineage --root", "copy", "--root work", coded(has("it is a copy")), REFUSED_OR_DONE),
    Row("compile --target", "-c targets.yaml", KUBEFLOW, compiled, ({"new.py": True}, {"new.json": False}), LOCAL),
    Row("compile -c", AIRFLOW, "-c second.yaml", pipeline_of, ("first", "second"), "-c pipeline.yaml"),
    Row(
        "compile --out",
        "--target kubeflow -c targets.yaml",
        "--out new2.json",
        new,
        (["new1.json"], ["new2.json"]),
        "--out new1.json",
    ),
    Row("compile --set", f"{AIRFLOW} -c second.yaml", "--set name=third", pipeline_of, ("second", "third")),
    Row(
        "doctor --target", "--json", "--target kubeflow", checks, ({"cluster": True}, {IMAGE: False}), "--target flink"
    ),
    Row("doctor -c", "--target kubeflow --json", "-c targets.yaml", checks, ({IMAGE: False}, {IMAGE: True})),
    Row(
        "doctor --set",
        "--target kubeflow --json",
        "--set kubeflow.image=registry/image:1",
        checks,
        ({IMAGE: False}, {IMAGE: True}),
    ),
    bench("--split", fact("records"), (5, 7)),
    bench("-c", fact("parse_batch"), (64, 7)),
    bench("--image-side", fact("side_px"), (8, 12)),
    bench("--batch-size", fact("batch_size"), (2, 3)),
    bench("--ops", ops, (["decode_random_crop(8)", "flip"], ["decode", "resize(12)"])),
    bench("--threads", fact("threads"), (1, 2)),
    bench("--model", lambda ran: ran.json["trained"] is None, (True, False)),
    bench("--seconds", lambda ran: re.findall(r"cases, (\S+) s each", ran.err), (["0.05"], ["0.06"])),
    bench("--html", new, ([], ["new.html"])),
]


def make_place(place: Path, model: Path) -> None:
    """Writes what all command lines find, but for the datasets."""
    for name, classes in {"photos": ("china", "flower"), "china": ("china",), "mended": ("china",)}.items():
        class_folders(place / name, 6, classes)
    (place / "mended/china/000.jpg").write_bytes(b"no image")
    shutil.copytree(place / "photos", place / "more")
    (place / "more/china/new.jpg").write_bytes(jpeg(7))
    for name, label in {"1/v1": "first_v1", "1/v2": "first_v2", "2/v1": "second"}.items():
        class_folders(place / "batches" / name, 2, (label,))
    (place / "java/bin").mkdir(parents=True)
    for name, text in FILES.items():
        (place / name).write_text(text)
    (place / "java/bin/java").chmod(0o755)
    shutil.copytree(model, place / "serving/1")
    make_root(place / "work")
    shutil.copytree(place / "work/serving/1700000000", place / "copy")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, always_first_class: Path) -> Iterator[Run]:
    """Runs command lines in this process: each once, and each in a copy of one folder."""
    from trainer.bench import measure

    root, made = tmp_path_factory.mktemp("commands"), {}
    place = root / "place"

    def execute(line: str) -> Ran:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), threads_started() as started:
            code = cli.execute(shlex.split(line))
        threads = len({name for name in started if name.startswith("feedline_")})
        return Ran(code, out.getvalue(), err.getvalue(), Path.cwd(), threads)

    def ran(line: str) -> Ran:
        if line not in made:
            folder = shutil.copytree(place, root / str(len(made)))
            patch.chdir(folder)
            made[line] = execute(line)
        return made[line]

    with pytest.MonkeyPatch.context() as patch:
        make_place(place, always_first_class)
        patch.chdir(place)
        patch.setenv("JAVA_HOME", str(place / "java"))
        patch.setattr(measure, "measure", functools.partial(measure.measure, rounds=1))  # what is measured stays
        for source, out in {"photos": "dataset", "china": "half"}.items():
            assert execute(f"ingest {source} --out {out} --splits train=0.5,eval=0.5 --shards 2").code == 0
        assert execute("ingest mended --out gaps --max-reject-ratio 1").code == 0
        (place / "mended/china/000.jpg").write_bytes(jpeg())
        yield ran


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_option_changes_the_end_of_the_way(row: Row, run: Run):
    row.check(run)


# --- options that are settings


COMMANDS = {context.command_path.partition(" ")[2]: command for command, context in every_command()}
SETTINGS = {key for covered in COVERED.values() for section in covered for key in documented(section)}
VALUES = {
    "--license": "MIT",
    "--url": "https://a.example",
    "--date-published": "2026-01-31",
    "--min-accuracy": "0.25",
    "--max-reject-ratio": "0.25",
    "--splits": "a=1,b=1",
    "--plan-memory-mb": "200",
}


def settings_of(name: str) -> dict[str, str]:
    """Option of `run` or `ingest` -> the setting with a row that it sets."""
    command = COMMANDS[name]
    values = {parameter.name: ("x",) if parameter.multiple else "a=1" for parameter in command.params}
    found = {option: key for key, option in option_names(command, values).items() if key in SETTINGS}
    return {option: key for option, key in found.items() if name == "run" or key.startswith("ingest.")}


def words_of(option: str) -> list[str]:
    """Returns an option of `run` with a value that is not its default."""
    [parameter] = [one for one in COMMANDS["run"].params if option in one.opts]
    if parameter.is_flag:
        return [option]
    if isinstance(parameter.type, click.Choice):
        return [option, parameter.type.choices[-1]]
    return [option, VALUES.get(option, "5" if parameter.type in (click.INT, click.FLOAT) else "other")]


def set_by(option: str, run: Run) -> str | None:
    """The setting that an option of `run` changes, as `--show-config` says it; None when nothing changes."""
    source = ["--images", "batches/{SPAN}/v{VERSION}"]
    key = settings_of("run")[option]
    values = []
    for words in (source, [*(source if option != "--dataset" else []), *words_of(option)]):
        ran = run(shlex.join(["run", "--root", "work", *words, "--show-config", "--json"]))
        if option == "--facts" and ran.code == 2 and f" ({key} from option {option})" in ran.err:
            return key  # a pipeline refuses its only other value, and says where it comes from
        found = ran.json
        values.append(functools.reduce(lambda node, name: node.get(name), key.split("."), found["settings"]))
    return key if values[0] != values[1] and found["origin"][key] == f"option {option}" else None


@pytest.mark.timeout(600)
def test_every_option_that_is_a_setting_sets_it(run: Run):
    assert {option: set_by(option, run) for option in settings_of("run")} == settings_of("run")


def test_ingest_and_run_have_the_same_options_of_the_ingest():
    of_run = {option: key for option, key in settings_of("run").items() if key.startswith("ingest.")}
    assert settings_of("ingest") == {option: key for option, key in of_run.items() if option != "--images"}
    assert len(of_run) > 40


# --- completeness


def test_every_option_of_every_command_is_shown_to_have_an_effect():
    known = {
        (name, parameter.opts[0])
        for name, command in COMMANDS.items()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
    }
    settings = {(name, option) for name in ("ingest", "run") for option in settings_of(name)}
    parts = [{row.place for row in ROWS}, settings, {place for place in known if place[1] in EVERYWHERE}, {*ELSEWHERE}]
    assert set().union(*parts) == known
    assert sum(map(len, parts)) == len(known)


def test_what_is_shown_elsewhere_is_there():
    places = [place.partition("::") for place in (*EVERYWHERE.values(), *ELSEWHERE.values())]
    tests = [(ROOT / path, re.compile(rf"^def {name}\(", re.MULTILINE)) for path, _, name in places]
    assert [str(path) for path, test in tests if not test.search(path.read_text(encoding="utf-8"))] == []
