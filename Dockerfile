# Image of the workers of Dataflow and Flink, and of the components of Kubeflow and Vertex AI Pipelines.
#
#   docker build -t IMAGE .                                     workers: what an ingest needs
#   docker build -t IMAGE --build-arg EXTRAS=gcp,tfx,kubeflow . components: TFX and all it needs
#   docker build -t IMAGE --build-arg EXTRAS=gcp,tfx,kubeflow --build-arg ACCELERATOR=cuda .    the same, with CUDA
#   docker build -t IMAGE --target template .                   workers, and the Flex Template of Dataflow
#
# Every version is that of the lock of a stack, an environment that the tests ran in. The Python and the Beam of an image
# must be those of the environment that submits the job; for the legacy stack add
#
#   --build-arg STACK=legacy --build-arg PYTHON=3.10 --build-arg BEAM=2.74.0 --build-arg DEBIAN=bookworm

ARG STACK=current
ARG PYTHON=3.12
ARG BEAM=2.77.0
ARG DEBIAN=trixie

# The boot program of Beam's workers, and nothing else of Beam's image: its Python packages are not those of the lock.
FROM apache/beam_python${PYTHON}_sdk:${BEAM} AS beam

# What TFX needs and its authors publish as source alone.
FROM python:${PYTHON}-slim-${DEBIAN} AS wheels
ARG STACK
RUN apt-get update && apt-get install --yes --no-install-recommends g++
COPY constraints/${STACK}.txt ./constraints/
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels --constraint constraints/${STACK}.txt pyfarmhash

FROM python:${PYTHON}-slim-${DEBIAN} AS worker

# libgomp1 and libglib2.0-0 are what the wheels of scikit-learn and OpenCV look for in the system.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libglib2.0-0 libgomp1 \
    && rm -rf /var/lib/apt/lists/*

COPY --from=beam /opt/apache/beam /opt/apache/beam
COPY --from=wheels /wheels /opt/wheels

ARG STACK
ARG BEAM
ARG EXTRAS=gcp,aws
WORKDIR /opt/feedline
COPY constraints/${STACK}.txt ./constraints/
# Beam first: it is the largest part that does not change with the code.
RUN pip install --no-cache-dir --constraint constraints/${STACK}.txt "apache-beam[gcp]==${BEAM}"
# The libraries of CUDA that the wheels of TensorFlow look for, 6 GB; the driver, libcuda, is that of the machine.
ARG ACCELERATOR=
RUN if [ "${ACCELERATOR}" = cuda ]; then \
        pip install --no-cache-dir --constraint constraints/${STACK}.txt "tensorflow[and-cuda]"; fi
COPY setup.py pyproject.toml README.md LICENSE ./
COPY beam_jobs ./beam_jobs
COPY components ./components
COPY pipeline ./pipeline
COPY trainer ./trainer
COPY feedline ./feedline
RUN pip install --no-cache-dir --find-links /opt/wheels --constraint constraints/${STACK}.txt ".[${EXTRAS}]" \
    && python -c "import beam_jobs.stages.transforms" \
    && pip check

# Without the greetings of TensorFlow in the log of every worker process.
ENV TF_CPP_MIN_LOG_LEVEL=3

# Where Dataflow starts a worker. Kubeflow and Vertex AI name the command of every component themselves.
ENTRYPOINT ["/opt/apache/beam/boot"]

# What starts the program of a Flex Template, and nothing else of its image.
FROM gcr.io/dataflow-templates-base/python311-template-launcher-base AS launcher

FROM worker AS template
ARG LAUNCHER=/opt/google/dataflow/python_template_launcher
COPY --from=launcher ${LAUNCHER} ${LAUNCHER}
RUN ln -s "$(command -v feedline-dataflow-template)" dataflow_template.py
ENV FLEX_TEMPLATE_PYTHON_PY_FILE=/opt/feedline/dataflow_template.py

# The last stage is what is built without --target.
FROM worker
