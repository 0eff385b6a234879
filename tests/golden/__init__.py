"""What earlier releases left on the disks of their users: each must open, continue, or be refused in one line.

A folder a release, made once by that release with `python -m tests.golden.make` and never changed:

| folder | release | libraries |
|---|---|---|
| `0.1.0` | commit cba9abe, the last one for Python 3.10 alone | TFX 1.16.0, TensorFlow 2.16.2, ml-metadata 1.16.0 |

| file of a folder | holds |
|---|---|
| `about.json` | versions, digests of the datasets, and what the pushed model answered |
| `sources.tar.xz` | the images, table and COCO file that all of it was made of |
| `datasets.tar.xz` | a dataset of each pixel policy, of COCO with masks, of a table, and an appended one |
| `half.tar.xz` | the output of an ingest that was killed when it had written its first shard |
| `root.tar.xz` | the root of a `feedline run` with its database, its artifacts, its model and `pipeline.yaml` |
| `training.tar.xz` | the checkpoints of a training that was killed between two of its steps |

Paths in them begin with `/golden`, and `test_golden.py` puts another directory in its place.
"""
