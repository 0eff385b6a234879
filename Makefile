# Every target works in a fresh clone: the first one called makes the environment, later ones find it and go on at once.
.PHONY: setup demo test test-slow test-current gate test-browser test-docs test-interop test-faults fuzz advisories test-orchestrators test-cluster test-flink test-stores check format lock docs bench dist clean help
.DEFAULT_GOAL := help

# The stack and the Python choose themselves; STACK=current, STACK=legacy, PYTHON=python3.12 or PYTHON=PATH override them.
STACK ?=
PYTHON ?=
# Importing TensorFlow and TFX takes three times as long without compiled files; tests start many processes.
unexport PYTHONDONTWRITEBYTECODE
UV := .tools/bin/uv
BIN := .venv/bin
EXTRAS := tfx,dev,kubeflow,gcp
ROOT ?= demo_run
FAULTS ?= full
LOCK ?= legacy
SECONDS ?= 600

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/.installed  ## make .venv from the lock of the stack that this machine can run (STACK=, PYTHON=)

demo: setup  ## the whole pipeline on real handwritten digits
	$(BIN)/feedline demo --root $(ROOT)

test: setup  ## the tests that one runs before a commit
	$(BIN)/python -m pytest

test-slow: setup  ## whole runs, every setting, the copies of earlier releases
	$(BIN)/python -m pytest -m slow

# In this order, one after the other: what fails early is what fails most.
.NOTPARALLEL:
gate: check test test-slow demo test-current docs test-interop test-browser test-flink test-stores test-cluster test-orchestrators test-docs test-faults  ## every check and test, without a limit of time

test-current:  ## check, tests and demo of HEAD on the current stack, in a Debian 13 root that is made for it; needs root
	.ci/debian13 make check test test-slow demo

test-browser: setup  ## the report in a real headless Chromium, which is installed when it is missing
	command -v chromium >/dev/null || (apt-get update -q && apt-get install -yq chromium)
	FEEDLINE_BROWSER=1 $(BIN)/python -m pytest -n0 tests/browser

test-docs: setup  ## the commands and blocks of README and documentation that can run here, and the tutorial
	$(BIN)/python -m pytest --dist worksteal -m docs tests/test_docs_run.py tests/test_notebook.py tests/test_readme.py

test-interop: setup  ## datasets and exports opened by the real clients of others, in environments of their own
	$(BIN)/python -m pytest -n0 -m interop tests/interop

# Four workers on two cores: much of a fault is waiting for servers, deadlines and stopped processes.
test-faults: setup  ## kills, full disks, flipped bits, hostile files and servers; prints the matrix (FAULTS=short: few tries)
	command -v mkfs.btrfs >/dev/null || (apt-get update -q && apt-get install -yq btrfs-progs) || echo "no btrfs-progs: quotas are not tried"
	FEEDLINE_FAULTS=$(FAULTS) $(BIN)/python -m pytest -n 4 -m faults tests/faults

fuzz: setup  ## search every parser of foreign bytes for errors, guided by coverage (SECONDS=600 for each)
	code=0; for target in archives datasets examples headers images records tables; do \
		TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -W ignore -m tests.fuzz.$$target --seconds $(SECONDS) || { code=$$?; break; }; \
		done; $(BIN)/python -m tests.fuzz.report; exit $$code

advisories: setup $(UV)  ## ask for advisories of the versions in a lock (LOCK=current; AUDIT="-s osv": of another service)
	$(UV) tool run --quiet pip-audit==2.10.1 --requirement constraints/$(LOCK).txt --no-deps --disable-pip --format json \
		--progress-spinner off $(AUDIT) | $(BIN)/python -m tests.security.advisories

test-orchestrators: setup  ## the pipeline under Airflow
	$(BIN)/python -m pytest -m orchestrators

test-cluster: setup  ## what Kubeflow, Dataflow and workers of a cluster do with jobs, as far as it can be had without them
	$(BIN)/python -m pytest -m cluster

test-flink: setup  ## the ingest on Apache Flink; skipped with the reason where there is no Java or no Maven
	$(BIN)/python -m pytest -n0 -m flink tests/engines

test-stores: setup  ## ingest, verify and train on emulators of S3 and Google Cloud Storage
	$(BIN)/python -m pytest -n0 -m stores tests/stores

check: setup  ## formatting, lint, types and the size of the code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tests.house

format: setup  ## format and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The markers that are true wherever the lock is used are left out of it.
lock: $(UV)  ## bring constraints/ in line with setup.py, for all extras together (UPGRADE=--upgrade for newer versions)
	$(UV) pip compile setup.py --all-extras --constraint constraints/legacy.in --python-version 3.10 --no-header --no-emit-index-url $(UPGRADE) -q -o constraints/legacy.txt
	$(UV) pip compile setup.py --all-extras --constraint constraints/current.in --python-version 3.10 --universal --no-header --no-emit-index-url $(UPGRADE) -q -o constraints/current.txt
	for airflow in airflow2 airflow3; do \
		$(UV) pip compile constraints/$$airflow.in --python-version 3.10 --universal --no-header --no-emit-index-url $(UPGRADE) -q -o constraints/$$airflow.txt || exit; \
		done
	sed -i -E "s/ and platform_machine == 'x86_64' and sys_platform == 'linux'//; s/ and python_full_version < '3.14'//; s/ ; python_full_version < '3.14'$$//" constraints/current.txt constraints/airflow?.txt

dist: setup  ## build sdist and wheel into dist/, and check what an index would show of them
	rm -rf build/lib build/bdist.* dist
	$(UV) build --quiet --python $(BIN)/python --out-dir dist .
	$(UV) tool run --quiet --python $(BIN)/python twine==6.2.0 check --strict dist/*

docs: setup  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

bench: setup  ## measure ingest and input pipeline side by side; results in benchmarks/results
	TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -W ignore -m benchmarks.run

clean:  ## remove what the targets made, environment included
	rm -rf .venv .tools build dist site *.egg-info demo_run .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Any Python from 3.8 on makes the environment. It runs where a file of the list is newer, where the Python of .venv is
# gone, and where a choice is given, which it holds against the .venv that is there.
ENVIRONMENT = @for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null && exec $$python -I constraints/environment.py $(1); done; \
	echo 'setup: error: there is no Python 3.8 or later in PATH to make the environment with: apt-get install python3' >&2; exit 2

$(UV):
	$(call ENVIRONMENT,--only-uv)

.venv/.installed: .venv/bin/python setup.py constraints/current.txt constraints/legacy.txt constraints/environment.py Makefile $(if $(STACK)$(PYTHON),choose)
	$(call ENVIRONMENT,--stack='$(STACK)' --python='$(PYTHON)' --extras='$(EXTRAS)')

.venv/bin/python: ;

.PHONY: choose
choose:
