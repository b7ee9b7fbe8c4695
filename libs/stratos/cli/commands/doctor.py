"""``stratos doctor``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.shared import explained_errors


def doctor(
    model: Annotated[
        Path | None, typer.Option(help="Hugging Face model folder, or a GGUF file; default: the shipped model.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="As for `stratos up`.")] = "auto",
    max_model_len: Annotated[int, typer.Option(help="As for `stratos up`.")] = 0,
    prefill: Annotated[int, typer.Option(help="Prefill workers on this machine.")] = 1,
    decode: Annotated[int, typer.Option(help="Decode workers on this machine.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of each worker; 0 shares the cores.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    host: Annotated[str, typer.Option(help="Address the gateways listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the gateways.")] = 8000,
    redis_url: Annotated[str, typer.Option(envvar="REDIS_URL", help="Redis to ask; default: none.")] = "",
    object_store: Annotated[str, typer.Option(help="file:///DIR or s3://BUCKET/PREFIX to ask.")] = "",
    s3_endpoint: Annotated[str, typer.Option(help="Address of an S3 service that is not AWS.")] = "",
    certificates: Annotated[Path | None, typer.Option(help="Folder of certificates to check.")] = None,
    domain: Annotated[str, typer.Option(help="Platform name in the certificates.")] = "stratos",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what on this machine stops a platform or slows it down; exit code 1 if something must be repaired."""
    from stratos.cli.local.preflight import find_shipped_model
    from stratos.common.errors import BadRequest
    from stratos.selfcheck.findings import Level, report
    from stratos.selfcheck.machine.doctor import DoctorAsk, examine
    from stratos.selfcheck.machine.sizing import WorkerAsk
    from stratos.text.gguf.kept_folders import folder_for

    with explained_errors():
        if device not in ("cpu", "cuda"):
            raise BadRequest(f"--device must be cpu or cuda, not {device!r}", param="--device")
        folder = model or find_shipped_model()
        if folder is None:
            raise BadRequest("no shipped model was found here; give a Hugging Face model folder with --model PATH")
        with folder_for(folder) as path:
            workers = WorkerAsk(
                model_path=path.resolve(), num_workers=prefill + decode, dtype=dtype, max_model_len=max_model_len
            )
            findings = examine(
                DoctorAsk(
                    workers=workers, threads=threads, device=device, num_sources=prefill + decode, host=host, port=port,
                    redis_url=redis_url, object_store_url=object_store, s3_endpoint_url=s3_endpoint,
                    certificates=certificates, domain=domain,
                ),
                os.environ,
            )  # fmt: skip
    typer.echo(json.dumps([f.as_json() for f in findings], indent=2) if as_json else report(findings))
    raise typer.Exit(1 if any(finding.level is Level.FAIL for finding in findings) else 0)
