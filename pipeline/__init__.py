"""The pipeline as a whole: configuration, the one graph, a thin runner an orchestrator, and the command line.

  config.PipelineConfig: all settings of a pipeline
  config.build: the content of a `pipeline.yaml` -> `PipelineConfig`
  pipeline.create_pipeline: `PipelineConfig` -> `tfx.dsl.Pipeline`, every component once
  runners.local.run: runs it in this process
  runners.airflow.compile, runners.kubeflow.compile: the file that Airflow, Kubeflow or Vertex AI runs
  runs.history.open_store: ML Metadata, where the runs are written down
  runs.lineage.trace: what a model was made of
  cli.main: `feedline`

Example:
  from pipeline.config import build
  from pipeline.runners.local import run

  summary = run(build({"root": "work", "ingest": {"source": "photos"}, "train": {"epochs": 5}}), print)
"""
