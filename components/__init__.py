"""The TFX components of Feedline. A component is its wiring, `component.py`, and the work of its executor.

  image_example_gen.component.ImageExampleGen: raw images, or a dataset that is there already -> `Examples`
  schema.component.InferredSchema: statistics and dataset -> `Schema`, for people to review
  schema.component.ReviewedSchema: the file that they keep -> `Schema`
  previous_span.resolver.previous_examples: the dataset before, to compare with
  dataset_gate.component.DatasetGate: stops the pipeline when the dataset is not fit to train on
  dataset_gate.limits.GateLimits: what is allowed
  dataset_report.component.DatasetReport: one page about the dataset and its model
  blessed_model.Pusher: pushes a blessed model whole or not at all

  evaluation.results.EvaluateOptions: when a model is good enough to be pushed

Without a pipeline:

  dataset_report.render.render: the page of any published dataset, as text
  evaluation.results.load_evaluation: what Evaluator measured, as plain values

Example:
  from beam_jobs import IngestOptions
  from components.image_example_gen.component import ImageExampleGen

  example_gen = ImageExampleGen(IngestOptions(source="photos", out=""))
"""
