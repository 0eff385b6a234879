"""Packaging of Feedline; also the file Beam ships to workers (`--setup_file`)."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

# Ranges say what the code needs; `constraints/` says what was tested, to the last transitive version.
CORE = [
    "annotated-types>=0.6",
    "apache-beam>=2.74,<3",
    "click>=8.1",
    "google-crc32c>=1.5",  # without a C crc32c a record costs milliseconds instead of microseconds
    "duckdb>=1.4,<1.5",  # newer versions refuse the tables of pyarrow 10
    "grpcio>=1.53",
    "jinja2>=3.1",
    "keras>=3.3,<4",
    "ml-dtypes>=0.3.1",
    "numpy>=1.26,<3",
    "opencv-python-headless>=4.8",
    "packaging>=24.2",  # the list of SPDX licences
    "pillow>=10.3",
    "protobuf>=3.20.3,<7",
    "psutil>=5.9",
    "pyarrow>=10",
    # TFX 1.16, which needs Python 3.10, keeps pyarrow at 10, which runs what a Parquet file holds: see SECURITY.md.
    "pyarrow-hotfix>=0.6; python_version < '3.11'",
    "pycocotools>=2.0.7",  # polygons and run-length encodings of COCO to masks
    "pydantic>=2.7,<3",
    "pyyaml>=6",
    "rich>=13",
    "simplejpeg>=1.9",  # libjpeg-turbo as it is, faster than through the op of TensorFlow
    "tensorflow>=2.16,<2.22",
    "urllib3>=1.26",
]
TFX = [
    "absl-py>=1.4",
    "dill>=0.3.1.1",  # tensorflow-transform imports it and Beam no longer installs it
    "ml-metadata>=1.16,<2",
    "scikit-learn>=1.5",  # ships the 1,797 digits of `feedline demo`
    "setuptools<81",  # tfx and kfp import pkg_resources, which 81 starts to remove
    "tensorflow-data-validation>=1.16,<2",
    "tensorflow-metadata>=1.16,<2",
    "tensorflow-model-analysis>=0.47,<1",
    "tensorflow-transform>=1.16,<2",
    "tfx>=1.16,<1.22",
    "tfx-bsl>=1.16,<2",
]
EXTRAS = {
    "tfx": TFX,
    "jax": ["jax>=0.4.30", "jaxlib>=0.4.30"],
    "kubeflow": ["kfp>=2.5,<3"],
    "aws": ["apache-beam[aws]>=2.74,<3", "boto3>=1.9", "botocore>=1.12"],
    "gcp": [
        "apache-beam[gcp]>=2.74,<3",
        "google-api-core>=2",
        "google-apitools>=0.5.31",
        "google-auth>=2",
        "google-cloud-storage>=2.18",
        "requests>=2.32",
    ],
    "dev": [
        "apache-beam[aws]>=2.74,<3",
        "atheris>=2.3; sys_platform == 'linux' and platform_machine == 'x86_64'",  # elsewhere it has no wheel
        "hypothesis>=6",
        "ipykernel>=6",  # of the notebook, which a test runs from top to bottom
        "jax>=0.4.30",  # the trainer is tested with both backends of Keras
        "jaxlib>=0.4.30",
        "jsonschema>=4.18",  # results of --json against their schemas
        "matplotlib>=3.8",  # plots of the notebook
        "mkdocs-material>=9",
        "mkdocstrings[python]>=0.26",  # the reference of the Python API
        "nbclient>=0.10",
        "cryptography>=42",  # accounts and certificates of the emulated stores
        "gcp-storage-emulator>=2024.8",
        "flask>=2",  # of the moto server
        "flask-cors>=4",
        "moto[s3]>=5",
        "mypy>=1.10",
        "playwright>=1.50",  # drives the Chromium of the system; downloads no browser
        "pre-commit>=3",
        "pymdown-extensions<12",  # mkdocstrings 1.0 does not work with 12
        "pytest>=8",
        "pytest-cov>=5",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "ruff>=0.6",
        "importlib-resources>=6",  # tensorflow-datasets imports it and does not say so
        "tensorboard>=2.16",  # TensorFlow 2.21 no longer brings it
        "tensorflow-datasets>=4.9",
        "tfrecord>=1.14",
        "types-PyYAML",
        "types-psutil",
    ],
}

setup(
    name="feedline",
    version="0.1.0",
    description="Raw images to a validated, sharded TFRecord dataset and a trained model, in one command.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10,<3.14",
    # The names are generic, so they are listed: `tests` and `benchmarks` must never be installed.
    packages=find_packages(include=["pipeline*", "components*", "beam_jobs*", "feedline", "trainer*"]),
    package_data={
        "beam_jobs": ["py.typed", "common/templates/*"],
        "components": ["py.typed", "dataset_report/templates/*"],
        "feedline": ["py.typed"],
        "pipeline": ["py.typed", "cli/dataflow_template.json"],
        "trainer": ["py.typed", "bench/templates/*"],
    },
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "feedline = pipeline.entry:main",
            "feedline-worker = pipeline.entry:work",  # called by Flink's task managers
            "feedline-dataflow-template = pipeline.entry:launch",  # called by the launcher of Dataflow
        ]
    },
    classifiers=[
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Processing",
    ],
)
