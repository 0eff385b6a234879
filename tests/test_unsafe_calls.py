"""Data is never run: no source of the product calls what could, but where it says why it may."""

from __future__ import annotations

import pytest

from tests.unsafe_calls import found_in_product, unescaped_in_templates, unsafe

ALLOWED = {
    ("beam_jobs/common/child_python.py", "-c"): "code of the callers, constants of theirs",
    ("beam_jobs/common/lazy.py", "importlib.import_module"): "a module out of a list of our own",
    ("beam_jobs/runners/__init__.py", "importlib.import_module"): "an engine out of a list of our own",
    ("pipeline/cli/__init__.py", "importlib.import_module"): "a command out of a list of our own",
    ("pipeline/cli/compile.py", "importlib.import_module"): "a target out of a list of our own",
    ("pipeline/doctor/__init__.py", "importlib.import_module"): "a target out of a list of our own",
    ("trainer/models/custom.py", "importlib.import_module"): "a model of the user's own, named in the settings",
    ("pipeline/runners/kubeflow_container.py", "runpy"): "the entry point of TFX, a constant",
    ("beam_jobs/common/yaml_text.py", "yaml.load"): "with a loader that is a SafeLoader",
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
        ("import subprocess\nsubprocess.run(parts, **options)", ["subprocess.run, shell"]),
        (
            "import subprocess\nsubprocess.Popen(parts, 0, None, None, None, None, None, True, yes)",
            ["subprocess.Popen, shell"],
        ),
        ("import subprocess\nsubprocess.run(['sh', '-c', text])", ["a shell"]),
        ("import subprocess\nsubprocess.run(('/bin/bash', '-e', '-lc', text))", ["a shell"]),
        ("import subprocess\nsubprocess.run(['/usr/bin/env', 'dash', '-c', text])", ["a shell"]),
        ("import subprocess\nsubprocess.run(['cmd.exe', '/c', text])", ["a shell"]),
        ("command = ['sh', '-c']\ncommand.append(text)", ["a shell"]),
        ("command = ['sh', *['-c', text]]", ["-c"]),
        ("import shlex\ncommand = shlex.split(f'sh -e -c {text}')", ["a shell"]),
        ("import sys\ncommand = [sys.executable, '-c', text]", ["-c"]),
        ("import sys\ncommand = [sys.executable, '-c', _MAIN]", []),
        ("command = ['pip', '-c', 'constraints.txt', 'bash']", []),
        ("import asyncio\nasyncio.create_subprocess_shell(text)", ["asyncio.create_subprocess_shell"]),
        ("import asyncio\nasyncio.create_subprocess_exec('bash', '-c', text)", ["a shell"]),
        ("loop.subprocess_shell(protocol, text)", ["subprocess_shell"]),
        (
            "from airflow.operators.bash import BashOperator as B\nB(bash_command=x)",
            ["airflow.operators.bash.BashOperator"],
        ),
        ("import os\nos.popen(text)", ["os.popen"]),
        ("import os\nos.execvp(program, parts)", ["os.execvp"]),
        ("import yaml\nyaml.load(text, yaml.Loader)", ["yaml.load"]),
        ("import yaml\nyaml.load(text, Loader=yaml.SafeLoader)", ["yaml.load"]),
        ("from yaml import unsafe_load\nunsafe_load(text)", ["yaml.unsafe_load"]),
        ("import yaml\nyaml.safe_load(text)", []),
        ("import numpy as np\nnp.load(path, allow_pickle=True)", ["numpy.load, unpickling"]),
        ("import numpy as np\nnp.load(path, None, True)", ["numpy.load, unpickling"]),
        ("import numpy as np\nnp.load(path, **options)", ["numpy.load, unpickling"]),
        ("import numpy as np\nnp.load(path, allow_pickle=False)", []),
        ("import numpy as np\nnp.load(path, 'r', False)", []),
        ("import pandas as pd\npd.read_pickle(path)", ["pandas.read_pickle"]),
        ("from pandas import read_pickle as read\nread(path)", ["pandas.read_pickle"]),
        ("import pandas as pd\npd.read_csv(path)", []),
        ("import joblib\njoblib.load(path)", ["joblib"]),
        ("from cloudpickle import loads", ["cloudpickle"]),
        ("import dill as d\nd.loads(data)", ["dill"]),
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
        ("import importlib\nimportlib.import_module('pickle')", ["importlib.import_module"]),
        ("pickle = __import__('pickle')", ["__import__"]),
        ("import csv\ncsv.writer(stream)", ["csv.writer"]),
        ("import csv\ncsv.DictReader(stream)", []),
        ("import re\nre.compile(text)\nmodel.compile()", []),
    ],
)
def test_what_is_unsafe_is_found(source, found):
    assert list(unsafe(source)) == found
