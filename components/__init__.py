"""The TFX components of Feedline. A component and its executor are in the module `component` of a package.

  image_example_gen.component.ImageExampleGen: raw images, or a published dataset -> `Examples`
  schema.component.InferredSchema: statistics and dataset -> `Schema`, for review
  schema.component.ReviewedSchema: a reviewed schema file -> `Schema`
  previous_span.resolver.previous_examples: the previous dataset, as the baseline of drift
  dataset_gate.component.DatasetGate: stops the pipeline when the dataset is unfit for training
  dataset_gate.limits.GateLimits: the limits of the gate
  dataset_report.component.DatasetReport: an HTML page about the dataset and its model
  blessed_model.Pusher: pushes a blessed model atomically

  evaluation.results.EvaluateOptions: the requirements for a model to be pushed

Functions that need no pipeline:

  dataset_report.render.render: the HTML page of a published dataset
  evaluation.results.load_evaluation: the results of Evaluator, as plain values

Example:
  from beam_jobs import IngestOptions
  from components.image_example_gen.component import ImageExampleGen

  example_gen = ImageExampleGen(IngestOptions(source="photos", out=""))
"""
