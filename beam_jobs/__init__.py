"""Raw image bytes in, sharded TFRecords out.

The disk contract lives here and imports without Apache Beam: `record` (what a record holds), `tfrecord` (how it is
framed), `shards` (where it goes), `manifest` (what makes a directory a dataset). `ingest.run` is the whole job.
"""
