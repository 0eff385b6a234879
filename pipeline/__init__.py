"""The pipeline: its configuration, its graph of components, a runner for each orchestrator, and the command line.

  config.PipelineConfig: all settings of a pipeline
  config.build: settings of a `pipeline.yaml` -> `PipelineConfig`
  pipeline.create_pipeline: `PipelineConfig` -> `tfx.dsl.Pipeline`
  runners.local.run: runs a pipeline in this process
  runners.airflow.compile, runners.kubeflow.compile: write a file that Airflow, Kubeflow or Vertex AI runs
  runs.history.open_store: opens the ML Metadata database of the runs
  runs.lineage.trace: returns the lineage of a model
  cli.main: the program `feedline`

Example:
  from pipeline.config import build
  from pipeline.runners.local import run

  summary = run(build({"root": "work", "ingest": {"source": "photos"}, "train": {"epochs": 5}}), print)
"""
