"""Data is never run: no source of the product calls what could, but where it says why it may."""

from __future__ import annotations

import pytest

from tests.unsafe_calls import found_in_product, unescaped_in_templates, unsafe

ALLOWED = {
    ("beam_jobs/lazy.py", "importlib.import_module"): "a module out of a list of our own",
    ("beam_jobs/engines/__init__.py", "importlib.import_module"): "an engine out of a list of our own",
    ("pipeline/cli/__init__.py", "importlib.import_module"): "a command out of a list of our own",
    ("pipeline/cli/compile.py", "importlib.import_module"): "a target out of a list of our own",
    ("pipeline/doctor/__init__.py", "importlib.import_module"): "a target out of a list of our own",
    ("trainer/models/own.py", "importlib.import_module"): "a model of the user's own, named in the settings",
    ("pipeline/kubeflow_container.py", "runpy"): "the entry point of TFX, a constant",
    ("pipeline/yaml_text.py", "yaml.load"): "with a loader that is a SafeLoader",
    ("trainer/serving.py", "pickle"): "between a process and its child, in a directory of theirs",
    ("trainer/serving.py", "keras.saving.load_model"): "what the parent process saved, in the same directory",
    ("trainer/predict.py", "tensorflow.saved_model.load"): "a model that the user names",
    ("components/dataset_report/mistakes.py", "tensorflow.saved_model.load"): "a model that the user names",
}


def test_nothing_unsafe_is_called_but_where_it_says_why():
    assert found_in_product() == set(ALLOWED)


def test_templates_leave_unescaped_only_files_of_our_own():
    assert unescaped_in_templates() == {"style", "script"}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pickle", ["pickle"]),
        ("from pickle import load as read", ["pickle"]),
        ("import marshal, shelve", ["marshal", "shelve"]),
        ("import xml.etree.ElementTree as tree", ["xml.etree.ElementTree"]),
        ("eval(text)", ["eval"]),
        ("exec(text)", ["exec"]),
        ("import builtins\nbuiltins.exec(text)", ["builtins.exec"]),
        ("import os as o\no.system(text)", ["os.system"]),
        ("from os import popen\npopen(text)", ["os.popen"]),
        ("import subprocess\nsubprocess.run(text, shell=True)", ["subprocess.run, shell"]),
        ("from subprocess import Popen as P\nP(text, shell=kind)", ["subprocess.Popen, shell"]),
        ("import subprocess\nsubprocess.run(parts, shell=False)", []),
        ("import yaml\nyaml.load(text, yaml.Loader)", ["yaml.load"]),
        ("import yaml\nyaml.safe_load(text)", []),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", ["numpy.load, unpickling"]),
        ("import numpy as np\nnp.load(path, allow_pickle=False)", []),
        ("archive.extractall(path)", ["extractall"]),
        ("archive.extract(member, path)", ["extract"]),
        ("import torch\ntorch.load(path)", ["torch"]),
        ("import keras\nkeras.saving.load_model(path)", ["keras.saving.load_model"]),
        ("import keras\nkeras.Model.from_config(x, safe_mode=False)", ["keras.Model.from_config, unpickling"]),
        ("import tensorflow as tf\ntf.saved_model.load(path)", ["tensorflow.saved_model.load"]),
        ("from PIL import Image\nImage.open(path)", ["PIL.Image.open, any format"]),
        ("from PIL import Image\nImage.open(path, formats=('PNG',))", []),
        ("import jinja2\njinja2.Environment()", ["jinja2.Environment, no escaping"]),
        ("import jinja2\njinja2.Environment(autoescape=True)", []),
        ("from markupsafe import Markup\nMarkup(text)", ["markupsafe.Markup"]),
        ("from importlib import import_module\nimport_module(name)", ["importlib.import_module"]),
        ("import importlib\nimportlib.import_module('json')", []),
        ("import csv\ncsv.writer(stream)", ["csv.writer"]),
        ("import csv\ncsv.DictReader(stream)", []),
        ("import re\nre.compile(text)\nmodel.compile()", []),
    ],
)
def test_what_is_unsafe_is_found(source, found):
    assert list(unsafe(source)) == found
