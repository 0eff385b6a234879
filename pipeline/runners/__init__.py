"""Runners of a pipeline: the local runner in this process, Airflow and Kubeflow."""
