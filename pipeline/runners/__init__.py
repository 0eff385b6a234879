"""Where a pipeline runs: in this process, under Airflow, on Kubeflow."""
