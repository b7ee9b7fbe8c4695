"""A platform under load and the Prometheus of ``stratos up --observe``: every panel, rule and alert finds its series.

Panels of a GPU, and of a memory's bandwidth that nothing here has measured, run over ``gpu_worker.prom``, which was
recorded from the collector over a stand-in of NVML.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.cli.stores import open_records
from stratos.observe.alerts.table import ALERTS
from stratos.observe.dashboards.pages import DASHBOARDS
from stratos.observe.recording import RECORDINGS
from stratos.store.models.rollout_forms import rollout_to_json
from stratos.store.models.rollout_record import Drift, RolloutGates, RolloutRecord
from stratos.store.records.record import Kind
from stratos.store.records.writer import RecordWriter
from tests.support.observed.exposition import exposed, undeclared
from tests.support.observed.promql import OF_A_CLUSTER, selectors
from tests.support.paths import FIXTURES
from tests.support.reference.adapter_folders import write_adapter
from tests.support.servers.prometheus import ask, fetch, need
from tests.support.waiting import LIMIT_S, wait_until
from tests.support.worlds.platform_process import PlatformProcess, running_platform

pytestmark = pytest.mark.monitoring
FLAGS = ("--engine", "fake", "--observe", "--max-decode", "1", "--mtls", "--transport", "tls")
SERVICES = ("GATEWAY", "ROUTER", "PREFILL_WORKER", "DECODE_WORKER")
ENV = {
    **{f"STRATOS_{service}_METRIC_VIEWS": '["llm", "vllm"]' for service in SERVICES},
    **{f"STRATOS_{role}_WORKER_OBSERVE__DEVICE_HOUR_PRICE": "2.5" for role in ("PREFILL", "DECODE")},
    "STRATOS_DECODE_WORKER_FAKE__STEP_S": "0.005",
}
TENANTS = """
plans:
  gold: {ttft_ms: 5000, itl_ms: 1000, ttft_p99_ms: 5000, itl_p99_ms: 1000, budget: {soft: 100000000}, max_sequences: 4}
tenants:
  acme: {plan: gold}
"""
TARGETS = 7
"""Processes with metrics: gateway, router, two workers, registry, autoscaler, and the recorded one."""
OFFSET = re.compile(r" offset \S+$")
ELSEWHERE = {
    "stratos_autoscaler_metrics_api_questions_total",
    "stratos_autoscaler_model_resources",
    "stratos_autoscaler_pool_info",
    "stratos_model_refused",
    "stratos_rollout_phase_age_seconds",
    *OF_A_CLUSTER,
}
"""No process of a machine serves Kubernetes' metrics API, has an HPA or objects of kind Model, and no model of this
platform is refused, or rolled back: the proofs of the alerts feed these."""
CHOICES = {"default": "base", "rules": [{"name": "poems", "keywords": ["poem"], "models": ["tuned"]}]}
"""Of the model ``auto``."""
ROLLOUT = RolloutRecord(
    model="waits", old="a" * 64, new="b" * 64, steps=(50, 100), hold_s=3600, gates=RolloutGates(errors=5, drift=1),
    alias_version=0, drift=Drift(mean=0.1, largest=0.5, num_tokens=100),
)  # fmt: skip
"""It waits for a revision that no gateway serves."""
WINDOW = "1m"
SHOWN_AFTER_S = 0.5
"""Workers copy their engine's counts into metrics every quarter of a second."""


@dataclass
class Counted:
    """Counts of the tenant acme's own client."""

    http: httpx.Client
    num_finished: int = 0
    num_refused: int = 0
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_choices: int = 0

    def ask(self, number: int, **more: Any) -> None:
        """One request; its prompt is no other's, so its KV is handed off."""
        prompt = [(number * 37 + 11 * place) % 4000 for place in range(40)]
        body = {"model": "base", "prompt": prompt, "max_tokens": 12, "ignore_eos": True, "temperature": 0, **more}
        answer = self.http.post("/completions", json=body)
        if answer.status_code != 200:
            self.num_refused += 1
            return
        usage = answer.json()["usage"]
        self.num_finished += 1
        self.num_choices += len(answer.json()["choices"])
        self.num_prompt_tokens += usage["prompt_tokens"]
        self.num_output_tokens += usage["completion_tokens"]


@dataclass
class Observed:
    """The platform, its Prometheus, and what was asked of it."""

    platform: PlatformProcess
    url: str
    counted: Counted

    def value(self, query: str) -> float:
        """The one value of a query; NaN without one."""
        found = ask(self.url, query)
        return float(found[0]["value"][1]) if len(found) == 1 else math.nan


@pytest.fixture(scope="module")
def recorded() -> Iterator[str]:
    """Address of the recorded exposition, at /metrics like any other."""

    class Handler(SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            return str(FIXTURES / "metrics" / "gpu_worker.prom")

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes come every two seconds."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, recorded: str) -> Iterator[Observed]:
    need("prometheus", "every panel, rule and alert executed against a running platform")
    data_dir = tmp_path_factory.mktemp("platform")
    with running_platform(data_dir, *FLAGS, env=ENV) as platform:
        labels = {"component": "decode-worker", "instance": "recorded-gpu", "release": "local"}
        more = platform.run_dir() / "targets-recorded.json"
        more.write_text(json.dumps([{"targets": [recorded], "labels": labels}]))
        (data_dir / "tenants.yaml").write_text(TENANTS)
        admin = _stratos(data_dir, "keys", "create", "--tenant", "platform", "--role", "admin")
        platform.stratos("admin", "apply", "-f", str(data_dir / "tenants.yaml"), "--key", admin, "--wait-s", "20")
        key = _stratos(data_dir, "keys", "create", "--tenant", "acme")
        asyncio.run(_begin(ROLLOUT, platform.facts()["redis_url"]))
        _stratos(data_dir, "adapters", "register", "tuned", str(write_adapter(data_dir / "tuned")))
        (data_dir / "choices.json").write_text(json.dumps(CHOICES))
        platform.stratos("models", "auto", "--rules", str(data_dir / "choices.json"), "--key", admin)
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=platform.base_url, headers=headers, timeout=LIMIT_S) as http:
            for name in ("tuned", "auto"):
                wait_until(lambda name=name: _is_listed(http, name), what=f"the model {name} at the gateway")
            counted = Counted(http)
            url = platform.facts()["prometheus_url"]
            made = Observed(platform, url, counted)
            wait_until(lambda: made.value("count(up)") == TARGETS, what="a first scrape of every process")
            _load(platform, counted)
            ended = counted.num_finished + counted.num_refused
            total = 'sum(stratos_request_outcomes_total{outcome!="left"}) - sum(stratos_requests_open)'
            wait_until(lambda: made.value(total) >= ended, what="a scrape of every request's end")
            end_s = time.time() + SHOWN_AFTER_S
            wait_until(lambda: made.value("min(timestamp(up))") > end_s, what="a scrape of every process after that")
            wait_until(lambda: ask(url, RECORDINGS[-1].name), what="the recording rules")
            wait_until(lambda: ask(url, "stratos_promise_window_p99_seconds"), what="a look at the running window")
            yield made


async def _begin(rollout: RolloutRecord, redis_url: str) -> None:
    async with open_records(redis_url) as records:
        value = rollout_to_json(replace(rollout, since_us=await records.now_us()))
        await RecordWriter(records, actor="test").change(Kind.ROLLOUT, rollout.model, "rollout.start", lambda _: value)


def _stratos(data_dir: Path, *arguments: str) -> str:
    """A command, without a process for it; returns what it printed."""
    result = CliRunner().invoke(app, [*arguments, "--data-dir", str(data_dir)])
    assert result.exit_code == 0, result.output
    return result.output.strip()


def _is_listed(http: httpx.Client, name: str) -> bool:
    answer = http.get("/models")
    return answer.status_code == 200 and name in [row["id"] for row in answer.json()["data"]]


def _load(platform: PlatformProcess, counted: Counted) -> None:
    """Known requests over some scrapes: one and several choices, an adapter, refused ones, one whose client leaves."""
    for number in range(60):
        counted.ask(number, n=1 + number % 2, model=("tuned", "base", "auto", "base", "base")[number % 5])
    counted.ask(1000, model="no-such-model")
    counted.ask(1001, max_tokens=-1)
    counted.ask(1002, n=5)
    body = {"model": "base", "prompt": "leave me", "max_tokens": 3000, "stream": True, "ignore_eos": True}
    headers = {"Authorization": f"Bearer {platform.api_key}"}
    with httpx.stream(
        "POST", f"{platform.base_url}/completions", json=body, headers=headers, timeout=LIMIT_S
    ) as answer:
        next(answer.iter_lines())


def test_every_panel_shows_something(observed: Observed) -> None:
    empty, recorded = [], 0
    for page in DASHBOARDS:
        for panel in page.panels:
            recorded += panel.needs_gpu
            for query in panel.queries:
                found = ask(observed.url, query.scoped('release=~".*"', WINDOW))
                if not any(math.isfinite(float(series["value"][1])) for series in found):
                    empty.append(f"{page.title}: {panel.title}: {query.expr}")
    assert empty == []
    print(f"{recorded} panels ran over a recorded exposition, for want of a GPU")


def test_every_selector_of_a_rule_matches_a_live_series(observed: Observed) -> None:
    """By name and labels: what a rule asks of the past is older than this platform."""
    rules = [(rule.name, rule.expr) for rule in (*RECORDINGS, *ALERTS)]
    missing = [
        f"{name}: {selector.prettify()}"
        for name, expr in rules
        for selector in selectors(expr)
        if selector.name not in ELSEWHERE and not ask(observed.url, OFFSET.sub("", selector.prettify()))
    ]
    assert missing == []


def test_rules_are_sound_and_no_alert_is_raised(observed: Observed) -> None:
    groups = fetch(f"{observed.url}/api/v1/rules")["data"]["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "ok"] == []
    raised = fetch(f"{observed.url}/api/v1/alerts")["data"]["alerts"]
    assert [alert["labels"]["alertname"] for alert in raised] == []


def test_counters_equal_the_clients_own_count(observed: Observed) -> None:
    counted = observed.counted
    expected = {
        'sum(stratos_output_tokens_total{tenant="acme"})': counted.num_output_tokens,
        'sum(stratos_prompt_tokens_total{tenant="acme"})': counted.num_prompt_tokens,
        'sum(stratos_request_outcomes_total{outcome="finished"})': counted.num_finished,
        'sum(stratos_request_outcomes_total{outcome="refused"})': counted.num_refused,
        'sum(stratos_request_outcomes_total{outcome="left"})': 1,
        'sum(stratos_requests_limited_total{tenant="acme", code="request_over_rate_limit"})': 1,
        'sum(stratos_promises_total{plan="gold", promise="ttft"})': counted.num_finished,
        'sum(stratos_adapter_requests_total{found="store", instance="decode-0"})': 1,
        "sum(stratos_request_duration_seconds_count)": counted.num_finished + counted.num_refused + 1,
        'sum(llm_requests_total{status="success"})': counted.num_finished,
    }
    assert {query: observed.value(query) for query in expected} == expected
    assert observed.value('sum(stratos_kv_handoffs_total{side="receiver", outcome="committed"})') == observed.value(
        'sum(stratos_prefills_total{path="handoff"})'
    )
    sampled = observed.value('sum(stratos_engine_output_tokens_total{instance="decode-0"})')
    assert sampled >= counted.num_output_tokens
    assert observed.value("sum(llm_tokens_generated_total)") == observed.value("sum(stratos_output_tokens_total)")


def test_every_series_of_every_process_is_documented(observed: Observed) -> None:
    assert len({name for name, _ in exposed(observed.platform)}) == TARGETS - 1
    assert undeclared(observed.platform) == set()


def test_the_banner_and_the_status_name_the_prometheus(observed: Observed) -> None:
    assert re.search(rf"Prometheus +{re.escape(observed.url)}", observed.platform.output)
    assert observed.platform.processes()["prometheus"]["state"] == "serving"
