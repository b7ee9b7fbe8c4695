"""Plots: axes with round ticks, whole SVG, one page that fetches nothing and escapes what it is given."""

from __future__ import annotations

import re
from array import array
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratos.cli.load.harness import LoadMeasurement
from stratos.cli.load.measured import LoadResult, MeasuredRequest, TimedAnswer
from stratos.cli.load.plots.chart import COLOURS, FORMS, MAX_DOTS, WIDTH, Chart, Series, chart_svg
from stratos.cli.load.plots.page import load_page
from stratos.cli.load.plots.scale import MAX_TICKS, axis_scale
from stratos.cli.load.report.slo import LatencyPromise
from stratos.cli.load.report.summary import load_report
from stratos.cli.load.workload.prompts import Segment
from stratos.cli.load.workload.senders import Sender
from stratos.cli.load.workload.sessions import PlannedSession, PlannedTurn

SVG = "{http://www.w3.org/2000/svg}"


def chart(*series: Series, is_x_log: bool = False, is_y_log: bool = False) -> ElementTree.Element:
    drawn = Chart(title="<t>", x_label="x & y", y_label="y", series=series, is_x_log=is_x_log, is_y_log=is_y_log)
    return ElementTree.fromstring(chart_svg(drawn))


def measurement(arrivals: str, *ttfts_s: float, failure: str = "") -> LoadMeasurement:
    turn = PlannedTurn(segments=(Segment(1, 1),), num_output_tokens=2)
    session = PlannedSession(number=0, at_s=0.0, sender=Sender(key="sk-secret"), model="<m>", turns=(turn,))
    answers = [TimedAnswer(sent_s=0.0, token_times_s=array("d", [one, one + 0.02])) for one in ttfts_s]
    if failure:
        answers.append(TimedAnswer(sent_s=0.0, failure=failure))
    found = [MeasuredRequest(session=session, turn=turn, intended_s=0.0, answer=answer) for answer in answers]
    result = LoadResult(requests=found, duration_s=1.0)
    report = load_report(result, LatencyPromise(ttft_ms=400))
    return LoadMeasurement(arrivals=arrivals, result=result, report=report, conditions={"model_id": "<m>"})


@pytest.mark.parametrize("is_line", [False, True])
def test_series_of_one_colour_differ_in_form(is_line: bool) -> None:
    count = len(COLOURS) * len(FORMS)
    root = chart(*(Series(name=f"s{number}", points=[(1, 1)], is_line=is_line) for number in range(count)))
    drawn = root.findall(f"{SVG}polyline")
    if not is_line:  # marks of the legend stand to their left
        drawn = [dot for dot in root.findall(f"{SVG}circle") if float(dot.get("cx", 0)) > WIDTH - 100]
    looks = [tuple(sorted((k, v) for k, v in one.attrib.items() if k not in ("cx", "cy", "points"))) for one in drawn]
    assert len(looks) == len(set(looks)) == count


@given(values=st.lists(st.floats(0, 1e6), max_size=5), is_log=st.booleans())
@example(values=[5e-324], is_log=True)
@example(values=[5e-324], is_log=False)
def test_every_value_is_on_the_axis_and_ticks_are_few(values: list[float], is_log: bool) -> None:
    axis = axis_scale(values, 100, 500, is_log=is_log)
    assert all(100 <= axis.at(value) <= 500 for value in [*values, 0.0])
    ticks = axis.ticks()
    assert ticks == sorted(ticks)
    assert len(ticks) <= MAX_TICKS + 1 or is_log
    assert all(axis.low <= tick <= axis.high * (1 + 1e-9) for tick in ticks)


@pytest.mark.parametrize(
    ("high", "is_log", "ticks"),
    [(8, False, [0, 1, 2, 3, 4, 5, 6, 7, 8]), (0.3, False, [0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]),
     (1000, True, [1, 10, 100, 1000]), (30, True, [1, 2, 5, 10, 20])],
)  # fmt: skip
def test_ticks_are_round(high: float, is_log: bool, ticks: list[float]) -> None:
    assert axis_scale([1 if is_log else 0, high], 0, 1, is_log=is_log).ticks() == pytest.approx(ticks)


def test_higher_values_are_higher_and_texts_are_escaped() -> None:
    svg = chart(Series(name="a<b", points=[(0, 0), (1, 10)]))
    [line] = svg.iter(f"{SVG}polyline")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line.get("points", "").split())
    assert x1 < x2
    assert y1 > y2, "pixels count from the top"
    assert {"<t>", "x & y", "a<b"} <= {text.text for text in svg.iter(f"{SVG}text")}


def test_dots_are_sampled_evenly() -> None:
    svg = chart(Series(name="a", points=[(float(x), 1.0) for x in range(3 * MAX_DOTS)], is_line=False))
    assert len(list(svg.iter(f"{SVG}circle"))) == MAX_DOTS


def test_a_chart_of_nothing_is_whole() -> None:
    assert chart(Series(name="a", points=[]), is_x_log=True, is_y_log=True) is not None


@pytest.mark.parametrize("is_search", [False, True])
def test_a_page_has_its_plots_and_fetches_nothing(is_search: bool) -> None:
    runs = [measurement("poisson:1", 0.1, 0.2), measurement("poisson:2", 0.3, failure="503 <full>")]
    page = load_page(runs, "<title>", is_search=is_search)
    assert page.count("<svg") == 5  # three distributions, and two of the load or one for each run
    assert re.findall(r"(?:src|href)=|@import|url\(", page) == []
    assert [url for url in re.findall(r"https?://[^\"\s]+", page) if "w3.org" not in url] == []
    assert "<h1>&lt;title&gt;</h1>" in page
    assert "503 &lt;full&gt;" in page
    assert "<m>" not in page
    assert "sk-secret" not in page
