"""
The one command of the product.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated, Any, NoReturn

import typer
from sqlalchemy.exc import OperationalError

from controlplane import bootstrap as wiring
from controlplane import migrations
from controlplane.calculating.table import table_of
from controlplane.calculators import service as calculators
from controlplane.kit.errors import DomainError, Invalid
from controlplane.local import addresses
from controlplane.local.commands import THREADS, api_command, worker_command
from controlplane.local.doctor import examine
from controlplane.local.errors import LocalError
from controlplane.local.up import up as run_everything
from controlplane.settings import Settings

app = typer.Typer(
    help="Control plane for GPU clouds. Settings are CONTROLPLANE_* environment variables.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.command()
def up() -> None:
    """
    Run everything on this machine and do the main job once (PORT, DATA_DIR, ONCE=1, DATABASE_URL, BROKER_URL, WORKERS).
    """
    raise typer.Exit(run_everything(os.environ))


@app.command()
def api(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = addresses.LOOPBACK,
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8080,
    processes: Annotated[int, typer.Option(help="Server processes.", min=1, max=64)] = 1,
) -> None:
    """
    Serve the API.
    """
    required("database_url", "master_key")
    become(api_command(host=host, port=port, processes=processes))


@app.command()
def worker(
    name: Annotated[str, typer.Option(help="Name of this worker on this host.")] = "worker",
    threads: Annotated[int, typer.Option(help="Tasks at once.", min=1, max=256)] = THREADS,
) -> None:
    """
    Drive operations: sweep due rows, and take nudges from the broker.
    """
    required("database_url", "master_key")
    become(worker_command(name=name, threads=threads))


@app.command()
def migrate() -> None:
    """
    Bring the database to this version's schema, and give the application's role its password (from CONTROLPLANE_DATABASE_URL).
    """
    settings = required("owner_database_url", "database_url")
    owner_url = settings.owner_database_url.get_secret_value()
    role, password = addresses.url_user(settings.database_url.get_secret_value())
    migrations.upgrade(owner_url)
    migrations.ensure_app_role(owner_url, role, password)
    print(f"The schema is at {migrations.head()}; the application connects as {role}.")


@app.command()
def bootstrap(email: Annotated[str, typer.Argument(help="E-mail address of the first operator.")]) -> None:
    """
    Make the first operator and print its key, this once.
    """
    settings = required("database_url", "owner_database_url", "master_key")
    print(wiring.first_operator(settings, email))


@app.command()
def doctor() -> None:
    """
    Look for what would keep the product from working here, and say what to do about it.
    """
    raise typer.Exit(examine(os.environ))


@app.command()
def calculate(
    name: Annotated[str, typer.Argument(help="Which calculator; none: list them.")] = "",
    param: Annotated[
        list[str] | None, typer.Option("--param", "-p", help="An input as name=value; the value is JSON, or else text. Repeat it.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as the API gives it.")] = False,
) -> None:
    """
    Calculate sizes, times and fits with the catalog of this version; needs neither settings nor a database.
    """
    if not name:
        for one in calculators.list_calculators():
            print(f"{one.name:<18}{one.summary}\n{'':<18}{' '.join(one.ask.model_fields)}")
        return
    answer = calculators.calculate_offline(name, dict(given_input(one) for one in param or ()))
    print(answer.model_dump_json(indent=2) if as_json else table_of(answer))


def given_input(text: str) -> tuple[str, Any]:
    """
    The name and the value of `name=value`: JSON where it reads as JSON, text otherwise. Raises Invalid without a name.
    """
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(f"An input is given as name=value, not {text!r}.")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def required(*names: str) -> Settings:
    """
    Answers the settings; ends with a list of what is missing when something is.
    """
    settings = Settings()
    missing = [name for name in names if not getattr(settings, name).get_secret_value()]
    if missing:
        listed = ", ".join(f"CONTROLPLANE_{name.upper()}" for name in missing)
        print(f"Not set: {listed}. See docker-compose.yml for an example, or run `make up`.", file=sys.stderr)
        raise typer.Exit(2)
    return settings


def become(command: list[str]) -> NoReturn:
    """
    This process is the other one from now on: whoever started it watches and signals the real one.
    """
    os.execv(command[0], command)  # noqa: S606 -- no shell, our own words


def main() -> None:
    """
    The command line has been carried out; what kept it from that is told in words, not as a traceback.
    """
    try:
        app()
    except (DomainError, LocalError) as error:
        sys.exit(str(error))
    except OperationalError as error:
        sys.exit(f"The database cannot be used: {' '.join(str(error.orig).split())}\n`controlplane doctor` says more.")


if __name__ == "__main__":
    main()
