"""``stratos plan --html``: a page with the sheet and its plots, which needs no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.calculators.sheet import Grid
from stratos.cli.commands.plan.page import grid_charts
from stratos.cli.main import app

LARGE = ("--model", "llama-3.1-8b")
ASKED = {
    "batch": (*LARGE, "--device", "a100-80"),
    "gpu": LARGE,
    "breakeven": ("--device", "a100-80", "--requests-per-s", "20", "--api-prompt-usd", "5", "--api-output-usd", "15"),
    "fleet": ("--device", "a100-80", "--region", "east=1:-5", "--mix", "a=0.5:3000", "--mix", "b=0.5:900"),
    "memory": (*LARGE, "--device", "a100-80"),
}


@pytest.mark.parametrize("command", ASKED)
def test_a_page_has_the_plots_of_its_tables(command: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.html"
    done = CliRunner().invoke(app, ["plan", command, *ASKED[command], "--html", str(path)])
    assert done.exit_code == 0, done.output
    page = path.read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<polyline" in page or "<circle" in page
    assert "src=" not in page
    assert "href=" not in page


def test_lines_are_drawn_over_a_first_column_of_numbers_and_named_rows_are_dots() -> None:
    (speed,) = grid_charts(Grid("By rows", ("rows", "tokens_per_s", "fits"), ((1, 10.0, "yes"), (2, 19.0, "no"))))
    assert [(one.is_line, list(one.points)) for one in speed.series] == [(True, [(1.0, 10.0), (2.0, 19.0)])]
    (price,) = grid_charts(Grid("Devices", ("device", "tp", "usd"), (("a", 1, 2.0), ("b", 2, "no price"), ("c", 4, 3))))
    assert [(one.name, list(one.points)) for one in price.series] == [("a", [(1.0, 2.0)]), ("c", [(4.0, 3.0)])]
    assert grid_charts(Grid("One row", ("rows", "tokens_per_s"), ((1, 10.0),))) == []


def test_a_page_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "gpu", *LARGE, "--html", str(tmp_path / "absent" / "plan.html")])
    assert (done.exit_code, "--html" in done.output) == (1, True)
