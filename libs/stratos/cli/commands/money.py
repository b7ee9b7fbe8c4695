"""``stratos admin statement``, ``costs`` and ``ledger``: what tenants owe, and what it cost the platform."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.admin_access import KeyOption, UrlOption, admin_client
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import BadRequest

TenantOption = Annotated[str, typer.Option("--tenant", help="Whose; default: that of the key.")]
MonthOption = Annotated[str, typer.Option("--month", help="Such as 2026-11, in UTC.")]


def add_money_commands(app: typer.Typer) -> None:
    """Put the commands of this module into a group."""
    app.command("statement")(statement)
    app.command("costs")(costs)
    app.command("ledger")(ledger)


def statement(
    month: MonthOption,
    url: UrlOption = "",
    key: KeyOption = "",
    tenant: TenantOption = "",
    html: Annotated[Path | None, typer.Option("--html", help="Write a page into this file instead.")] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Print what a tenant owes for a month: by model and adapter, with discounts, promises broken and credits."""
    from stratos.cli.money.ledger_files import write_file
    from stratos.cli.money.statements import statement_html, statement_text

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        query = {"month": month} | ({"tenant": tenant} if tenant else {})
        found = client.call("GET", "/statement", **query)
        if html is not None:
            write_file(html, statement_html(found).encode())
            return typer.echo(f"the statement is in {html}")
    typer.echo(statement_text(found), nl=False)


def costs(
    month: MonthOption,
    hour_price: Annotated[str, typer.Option("--device-hour-price", help="Of one device for one hour, such as 2.50.")],
    url: UrlOption = "",
    key: KeyOption = "",
    paid_hours: Annotated[
        int | None,
        typer.Option("--paid-hours", min=0, help="Device hours that were paid, idle ones too; default: busy time."),
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Tell them by this name of requests' `metadata`; may be repeated.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option("--scores", help='JSON {"TEXT OF THE TAG": {"MODEL": SCORE}}, to stand beside.')
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Print cost per million tokens and margin of each model, all tenants together, by cost tags and with quality."""
    from stratos.cli.money.statements import micro_units
    from stratos.cli.money.tag_costs import costs_text, read_scores

    with explained_errors():
        try:
            query = {"month": month, "hour_price": str(micro_units(hour_price))}
        except ValueError as error:
            raise BadRequest(str(error), param="--device-hour-price") from None
        query |= {} if paid_hours is None else {"paid_hours": str(paid_hours)}
        query |= {"group_by": ",".join(f"tag:{name}" for name in tags)} if tags else {}
        known = read_scores(scores, tags or ())
        with admin_client(url, key, data_dir, run) as client:
            found = client.call("GET", "/costs", **query)
    typer.echo(costs_text(found["data"], tags or (), known), nl=False)


def ledger(
    path: Annotated[Path, typer.Argument(help="File to write, mode 0600.")],
    month: MonthOption,
    url: UrlOption = "",
    key: KeyOption = "",
    tenant: TenantOption = "",
    shape: Annotated[str, typer.Option("--format", help="csv, or parquet with stratosserve[parquet].")] = "csv",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Write every request of a tenant's month into a file."""
    from stratos.cli.money.ledger_files import entries_of_month, write_entries

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        num_entries = write_entries(path, shape, entries_of_month(client, tenant, month))
    typer.echo(f"{num_entries} entries are in {path}")
