"""Asks an Airflow about itself, and prints JSON: a file that the Python of the environment of Airflow runs.

That environment holds nothing of Feedline, and may have another version of Python.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}


def main(timeout_s: float) -> None:
    """Prints version, folder of DAGs, and the state of the database, its password left out.

    Args:
      timeout_s: how long to wait for the server of the database.
    """
    # Python looks beside this file first, where a module is called airflow too.
    sys.path[:] = [place for place in sys.path if place != os.path.dirname(os.path.abspath(__file__))]
    import airflow
    from airflow.configuration import conf
    from sqlalchemy.engine import create_engine, make_url

    url = make_url(conf.get("database", "sql_alchemy_conn"))
    unreachable = _unreachable(url, timeout_s)
    migrated, driver = False, ""
    if not unreachable and not _is_missing_file(url):
        try:
            migrated = _is_migrated(create_engine(url))
        except ModuleNotFoundError as error:
            driver = error.name or str(error)
        except Exception as error:  # noqa: BLE001 - of any driver
            unreachable = str(error).strip().partition("\n")[0] or type(error).__name__
    found = {
        "version": airflow.__version__,
        "dags_folder": conf.get("core", "dags_folder"),
        "database": url.render_as_string(hide_password=True),
        "missing_driver": driver,
        "unreachable": unreachable,
        "migrated": migrated,
    }
    sys.stdout.write(f"\n{json.dumps(found)}\n")


def _unreachable(url: Any, timeout_s: float) -> str:
    """Returns why the server cannot be reached; empty when it can, or when there is none."""
    port = url.port or _default_port(url.get_backend_name())
    if not url.host or not port:
        return ""
    try:
        socket.create_connection((url.host, port), timeout_s).close()
    except OSError as error:
        return f"{url.host}:{port} cannot be reached: {error}"
    return ""


def _default_port(backend: str) -> int | None:
    """Returns the port of a URL that names none; libpq, which connects to PostgreSQL, asks the environment first."""
    named = os.environ.get("PGPORT", "") if backend == "postgresql" else ""
    return int(named) if named.isdecimal() else _PORTS.get(backend)


def _is_missing_file(url: Any) -> bool:
    """Returns whether it is a SQLite file that is not there, which connecting would make."""
    return url.get_backend_name() == "sqlite" and not (url.database and os.path.exists(url.database))


def _is_migrated(engine: Any) -> bool:
    import airflow
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with engine.connect() as connection:
        found = set(MigrationContext.configure(connection).get_current_heads())
    return found == set(ScriptDirectory(str(Path(airflow.__file__).parent / "migrations")).get_heads())


if __name__ == "__main__":
    main(float(sys.argv[1]))
