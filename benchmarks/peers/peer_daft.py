"""Daft: reads the files and writes them into Parquet with path and class, on all cores.

With the kind `checked` it decodes every image whole, and writes its height and width too, which forces the decode.
"""

from __future__ import annotations

from benchmarks.peers.script import Job, Script, Work, class_indices


def prepare(job: Job) -> Work:
    """See `Script`."""
    import daft
    from daft.functions import decode_image, download, image_height, image_width

    files = job.files()
    labels = class_indices(files)
    columns = {"path": [str(path) for path in files], "label": [labels[path.parent.name] for path in files]}

    def work() -> int:
        frame = daft.from_pydict(columns).with_column("image", download(daft.col("path")))
        if job.kind == "checked":
            pixels = decode_image(daft.col("image"), mode="RGB")
            frame = frame.with_columns({"height": image_height(pixels), "width": image_width(pixels)})
        frame.write_parquet(str(job.out))
        return daft.read_parquet(f"{job.out}/*.parquet").count_rows()

    return work


SCRIPT = Script(
    peer="daft",
    distribution="daft",
    prepare=prepare,
    note="download and write_parquet on all cores; every image decoded whole if the kind is checked",
    kinds=("plain", "checked"),
)

if __name__ == "__main__":
    SCRIPT.main()
