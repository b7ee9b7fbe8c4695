"""``stratos reproduce``: the command."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Annotated

import typer

from stratos.cli.commands.shared import explained_errors


def reproduce(
    rows: Annotated[
        list[str] | None, typer.Argument(help="Rows to measure, again if the report has them; default: all it lacks.")
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="Name all rows with the bounds of their full forms, and run nothing.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="All of every row, each within its bound: at most 90 minutes.")
    ] = False,
    smoke: Annotated[bool, typer.Option("--smoke", help="A little of every row: whether the code runs.")] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Measure the rows of a GPU here; else they are of a committed report.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep rows that other commits measured, too: a report of several days.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything that is drawn.")] = 0,
    threads: Annotated[int, typer.Option(min=0, help="Of an engine; 0: as many as there are cores.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder of the report.")] = Path("build/reproduce"),
) -> None:
    """Recompute published claims, measure them here, and write a report: JSON, HTML, Markdown and plots."""
    from stratos.cli.local.preflight import find_shipped_model
    from stratos.cli.reproduce.documents import ReportFile
    from stratos.cli.reproduce.report import HTML_NAME, JSON_NAME, write_pages
    from stratos.cli.reproduce.running import WholeReport, measure_in_process, run_rows
    from stratos.common.errors import BadRequest
    from stratos.reproduce.catalogue import ROWS, find_row
    from stratos.reproduce.gpu_checks import committed_checks
    from stratos.reproduce.machine import has_gpu, read_commit
    from stratos.reproduce.measuring import gpu_document
    from stratos.reproduce.record.conditions import RowConditions, RowForm

    if show_list:
        lines = (f"{one.name:22}{one.full_minutes:4g} min  {one.title}{' (GPU)' * one.needs_gpu}" for one in ROWS)
        typer.echo("\n".join(lines))
        return
    with explained_errors():
        if full and smoke:
            raise BadRequest("--full and --smoke exclude each other", param="--smoke")
        if gpu and not has_gpu():
            raise BadRequest("this machine has no GPU: without --gpu a committed report answers", param="--gpu")
        chosen = [find_row(name) for name in rows or ()]
        model = find_shipped_model()
        if model is None:
            raise BadRequest("the shipped model was not found here: run it from a checkout", param="--out")
        conditions = RowConditions(
            form=RowForm.FULL if full else RowForm.SMOKE if smoke else RowForm.SHORT,
            seed=seed,
            model=model,
            threads=threads or os.cpu_count() or 1,
            folder=out / "material",
        )
        report = ReportFile(out / JSON_NAME)
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped as by Ctrl-C
        checks = committed_checks()
        try:
            broken = run_rows(
                chosen or ROWS,
                conditions,
                report,
                commit=None if keep else read_commit(),
                again=bool(chosen),
                of_gpus=None if gpu else {row.name: gpu_document(row, check) for row, check in checks.items()},
                measure=measure_in_process if chosen else WholeReport(),
                say=lambda text: typer.echo(text, err=True),
            )
        finally:  # also after Ctrl-C: the next call goes on where this one ended
            write_pages(out, ROWS, report.rows)
    typer.echo(f"{out / HTML_NAME}")
    raise typer.Exit(1 if broken else 0)
