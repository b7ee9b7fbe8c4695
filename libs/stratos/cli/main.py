"""The ``stratos`` command: parses arguments, calls one function, turns errors of ours into one line.

Imports are local to the commands, so that ``stratos --help`` and ``stratos status`` stay quick.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.batches.commands import batch_app
from stratos.cli.chaos.command import chaos
from stratos.cli.cluster.commands import add_cluster_commands
from stratos.cli.commands.access import keys_app, tenants_app
from stratos.cli.commands.adapters import adapters_app
from stratos.cli.commands.autoscaler import autoscaler_app
from stratos.cli.commands.bench import bench
from stratos.cli.commands.certificates import certificates_app
from stratos.cli.commands.doctor import doctor
from stratos.cli.commands.flags import with_flags_of
from stratos.cli.commands.models.served import models_app
from stratos.cli.commands.on_demand import on_demand
from stratos.cli.commands.plan.group import plan_group
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.commands.stores.admin import admin_app
from stratos.cli.commands.stores.backups import backups_app
from stratos.cli.commands.stores.models import declared_app
from stratos.cli.commands.tenancy import tenancy_app
from stratos.cli.commands.trace import trace_app
from stratos.cli.drain.command import drain
from stratos.cli.evaluate.command import evaluate
from stratos.cli.evaluate.quantising import quantize
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption, UpOptions
from stratos.cli.reproduce.command import reproduce

commands = typer.Typer()
app = typer.Typer(
    name="stratos",
    cls=on_demand(lambda: commands),
    help="Run and talk to a StratosServe platform.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.callback()(lambda: None)  # typer wants one where it knows of no command
commands.add_typer(keys_app, name="keys")
commands.add_typer(tenants_app, name="tenants")
admin_app.add_typer(tenancy_app)
admin_app.add_typer(backups_app)
admin_app.add_typer(declared_app)
add_cluster_commands(admin_app)
commands.add_typer(admin_app, name="admin")
commands.add_typer(certificates_app, name="certificates")
commands.add_typer(adapters_app, name="adapters")
commands.add_typer(batch_app, name="batch")
commands.add_typer(models_app, name="models")
commands.add_typer(trace_app, name="trace")
commands.add_typer(autoscaler_app, name="autoscaler")
commands.add_typer(plan_group, name="plan")
commands.command()(doctor)
commands.command()(drain)
commands.command()(chaos)
commands.command()(bench)
commands.command()(reproduce)
commands.command()(evaluate)
commands.command()(quantize)
watermark_app = typer.Typer(help="Watermarks in output.", no_args_is_help=True)
commands.add_typer(watermark_app, name="watermark")


@commands.command()
@with_flags_of(UpOptions)
def up(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]PATH",
            help="Hugging Face model folder, or a GGUF file; default: the shipped model. Repeated: further models, "
            "each with workers of its own.",
        ),
    ] = None,
    workers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PREFILL+DECODE[:NMiB]",
            help="Workers of one model, where they differ from --prefill and --decode, e.g. tools=0+1, and the KV pool "
            "of each, e.g. tools=0+1:96MiB. Repeatable.",
        ),
    ] = None,
    make: Callable[..., UpOptions],
    fork_server: Annotated[bool, typer.Option(help="Fork services from one process that has their imports.")] = True,
) -> None:
    """Start the whole platform on this machine; Ctrl-C stops it."""
    from stratos.rpc.forking.client import fork_server_while

    with fork_server_while(wanted=fork_server) as server:  # first, so that it imports while this process does
        from stratos.cli.local.options import options_for
        from stratos.cli.local.preflight import find_shipped_model
        from stratos.cli.up import run_up

        with explained_errors():
            options = options_for(model or [], find_shipped_model(), make, workers or [])
        code = run_up(options, server)
    raise typer.Exit(code)


@commands.command("sim-worker")
def sim_worker(
    count: Annotated[int, typer.Option(help="Workers in the one process.")] = 1,
    role: Annotated[str, typer.Option(help="prefill or decode.")] = "decode",
    name: Annotated[str, typer.Option(help="Begins the name of each worker.")] = "sim",
    step_ms: Annotated[float | None, typer.Option(help="Duration of a step; default: of the cost model.")] = None,
    discovery: Annotated[
        Path | None, typer.Option(help="Folder of routers' discovery; default: the platform's.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="With --discovery: model folder of the gateways.")] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Run many simulated workers in one process: real scheduling, no model; Ctrl-C stops them."""
    from stratos.cli.local.running import find_platform
    from stratos.cli.simulated import SimOptions, command, settings_beside

    with explained_errors():
        options = SimOptions(count=count, role=role, name=name, step_ms=step_ms)
        if discovery is None:
            settings = settings_beside(find_platform(data_dir, run), data_dir, role)
        else:
            settings = {"DISCOVERY_FOLDER": str(discovery), "FAKE__MODEL_PATH": str(model or "")}
        argv, env = command(options, settings)
    os.execve(argv[0], argv, env)  # noqa: S606 - the arguments are ours, no shell is involved


@commands.command()
def status(
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show processes, workers and queues of a running platform."""
    from stratos.cli.local.running import find_platform
    from stratos.cli.status import read_status, status_json, status_text

    with explained_errors():
        found = asyncio.run(read_status(find_platform(data_dir, run)))
    typer.echo(json.dumps(status_json(found), indent=2) if as_json else status_text(found))


@commands.command()
def chat(
    model: Annotated[str, typer.Option(help="Model or adapter; default: the base model.")] = "",
    system: Annotated[str, typer.Option(help="System message.")] = "",
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    temperature: Annotated[float | None, typer.Option(help="0: the likeliest token each time.")] = None,
    tools: Annotated[
        Path | None, typer.Option(help="JSON list of functions to offer; results of calls are asked for.")
    ] = None,
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Talk to a running platform; Ctrl-C aborts an answer, Ctrl-D ends."""
    from stratos.cli.chat import chat_client, converse
    from stratos.cli.local.running import find_platform

    with explained_errors():
        found = find_platform(data_dir, run)
        client = chat_client(found, model=model, max_tokens=max_tokens, temperature=temperature, tools=tools)
    try:
        converse(client, ask=input, write=lambda text: typer.echo(text, nl=False), system=system)
    finally:
        client.close()


@commands.command()
def explain(
    request_id: Annotated[str, typer.Argument(help="The x-request-id of the answer.")],
    url: Annotated[str, typer.Option(help="Gateway with /v1; default: the running platform.")] = "",
    key: Annotated[str, typer.Option(help="Key of the request's tenant; default: the running platform's.")] = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the receipt of a request: limits, attempts and their workers, prefix match, hand-off, what was billed."""
    from stratos.cli.local.running import find_platform
    from stratos.cli.money.receipts import read_receipt, receipt_text

    with explained_errors():
        facts = None if url and key else find_platform(data_dir, run)
        base_url = url or ("" if facts is None else facts.base_url)
        receipt = read_receipt(base_url, key or ("" if facts is None else facts.api_key), request_id)
    typer.echo(json.dumps(receipt, indent=2) if as_json else receipt_text(receipt))


@watermark_app.command("detect")
def watermark_detect(
    model: Annotated[Path, typer.Option(help="Folder of the model whose output it may be.")],
    file: Annotated[Path | None, typer.Argument(help="The text; default: standard input.")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the secret key.")] = None,
    key: Annotated[str, typer.Option(envvar="STRATOS_GATEWAY_WATERMARK__KEY", hidden=True)] = "",
    gamma: Annotated[float, typer.Option(help="As the gateway has it.")] = 0.25,
    context_tokens: Annotated[int, typer.Option(help="As the gateway has it.")] = 1,
    p_value: Annotated[float, typer.Option(min=0, max=1, help="Most false alarms per text.")] = 1e-5,
) -> None:
    """Say as JSON whether a text carries the watermark; exit code 1 if it does not."""
    from stratos.cli.watermark import detect_text, read_key, read_text
    from stratos.core.requests.watermark import Watermark

    with explained_errors():
        secret = read_key(key_file, key)
        text = read_text(file)
        mark = Watermark(key=secret, gamma=gamma, num_context_tokens=context_tokens)
        found = detect_text(text, model, mark, p_value)
    typer.echo(json.dumps(found))
    raise typer.Exit(0 if found["is_marked"] else 1)


def main() -> None:
    """Entry point of the ``stratos`` command."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app()
