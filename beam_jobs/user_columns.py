"""Options that name user columns: whether those exist."""

from __future__ import annotations

from collections.abc import Collection

from beam_jobs import record
from beam_jobs.errors import OptionError
from beam_jobs.suggest import unknown


def check_column(name: str, known: Collection[str], where: str) -> None:
    """Checks that a user column exists.

    Args:
      name: of the column, without `extra/`.
      known: user columns of the dataset, without `extra/`.
      where: the option that names it, such as `transform.columns`.

    Raises:
      OptionError: it does not.
    """
    if name in known:
        return
    if known:
        raise OptionError(f"{where}: {unknown('user column', name, sorted(known))}")
    plain = name.removeprefix(record.EXTRA_PREFIX)
    raise OptionError(
        f"{where}: there is no user column {name!r}, the images have none; name it in ingest.columns.extra: [{plain}]"
    )
