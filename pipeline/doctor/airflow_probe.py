"""Prints properties of an Airflow installation as JSON. The Python of the Airflow environment runs this file.

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
    connection_error = _connection_error(url, timeout_s)
    is_migrated, missing_driver = False, ""
    # A connection would create the file of a SQLite database.
    is_missing_file = url.get_backend_name() == "sqlite" and not (url.database and os.path.exists(url.database))
    if not connection_error and not is_missing_file:
        try:
            is_migrated = _is_migrated(create_engine(url))
        except ModuleNotFoundError as error:
            missing_driver = error.name or str(error)
        except Exception as error:  # noqa: BLE001 - errors of any driver
            connection_error = str(error).strip().partition("\n")[0] or type(error).__name__
    properties = {
        "version": airflow.__version__,
        "dags_folder": conf.get("core", "dags_folder"),
        "database": url.render_as_string(hide_password=True),
        "missing_driver": missing_driver,
        "unreachable": connection_error,
        "migrated": is_migrated,
    }
    sys.stdout.write(f"\n{json.dumps(properties)}\n")


def _connection_error(url: Any, timeout_s: float) -> str:
    """Returns the error of a connection to the server; empty on success, or for a database without a server."""
    port = url.port or _default_port(url.get_backend_name())
    if not url.host or not port:
        return ""
    try:
        socket.create_connection((url.host, port), timeout_s).close()
    except OSError as error:
        return f"{url.host}:{port} cannot be reached: {error}"
    return ""


def _default_port(backend: str) -> int | None:
    """Returns the default port; for PostgreSQL, the environment variable of libpq overrides it."""
    port = os.environ.get("PGPORT", "") if backend == "postgresql" else ""
    return int(port) if port.isdecimal() else _PORTS.get(backend)


def _is_migrated(engine: Any) -> bool:
    import airflow
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    with engine.connect() as connection:
        database_heads = set(MigrationContext.configure(connection).get_current_heads())
    return database_heads == set(ScriptDirectory(str(Path(airflow.__file__).parent / "migrations")).get_heads())


if __name__ == "__main__":
    main(float(sys.argv[1]))
