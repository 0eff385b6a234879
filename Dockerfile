# Image of the workers of Dataflow and Flink, and of the components of Kubeflow and Vertex AI Pipelines.
#
#   docker build -t IMAGE .                                     workers: what an ingest needs
#   docker build -t IMAGE --build-arg EXTRAS=gcp,tfx,kubeflow . components: TFX and all it needs
#
# Every version is that of constraints/current.txt, an environment that the tests ran in.

# The boot program of Beam's workers, and nothing else of Beam's image: its Python packages are not those of the lock.
FROM apache/beam_python3.12_sdk:2.77.0 AS beam

FROM python:3.12-slim-trixie

# libgomp1 and libglib2.0-0 are what the wheels of scikit-learn and OpenCV look for in the system.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libglib2.0-0 libgomp1 \
    && rm -rf /var/lib/apt/lists/*

COPY --from=beam /opt/apache/beam /opt/apache/beam

ARG EXTRAS=gcp,aws
WORKDIR /opt/feedline
COPY constraints/current.txt ./constraints/
# Beam first: it is the largest part that does not change with the code.
RUN pip install --no-cache-dir --constraint constraints/current.txt "apache-beam[gcp]==2.77.0"
COPY setup.py pyproject.toml README.md LICENSE ./
COPY beam_jobs ./beam_jobs
COPY components ./components
COPY pipeline ./pipeline
COPY trainer ./trainer
RUN pip install --no-cache-dir --constraint constraints/current.txt ".[${EXTRAS}]" \
    && python -c "import beam_jobs.transforms" \
    && pip check

# Without the greetings of TensorFlow in the log of every worker process.
ENV TF_CPP_MIN_LOG_LEVEL=3

# Where Dataflow starts a worker. Kubeflow and Vertex AI name the command of every component themselves.
ENTRYPOINT ["/opt/apache/beam/boot"]
