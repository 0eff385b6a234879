"""`feedline upgrade`, killed at every moment; see `kill.on_each_moment`.

`python -m tests.faults.test_kills_upgrade OLD FOLDER COUNT` upgrades copies of a dataset of format 1 in processes of
their own, of which COUNT are killed, and prints what it saw as one JSON object.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

from beam_jobs.dataset.verify import verify
from beam_jobs.stages.upgrade import upgrade
from tests import image_table
from tests.beam_jobs import kill
from tests.beam_jobs.runs import files_under
from tests.faults.process import finish, start


def test_an_upgrade_is_killed(fault, dataset, tmp_path, tries):
    text = "the dataset is valid, in the old or the new format; the next upgrade ends with the same bytes"
    row = fault("kills", "SIGKILL of `feedline upgrade`", text)
    image_table.make_format_1(dataset)
    command = [sys.executable, "-W", "ignore", "-m", __name__, dataset, tmp_path, tries(100, 4)]
    outcome = finish(start(command), 300.0)
    assert outcome.code == 0, outcome.err[-2000:]
    found = json.loads(outcome.out)
    assert {one["version"] for one in found} == {1, 2}
    for one in found:
        row.tried(f"{one}", hang=one["hang"], wrong=bool(one["problems"]) or not one["same"])


def main(old: Path, folder: Path, count: int) -> list[dict]:
    clean, report = folder / "clean", folder / "report.json"
    shutil.copytree(old, clean)

    def work() -> dict:
        upgrade(str(clean))
        return {}

    assert kill.in_a_child(lambda: kill.counted((str(clean),), str(old), report, work)) == 0
    last = json.loads(report.read_text())["moments"]
    found = []
    for moment in sorted({1 + (last - 1) * number // max(1, count - 1) for number in range(count)}):
        out = folder / str(moment)
        shutil.copytree(old, out)
        code = kill.in_a_child(lambda out=out, moment=moment: upgrade_until(out, moment))
        version = json.loads((out / "dataset.json").read_text())["format_version"]
        problems = verify(str(out)).problems
        upgrade(str(out))
        same = files_under(out) == files_under(clean) and code == -signal.SIGKILL
        found.append({"moment": moment, "hang": code is None, "version": version, "problems": problems, "same": same})
    return found


def upgrade_until(out: Path, moment: int) -> None:
    kill.die_at(moment, (str(out),))
    upgrade(str(out))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))))
