"""Runners of a pipeline: this process, Airflow and Kubeflow."""
