"""Data is never run: no source of the product calls what could, but where it says why it may."""

from __future__ import annotations

import pytest

from tests.unsafe_calls import found_in_product, unescaped_in_templates, unsafe

ALLOWED = {
    ("beam_jobs/common/child_python.py", "-c"): "code of the callers, constants of theirs",
    ("beam_jobs/common/__init__.py", "importlib.import_module"): "a module out of a list of our own",
    ("beam_jobs/runners/__init__.py", "importlib.import_module"): "an engine out of a list of our own",
    ("pipeline/cli/__init__.py", "importlib.import_module"): "a command out of a list of our own",
    ("pipeline/cli/compile.py", "importlib.import_module"): "a target out of a list of our own",
    ("pipeline/doctor/__init__.py", "importlib.import_module"): "a target out of a list of our own",
    ("trainer/models/custom.py", "importlib.import_module"): "a model of the user's own, named in the settings",
    ("pipeline/runners/kubeflow_container.py", "runpy"): "the entry point of TFX, a constant",
    ("beam_jobs/common/yaml_text.py", "yaml.load"): "with a loader that is a SafeLoader",
    ("beam_jobs/sources/coco_json.py", "marshal"): "values that this process wrote, in a directory of its own",
    ("trainer/serving/export.py", "pickle"): "between a process and its child, in a directory of theirs",
    ("trainer/serving/export.py", "keras.saving.load_model"): "what the parent process saved, in the same directory",
    ("trainer/serving/predict.py", "tensorflow.saved_model.load"): "a model that the user names",
}


def test_nothing_unsafe_is_called_but_where_it_says_why():
    assert found_in_product() == set(ALLOWED)


def test_templates_leave_unescaped_only_files_of_our_own():
    assert unescaped_in_templates() == {"style", "script"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import xml.etree.ElementTree as tree", ["xml.etree.ElementTree"]),
        ("import os as o\no.system(text)", ["os.system"]),
        ("eval(text)", ["eval"]),
        ("from subprocess import Popen as P\nP(text, shell=kind)", ["subprocess.Popen, shell"]),
        ("import subprocess\nsubprocess.run(parts, **options)", ["subprocess.run, shell"]),
        ("import subprocess\nsubprocess.Popen(parts, 0, 0, 0, 0, 0, 0, True, yes)", ["subprocess.Popen, shell"]),
        ("command = ('/usr/bin/env', '/bin/bash', '-e', '-lc', text)", ["a shell"]),
        ("import shlex\ncommand = shlex.split(f'sh -e -c {text}')", ["a shell"]),
        ("archive.extractall(path)", ["extractall"]),
        ("import numpy as np\nnp.load(path, None, True)", ["numpy.load, unpickling"]),
        ("import keras\nkeras.Model.from_config(x, safe_mode=False)", ["keras.Model.from_config, unpickling"]),
        ("from PIL import Image\nImage.open(path)", ["PIL.Image.open, any format"]),
        ("import jinja2\njinja2.Environment()", ["jinja2.Environment, no escaping"]),
        ("import importlib\nimportlib.import_module('pickle')", ["importlib.import_module"]),
    ],
)
def test_what_is_unsafe_is_found(source, found):
    assert list(unsafe(source)) == found
