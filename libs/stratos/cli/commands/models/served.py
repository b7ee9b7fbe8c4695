"""``stratos models``: models that a running platform serves, their aliases and roll-outs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from stratos.cli.commands.admin_access import KeyOption, UrlOption, admin_client
from stratos.cli.commands.models.stored import store_of, stored_app
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.cli.commands.stores.options import S3Option
from stratos.cli.local.options import DEFAULT_DATA_DIR, DataDirOption
from stratos.common.errors import DependencyDown, NotFound
from stratos.engine.checkpoint.weight_schemes import AT_LOAD

models_app = typer.Typer(
    help="Models that a platform serves, and base models in the object store.", no_args_is_help=True
)
models_app.add_typer(stored_app)
NameArgument = Annotated[str, typer.Argument(help='Name that clients use as "model".')]


@models_app.command("add")
def add(
    name: NameArgument,
    path: Annotated[
        Path, typer.Argument(help="Hugging Face model folder, a GGUF file, or registry:NAME@DIGITS, as published.")
    ],
    size: Annotated[str | None, typer.Option(help="Row of the plans' prices that its tokens have.")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=0, help="Longest sequence; 0: the model's context.")] = None,
    max_input_tokens: Annotated[int | None, typer.Option(min=1, help="Longest prompt; of a new name 4096.")] = None,
    quantization: Annotated[str | None, typer.Option(help=f"Weights: auto, {AT_LOAD}.")] = None,
    speculative_config: Annotated[
        str, typer.Option(help='Drafts, e.g. {"method": "ngram"}; of a new name: as the platform was started.')
    ] = "",
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="Seconds to wait until workers serve it.")] = 0,
    digest: Annotated[
        str, typer.Option(help="Of the model, as `publish` printed it: then the folder needs no weights.")
    ] = "",
    object_store: Annotated[str, typer.Option(help="That of the gateways; default: the running platform's.")] = "",
    s3_endpoint: S3Option = "",
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Serve a model from now on, or a further revision of one; nothing restarts. Under `stratos up` it gets workers.

    What is not given stays as the newest revision of the name has it.
    """
    from stratos.cli.data.folder import DataDir
    from stratos.cli.data.speculative_config import speculation_fields
    from stratos.cli.local.preflight import check_model_folder
    from stratos.cli.models.records import ModelAsk, add_model, wait_for_workers
    from stratos.cli.models.references import found_model
    from stratos.core.files.gguf.parts import is_gguf
    from stratos.store.registry.catalogue import is_reference
    from stratos.text.gguf.kept_folders import gguf_folder

    asked: dict[str, Any] = {
        "size": size,
        "max_model_len": max_model_len,
        "max_input_tokens": max_input_tokens,
        "quantization": quantization,
    }
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        asked["speculation"] = speculation_fields(speculative_config) or None
        terms = {field: value for field, value in asked.items() if value is not None}
        data, store = DataDir(data_dir), store_of(object_store, s3_endpoint, url, data_dir, run)
        data.prepare()
        published = found_model(str(path), store) if is_reference(str(path)) else None
        folder = gguf_folder(path, data.gguf_path) if is_gguf(path) else path.resolve()
        if not digest and published is None:
            check_model_folder(folder)
        ask = ModelAsk(
            name=name, folder=folder, digest=digest, digests_file=data.digests_file, store=store, terms=terms,
            published=published,
        )  # fmt: skip
        digest = add_model(client, ask)["digest"]
        typer.echo(f"{name} is recorded, digest {digest}")
        if wait_s and not wait_for_workers(client, digest, wait_s):
            raise DependencyDown(f"{name} has no live workers after {wait_s:g} s; `stratos models list` says more")
        if wait_s:
            typer.echo(f"{name} is served")


@models_app.command("list")
def list_models(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """List revisions of models at a gateway: state and live workers; those with * get new requests."""
    from stratos.cli.models.records import row_text

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        for row in client.call("GET", "/models")["data"]:
            typer.echo(row_text(row))


@models_app.command("show")
def show(
    name: NameArgument,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Print the revisions of a model as JSON, with terms, state and live workers."""
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        rows: list[dict[str, Any]] = [row for row in client.call("GET", "/models")["data"] if row["name"] == name]
        if not rows:
            raise NotFound(f"there is no model {name!r}; `stratos models list` shows all")
        typer.echo(json.dumps(rows, indent=2))


@models_app.command("remove")
def remove(
    name: NameArgument,
    digest: Annotated[str, typer.Option(help="One revision, by the first digits of its digest; default: all.")] = "",
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Serve a model no more: new requests are refused, running ones go on, then its workers leave."""
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        query = {"digest": digest} if digest else {}
        for removed in client.call("DELETE", f"/models/{name}", **query)["removed"]:
            typer.echo(f"{name}, digest {removed}, is removed")


@models_app.command("alias")
def alias(
    name: Annotated[str, typer.Argument(help="The alias: base@stable, a plain name, or a model's name to split it.")],
    targets: Annotated[list[str], typer.Argument(help="MODEL, MODEL@DIGITS or ALIAS, each with =PER_CENT if several.")],
    sticky: Annotated[str, typer.Option(help="What keeps its revision: session, tenant or request.")] = "session",
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Let a name stand for models or revisions, split by weight; requests that run stay where they are."""
    from stratos.cli.models.records import alias_text, parsed_target

    with explained_errors():
        body = {"targets": [parsed_target(t, is_only=len(targets) == 1) for t in targets], "sticky": sticky}
        with admin_client(url, key, data_dir, run) as client:
            typer.echo(alias_text(client.call("PUT", f"/aliases/{name}", body)))


@models_app.command("aliases")
def list_aliases(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """List aliases: where their requests go, by per cent."""
    from stratos.cli.models.records import alias_text

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        for row in client.call("GET", "/aliases")["data"]:
            typer.echo(alias_text(row))


@models_app.command("unalias")
def unalias(
    name: Annotated[str, typer.Argument(help="The alias.")],
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Take an alias away; a model that was split has its newest revision again."""
    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        typer.echo(f"{client.call('DELETE', f'/aliases/{name}')['removed']} is no alias any more")


@models_app.command("rollout")
def rollout(
    name: NameArgument,
    to: Annotated[str, typer.Option(help="Start: the revision, by the first digits of its digest.")] = "",
    steps: Annotated[str, typer.Option(help="Per cents of the sessions that go to it, one after the other.")] = "",
    hold: Annotated[str, typer.Option(help="Least time of each step, such as 90s, 5m or 1h.")] = "",
    gate: Annotated[
        str, typer.Option(help="What it must hold: errors=0.5%,ttft_p99=+20%,itl_p99=+20%,drift=0.05.")
    ] = "",
    min_requests: Annotated[
        int | None, typer.Option("--min-requests", help="Of each revision, before gates judge; at least 200.")
    ] = None,
    sticky: Annotated[str, typer.Option(help="As of `alias`; default: what the model's alias has.")] = "",
    pause: Annotated[bool, typer.Option("--pause", help="Keep the weights, and judge nothing.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Begin the step again.")] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Send all requests to the old revision.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Let a model's requests go over to another revision in steps, and back by itself where a gate is broken.

    With --to it starts one, else it shows how the last one stands, or pauses, resumes or aborts it.
    """
    from stratos.cli.models.rollouts import RolloutAsk, call_rollout, rollout_text

    given = {"steps": steps, "hold": hold, "gates": gate, "sticky": sticky}
    verbs = {"pause": pause, "resume": resume, "abort": abort}
    with explained_errors():
        ask = RolloutAsk(name=name, to=to, given=given, min_requests=min_requests, verbs=verbs)
        with admin_client(url, key, data_dir, run) as client:
            row = call_rollout(client, ask)
            typer.echo(rollout_text(row))
            if abort and not row["is_applied"]:
                raise typer.Exit(1)


@models_app.command("rollouts")
def list_rollouts(
    url: UrlOption = "", key: KeyOption = "", data_dir: DataDirOption = DEFAULT_DATA_DIR, run: RunOption = ""
) -> None:
    """List the last roll-out of each model."""
    from stratos.cli.models.rollouts import rollout_text

    with explained_errors(), admin_client(url, key, data_dir, run) as client:
        for row in client.call("GET", "/rollouts")["data"]:
            typer.echo(rollout_text(row))


@models_app.command("auto")
def auto(
    rules: Annotated[Path | None, typer.Option(help="Write: a JSON file with the rules.")] = None,
    scores: Annotated[Path | None, typer.Option(help="With --rules: a JSON file, score by task and model.")] = None,
    tenant: Annotated[str, typer.Option(help="Rules of this tenant in place of those of all.")] = "",
    plan: Annotated[str, typer.Option(help="Show the price of each model, prompt and output, by this plan.")] = "",
    off: Annotated[bool, typer.Option("--off", help="Send every request to the default.")] = False,
    on: Annotated[bool, typer.Option("--on", help="Let rules choose again.")] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take them away.")] = False,
    url: UrlOption = "",
    key: KeyOption = "",
    data_dir: DataDirOption = DEFAULT_DATA_DIR,
    run: RunOption = "",
) -> None:
    """Show or write the rules by which the model `auto` becomes the cheapest one that is good enough."""
    from stratos.cli.models.choices import ChoiceAsk, call_choices, choices_text

    with explained_errors():
        verbs = {"on": on, "off": off, "remove": remove}
        ask = ChoiceAsk(tenant=tenant, rules=rules, scores=scores, verbs=verbs)
        with admin_client(url, key, data_dir, run) as client:
            row = call_choices(client, ask)
            typer.echo(f"{ask.name} has no rules any more" if row is None else choices_text(client, row, plan))
