"""``stratos batch run``: a file computed here or on a Ray cluster, without a platform."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stratos.cli.commands.shared import explained_errors
from stratos.common.errors import BadRequest

DRIVER = "stratos_offline"
"""Imports torch and, where asked, Ray: it is started, not imported."""


class RunCommand(TyperCommand):
    """The command, whose ``--ray`` needs no value: the parser knows none that may be left out."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give it the value that it has where another flag follows, or nothing."""
        own = args[: args.index("--")] if "--" in args else args
        filled = [
            "--ray=local" if one == "--ray" and after.startswith("-") else one
            for one, after in zip(own, [*own[1:], "--"], strict=True)
        ]
        return super().parse_args(ctx, filled + args[len(own) :])


def run(
    file: Annotated[Path, typer.Argument(help="One request a line, as JSON.")],
    out: Annotated[Path, typer.Option(help="Folder for output.jsonl and errors.jsonl; the same again goes on.")],
    ray: Annotated[
        str,
        typer.Option(metavar="[ADDRESS]", help="A Ray cluster; without one, of this machine. Default: processes."),
    ] = "",
    model: Annotated[str, typer.Option(help="[NAME=]PATH of the model folder; default: the shipped model.")] = "",
    engines: Annotated[int, typer.Option(help="Most engines at a time.")] = 1,
    min_engines: Annotated[int, typer.Option(help="Least engines on Ray.")] = 1,
    engine: Annotated[str, typer.Option(help="torch, fake, or echo: computes nothing.")] = "torch",
    device: Annotated[str, typer.Option(help="cpu, or cuda: one GPU of each engine.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="As for `stratos up`.")] = "auto",
    quantization: Annotated[str, typer.Option(help="As for `stratos up`.")] = "auto",
    kv_cache_dtype: Annotated[str, typer.Option(help="As for `stratos up`.")] = "auto",
    kv_pool: Annotated[int, typer.Option(help="MiB of KV of each engine; 0: it chooses.")] = 0,
    max_model_len: Annotated[int, typer.Option(help="Longest sequence; 0: the model's context.")] = 0,
    max_input_tokens: Annotated[int, typer.Option(help="Longest prompt, as the platform's.")] = 4096,
    threads: Annotated[int, typer.Option(help="Cores of each engine.")] = 1,
    lines_at_once: Annotated[int, typer.Option(help="Most lines that an engine computes at a time.")] = 32,
    block_lines: Annotated[int, typer.Option(help="Lines of a block, of which each has a checkpoint.")] = 256,
    object_store: Annotated[
        str, typer.Option("--object-store", help="file:///DIR or s3://BUCKET/PREFIX for blocks; default: in --out.")
    ] = "",
    s3_endpoint: Annotated[str, typer.Option(help="Address of an S3 service that is not AWS.")] = "",
    name: Annotated[str, typer.Option(help="Id of the batch, from which seeds follow; default: of the file.")] = "",
    allow_open_cluster: Annotated[bool, typer.Option(help="Take a cluster without token authentication.")] = False,
) -> None:
    """Compute a file of requests without a platform."""
    with explained_errors():
        model_name, path = _model(model)
        options = {
            "file": str(file),
            "out": str(out),
            "ray": ray,
            "name": name,
            "store_url": object_store,
            "s3_endpoint": s3_endpoint,
            "block_lines": block_lines,
            "min_engines": min_engines,
            "max_engines": engines,
            "allow_open_cluster": allow_open_cluster,
            "engine": {
                "model_path": str(path.resolve()),
                "model_name": model_name,
                "engine": _one_of("--engine", engine, ("torch", "fake", "echo")),
                "device": _one_of("--device", device, ("cpu", "cuda")),
                "dtype": dtype,
                "quantization": quantization,
                "kv_cache_dtype": kv_cache_dtype,
                "kv_pool_bytes": kv_pool << 20,
                "max_model_len": max_model_len,
                "max_input_tokens": max_input_tokens,
                "threads": threads,
                "lines_at_once": lines_at_once,
            },
        }
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    argv = [sys.executable, "-m", DRIVER, json.dumps(options)]
    os.execve(argv[0], argv, env)  # noqa: S606 - the arguments are ours, no shell is involved


def _model(asked: str) -> tuple[str, Path]:
    """Name and folder of the model."""
    from stratos.cli.local.preflight import check_model_folder, find_shipped_model

    name, _, path = asked.rpartition("=")
    found = Path(path) if path else find_shipped_model()
    if found is None:
        raise BadRequest("give the folder of a model: --model [NAME=]PATH", param="--model")
    check_model_folder(found)
    return name, found


def _one_of(flag: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise BadRequest(f"{flag} must be one of {', '.join(allowed)}, not {value!r}", param=flag)
    return value
