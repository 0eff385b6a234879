"""Prints facts about an Airflow installation as JSON. The Python of the environment of Airflow runs this file.

That environment has no packages of Feedline, and may have another version of Python.
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
    """Prints the version, the DAGs folder and the state of the database, without its password.

    Args:
      timeout_s: timeout of the connection to the database server, in seconds.
    """
    # The directory of this file must not shadow modules of Airflow.
    sys.path[:] = [path for path in sys.path if path != os.path.dirname(os.path.abspath(__file__))]
    import airflow
    from airflow.configuration import conf
    from sqlalchemy.engine import create_engine, make_url

    url = make_url(conf.get("database", "sql_alchemy_conn"))
    unreachable = _connection_error(url, timeout_s)
    migrated, driver = False, ""
    # A connection would create the file of a SQLite database.
    is_missing = url.get_backend_name() == "sqlite" and not (url.database and os.path.exists(url.database))
    if not unreachable and not is_missing:
        try:
            migrated = _is_migrated(create_engine(url))
        except ModuleNotFoundError as error:
            driver = error.name or str(error)
        except Exception as error:  # noqa: BLE001 - errors of any driver
            unreachable = str(error).strip().partition("\n")[0] or type(error).__name__
    facts = {
        "version": airflow.__version__,
        "dags_folder": conf.get("core", "dags_folder"),
        "database": url.render_as_string(hide_password=True),
        "missing_driver": driver,
        "unreachable": unreachable,
        "migrated": migrated,
    }
    sys.stdout.write(f"\n{json.dumps(facts)}\n")


def _connection_error(url: Any, timeout_s: float) -> str:
    """Returns why the server cannot be reached; empty when it can, or for a database without a server."""
    port = url.port or _default_port(url.get_backend_name())
    if not url.host or not port:
        return ""
    try:
        socket.create_connection((url.host, port), timeout_s).close()
    except OSError as error:
        return f"{url.host}:{port} cannot be reached: {error}"
    return ""


def _default_port(backend: str) -> int | None:
    """Returns the default port; for PostgreSQL the environment variable of libpq comes first."""
    port = os.environ.get("PGPORT", "") if backend == "postgresql" else ""
    return int(port) if port.isdecimal() else _PORTS.get(backend)


def _is_migrated(engine: Any) -> bool:
    import airflow
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with engine.connect() as connection:
        heads = set(MigrationContext.configure(connection).get_current_heads())
    return heads == set(ScriptDirectory(str(Path(airflow.__file__).parent / "migrations")).get_heads())


if __name__ == "__main__":
    main(float(sys.argv[1]))
