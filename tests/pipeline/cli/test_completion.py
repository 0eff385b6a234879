"""Completion in a shell: the scripts, and what real shells offer with them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.command import PROGRAMS, python, read_terminal

HEAVY = ("tensorflow", "apache_beam", "tfx", "numpy", "pyarrow", "ml_metadata")
# Calls the function of the script as bash would, and prints what it offers.
_IN_BASH = """
eval "$(feedline completion bash)"
COMP_WORDS=({words}); COMP_CWORD={place}
_feedline_completion feedline 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def place(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a dataset that says its splits."""
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")
    (here / "photos").mkdir()
    (here / "phone.yaml").touch()
    (here / "dataset").mkdir()
    (here / "dataset" / "dataset.json").write_text('{"splits": {"train": {}, "eval": {}}}')
    return here


def bash(script: str) -> str:
    command = ["bash", "--norc", "--noprofile", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def offered(words: str) -> list[str]:
    """What bash offers for the last word, which may be empty: `words` ends with a space then."""
    typed = words.split(" ")
    quoted = " ".join(f"'{word}'" for word in typed)
    return bash(_IN_BASH.format(words=quoted, place=len(typed) - 1)).split()


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("feedline in", ["init", "ingest", "inspect"]),
        ("feedline schema ", ["init", "show", "diff"]),
        ("feedline ingest photos --near-duplicates ", ["auto", "off", "report", "group", "drop"]),
        ("feedline bench input dataset --split ", ["train", "eval"]),
        ("feedline bench input photos --split ", []),
    ],
)
def test_bash_offers_names_and_values(place, words, values):
    assert offered(words) == values


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("feedline ingest pho\\t\\t", ["phone.yaml", "photos"]),  # a source may be either
        ("feedline verify pho\\t", ["photos/"]),  # a dataset is a directory
    ],
)
def test_bash_completes_paths_from_the_files_it_sees(place, typed, line):
    said = in_a_terminal(typed)
    assert all(part in said for part in line), said
    assert ("phone.yaml" in said) == ("phone.yaml" in line)


STARTED = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
LOADED = {
    "bash": 'eval "$(feedline completion bash)"; echo loa""ded\n',
    "zsh": 'autoload -Uz compinit; compinit -u -D; eval "$(feedline completion zsh)"; echo loa""ded\n',
}
# What is typed runs this in the place of the program, which the script still asks by its path.
STAND_IN = 'feedline() { printf "ran <%s>\\n" "$*"; }; echo read""y\n'


def in_a_terminal(typed: str, shell: str = "bash", before: str = "") -> str:
    """What a terminal shows where somebody types into an interactive shell; Ctrl-U and `exit` end it."""
    import pty

    keys = typed.encode().decode("unicode_escape")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "PS1": "ready> ", "INPUTRC": os.devnull}
    process = subprocess.Popen(
        STARTED[shell], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    read_terminal(ours, "ready> ")
    os.write(ours, LOADED[shell].encode())
    read_terminal(ours, "loaded.*ready> ")  # what is typed before the prompt is not read by the editor of the line
    if before:
        os.write(ours, before.encode())
        read_terminal(ours, r"ready\r?\n.*ready> ")
    os.write(ours, keys.encode() + b"\x15exit\n")
    shown = read_terminal(ours)
    process.wait(timeout=60)
    os.close(ours)
    return shown


def needs(shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize(
    ("shell", "typed", "line"),
    [
        ("bash", "feedline ingest photos --near-dup\\t", "ingest photos --near-duplicates"),
        ("zsh", "feedline doctor --target fl\\t", "doctor --target flink"),
        ("zsh", "feedline verify datas\\t", "verify dataset"),  # zsh takes the slash back
    ],
)
def test_a_tab_completes_the_line_that_runs(place, shell, typed, line):
    needs(shell)
    shown = in_a_terminal(f"{typed}\\n", shell, STAND_IN)
    assert [words.rstrip(" /") for words in re.findall(r"ran <([^>]*)>", shown)] == [line], shown


@pytest.mark.parametrize(
    ("words", "values"), [("feedline in", {"init", "ingest", "inspect"}), ("feedline verify datas", {"dataset/"})]
)
def test_fish_offers_names_and_values(place, words, values):
    needs("fish")
    script = f"feedline completion fish | source; complete -C '{words}'"
    done = subprocess.run(["fish", "--no-config", "-c", script], capture_output=True, text=True, timeout=120)
    assert {line.partition("\t")[0] for line in done.stdout.splitlines()} == values, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_program_answers_other_shells(place, shell):
    words = {"zsh": ("feedline doctor --target f", "3"), "fish": ("feedline doctor --target f", "f")}[shell]
    environment = {**os.environ, "COMP_WORDS": words[0], "COMP_CWORD": words[1]}
    environment["_FEEDLINE_COMPLETE"] = f"{shell}_complete"
    done = subprocess.run([str(PROGRAMS / "feedline")], capture_output=True, text=True, env=environment, timeout=60)
    assert "flink" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("words", ["feedline ", "feedline run --gate "])
def test_a_completion_loads_nothing_heavy(place, words):
    code = (
        "import atexit, sys\n"
        f"atexit.register(lambda: print([name for name in {HEAVY} if name in sys.modules]))\n"
        "from pipeline.cli import main\nmain([])"
    )
    environment = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    environment["_FEEDLINE_COMPLETE"] = "bash_complete"
    done = python(code, env=environment, timeout=60)
    lines = done.stdout.splitlines()
    assert lines[-1] == "[]"
    assert len(lines) > 1, done.stderr
