"""``stratos admin apply``, ``declaration``, ``audit``, ``rewrap-keys`` and ``check-isolation``: tenants of a running
platform."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stratos.cli.commands.admin_access import KeyOption, UrlOption, admin_client
from stratos.cli.commands.shared import (
    RunOption,
    WaitOption,
    explained_errors,
)
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption

tenancy_app = typer.Typer()


@tenancy_app.command("apply")
def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="YAML with plans and tenants.")],
    url: UrlOption = "",
    key: KeyOption = "",
    wait_s: WaitOption = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Make plans and tenants as a file says, and show what changed; what the file does not name is left alone."""
    from stratos.cli.declaration import changes_text, declaration_parts, read_declaration
    from stratos.cli.stores import once_answered
    from stratos.common.clock import SystemClock
    from stratos.common.errors import InvalidApiKey

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        query, changes = {"dry_run": "true"} if dry_run else {}, list[dict[str, Any]]()
        for part in declaration_parts(read_declaration(file)):
            ask = partial(asyncio.to_thread, client.call, "POST", "/declaration", part, **query)
            # In a new installation another job registers the key, and gateways follow a moment later.
            changes += asyncio.run(once_answered(ask, wait_s, SystemClock(), not_yet=InvalidApiKey))["changes"]
    typer.echo(changes_text(changes) or "nothing changes")


@tenancy_app.command("declaration")
def declaration(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """Print plans and tenants as a file for `apply`; keys and salts are in `export` alone."""
    from stratos.cli.declaration import declaration_text

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        for text in declaration_text(client.lines("/declaration")):
            typer.echo(text, nl=False)


@tenancy_app.command("audit")
def audit(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """Print the audit log as JSON lines, oldest first."""
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        for entry in client.audit():
            typer.echo(json.dumps(entry))


@tenancy_app.command("rewrap-keys")
def rewrap_keys(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """Wrap the data keys of all tenants under the platform key that gateways have now; run again it changes nothing.

    After it no data key needs an older platform key, and backups from before it need the older one.
    """
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        found = client.call("POST", "/data-keys/rewrap", {})
    typer.echo(
        f"{found['rewrapped']} data keys were wrapped again; all are under platform key {found['platform_key_id']!r}"
    )


@tenancy_app.command("check-isolation")
def check_isolation(
    url: UrlOption = "",
    key: KeyOption = "",
    api_url: Annotated[str, typer.Option(help="Of the OpenAI API, without /v1; default: the running platform's.")] = "",
    model: Annotated[str, typer.Option(help="Which one is probed; default: the first.")] = "",
    private: Annotated[
        list[str] | None, typer.Option(help="An adapter of some tenant, which no other may see; may be repeated.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Prompts that are tried.")] = 7,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Prove on the running platform that tenants do not reach one another; exit code 1 where one does.

    Makes three tenants of its own, asks with their keys, and deletes them.
    """
    from stratos.cli.local.running import find_platform
    from stratos.selfcheck.findings import Level, lines
    from stratos.selfcheck.isolation.check import IsolationCheck, run_check

    with explained_errors(), admin_client(url, key, data_dir, run) as admin:
        found = api_url or find_platform(data_dir, run).base_url.removesuffix("/v1")
        check = IsolationCheck(api_url=found, model=model, private=private or (), num_rounds=rounds)
        findings = run_check(admin, check)
    typer.echo(lines(findings))
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(1)
