"""`stratos up --mtls` as a real process over the fake engine: what it prints, what it survives, what it leaves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from stratos.cli.drain.worker import drain_worker, outcome_text
from stratos.cli.local.ports import any_free_port
from stratos.cli.local.running import find_platform
from stratos.common.errors import PeerRefused, WorkerLost
from stratos.common.tls.identity import PeerRole
from stratos.pki.renewal import RenewalWishes
from stratos.rpc.clients.dialer import Dialer
from stratos.rpc.clients.router import RouterClient
from tests.support.kv.fault_rounds import ROUNDS, is_whole, strike
from tests.support.paths import FIXTURES
from tests.support.servers import warm_process
from tests.support.servers.certificates import CertificateFolder
from tests.support.waiting import LIMIT_S, rounds, wait_until
from tests.support.worlds.platform_process import PlatformProcess, gone, launch_platform, running_platform, state_of

GUARD = FIXTURES / "network_guard"
SERVICES = {
    "redis", "lora-registry", "prefill-0", "decode-0", "decode-1", "router-0", "router-1", "autoscaler",
    "gateway-0", "gateway-1",
}  # fmt: skip
REPLICAS = ("--gateways", "2", "--routers", "2", "--decode", "2", "--max-decode", "2")
MTLS = ("--mtls", "--transport", "tls")
STEP_S = 0.01
CRASH_POSITION = 3000
"""A decode worker dies when it runs a token there; no other prompt is so long."""
LONG_ARRAY = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99999}, "minItems": 200}
PROMPT = "the quick brown fox jumps over the lazy dog and runs away from here"


@pytest.fixture(scope="module")
def guard_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guard")


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, guard_dir: Path) -> Iterator[PlatformProcess]:
    env = {
        "PYTHONPATH": os.pathsep.join(filter(None, (str(GUARD), os.environ.get("PYTHONPATH")))),
        "NETWORK_GUARD_DIR": str(guard_dir),
        "STRATOS_DECODE_WORKER_FAKE__STEP_S": str(STEP_S),
        "STRATOS_DECODE_WORKER_FAKE__CRASH_POSITION": str(CRASH_POSITION),
    }
    flags = ("--engine", "fake", "--port", str(any_free_port()))  # no other platform takes it when this one has ended
    with running_platform(tmp_path_factory.mktemp("platform"), *flags, *REPLICAS, *MTLS, env=env) as running:
        yield running


def client_of(platform: PlatformProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=platform.base_url, api_key=platform.api_key, max_retries=0, timeout=LIMIT_S)


def token_ids(platform: PlatformProcess, num_tokens: int, prompt: str | list[int] = PROMPT, **more: Any) -> list[int]:
    with client_of(platform) as client:
        answer = client.completions.create(
            model="base",
            prompt=prompt,
            max_tokens=num_tokens,
            temperature=0,
            extra_body={"ignore_eos": True, "return_token_ids": True, **more},
        )
    return answer.choices[0].token_ids


def all_token_ids(platform: PlatformProcess, num_tokens: int, prompts: list[str]) -> list[list[int]]:
    """Tokens of many requests, sent at once."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda prompt: token_ids(platform, num_tokens, prompt), prompts))


def test_every_service_is_a_process_that_serves(platform: PlatformProcess) -> None:
    wait_until(lambda: workers_of(platform, {"prefill-0", "decode-0", "decode-1"}), what="every worker in every router")
    status = platform.status()
    assert {p["name"]: p["state"] for p in status["processes"]} == dict.fromkeys(SERVICES, "serving")
    assert len({p["pid"] for p in status["processes"]}) == len(SERVICES)
    assert {w["worker_id"] for w in status["workers"]} == {"prefill-0", "decode-0", "decode-1"}
    assert platform.processes()["gateway-0"]["address"] == platform.processes()["gateway-1"]["address"]
    assert "2 gateways, 2 routers, 1 prefill worker, 2 decode workers" in platform.output
    assert status["router_errors"] == {}
    for worker in status["workers"]:
        ledger = worker["blocks"]
        assert sum(ledger[k] for k in ("free", "cached", "allocated", "reserved", "fenced")) == ledger["total"] > 0
    assert platform.api_key not in str(status)
    shown = platform.stratos("status").stdout
    assert all(name in shown for name in SERVICES)
    assert "Traceback" not in shown


def test_a_call_needs_a_certificate_of_the_right_role(platform: PlatformProcess) -> None:
    facts = platform.facts()
    folder, address = CertificateFolder.of_platform(Path(facts["tls_folder"])), facts["router_addresses"][0]

    async def ask(dialer: Dialer) -> int:
        async with RouterClient(address, dialer=dialer) as router:
            return len((await router.fleet()).workers)

    assert asyncio.run(ask(folder.dialer(PeerRole.SUPERVISOR))) == 3
    with pytest.raises(PeerRefused, match="not for the role router"):
        asyncio.run(ask(folder.dialer(PeerRole.ROUTER)))
    with pytest.raises(WorkerLost):
        asyncio.run(ask(Dialer()))


def test_a_stream_outlives_new_certificates_and_a_new_ca(platform: PlatformProcess) -> None:
    """Tests after this one restart processes, which then connect under the new CA."""
    folder = CertificateFolder.of_platform(Path(platform.facts()["tls_folder"]))
    old = (folder.path / PeerRole.GATEWAY / "tls.crt").read_bytes()
    expected = token_ids(platform, 200)
    wishes = [RenewalWishes(rotate_ca=True), None, None]
    received: list[int] = []
    with client_of(platform) as client:
        extra = {"ignore_eos": True, "return_token_ids": True}
        stream = client.completions.create(
            model="base", prompt=PROMPT, max_tokens=200, temperature=0, stream=True, extra_body=extra
        )
        for chunk in stream:
            received += getattr(chunk.choices[0], "token_ids", None) or [] if chunk.choices else []
            if wishes and len(received) >= 20 * (4 - len(wishes)):
                report = folder.run(wishes.pop(0))
                assert len(token_ids(platform, 5, f"{len(wishes)} {PROMPT}")) == 5
    assert wishes == []
    assert received == expected
    assert report.num_authorities == 1
    assert (folder.path / PeerRole.GATEWAY / "tls.crt").read_bytes() != old
    processes = platform.processes()
    wait_until(lambda: {w["is_live"] for w in platform.status()["workers"]} == {True}, what="every worker alive")
    metrics = httpx.get(f"http://{processes['prefill-0']['metrics_address']}/metrics", timeout=LIMIT_S).text
    assert 'stratos_kv_transfer_bytes_total{direction="sent",transport="tls"}' in metrics
    assert "stratos_tls_certificate_expiry_timestamp_seconds" in metrics


def test_the_first_url_is_the_base_url_and_it_answers(platform: PlatformProcess) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", platform.base_url)
    assert {model.id for model in client_of(platform).models.list()} == {"base"}


def test_keys_are_made_listed_and_revoked(platform: PlatformProcess) -> None:
    key = platform.stratos("keys", "create", "--tenant", "acme", "--name", "for a test").stdout.strip()
    key_id = key.split("-")[1]
    assert any(key_id in line and "active" in line for line in platform.stratos("keys", "list").stdout.splitlines())
    url, headers = f"{platform.base_url}/models", {"Authorization": f"Bearer {key}"}
    assert httpx.get(url, headers=headers, timeout=LIMIT_S).status_code == 200
    platform.stratos("keys", "revoke", key_id)
    wait_until(
        lambda: httpx.get(url, headers=headers, timeout=LIMIT_S).status_code == 401, what="the end of a revoked key"
    )


def test_chat_streams_an_answer(platform: PlatformProcess) -> None:
    done = platform.stratos("chat", "--max-tokens", "8", stdin="hello there\n")
    assert len(done.stdout.strip()) > 2
    assert "error" not in done.stdout


def test_chat_tells_of_an_unknown_model(platform: PlatformProcess) -> None:
    done = platform.stratos("chat", "--model", "no-such-model", stdin="hello\n")
    assert "no-such-model" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_broken_adapter_is_refused_with_a_reason(platform: PlatformProcess, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 8, "lora_alpha": 16}')
    (tmp_path / "adapter_model.safetensors").write_bytes(b"not a safetensors file")
    done = platform.stratos("adapters", "register", "broken", str(tmp_path), check=False)
    assert done.returncode == 1
    assert "not a safetensors file" in done.stderr
    assert "Traceback" not in done.stderr


def killed_stream(platform: PlatformProcess, **more: Any) -> tuple[list[int], str, str]:
    """Tokens and text of a stream, and the worker under it that was killed; "" where none was seen to run it."""
    extra = {"ignore_eos": True, "return_token_ids": True, **more}
    stream = client_of(platform).completions.create(
        model="base", prompt=PROMPT, max_tokens=150, temperature=0, stream=True, extra_body=extra
    )
    received, text, killed = list[int](), "", ""
    for chunk in stream:
        received += getattr(chunk.choices[0], "token_ids", None) or [] if chunk.choices else []
        text += chunk.choices[0].text if chunk.choices else ""
        if len(received) >= 20 and not killed:
            running = [w for w in platform.status()["workers"] if w["role"] == "decode" and w.get("num_running")]
            if running:
                killed = running[0]["worker_id"]
                os.kill(platform.processes()[killed]["pid"], signal.SIGKILL)
    return received, text, killed


@pytest.mark.parametrize("more", [{}, {"structured_outputs": {"json": LONG_ARRAY}}], ids=["plain", "json-schema"])
def test_a_killed_decode_worker_loses_no_token(platform: PlatformProcess, more: dict[str, Any]) -> None:
    expected = token_ids(platform, 150, **more)
    before = platform.processes()
    for _ in rounds("a worker seen under a stream"):  # on a busy machine it may be over before
        received, text, killed = killed_stream(platform, **more)
        if killed:
            break
    assert received == expected
    assert not more or re.fullmatch(r"\[([ \n]*-?[0-9]*[ \n]*,?)*", text), text
    wait_until(lambda: platform.is_back(before[killed]) and is_whole(platform), what="the return of the killed worker")
    assert platform.processes()[killed]["num_restarts"] == before[killed]["num_restarts"] + 1


@pytest.mark.parametrize("name", ["router-0", "lora-registry", "autoscaler", "redis", "gateway-0"])
def test_a_crashed_service_comes_back_where_it_was(platform: PlatformProcess, name: str) -> None:
    before = platform.processes()[name]
    os.kill(before["pid"], signal.SIGKILL)
    wait_until(lambda: platform.is_back(before), what=f"the restart of {name}")
    after = platform.processes()[name]
    assert (after["num_restarts"], after["address"]) == (before["num_restarts"] + 1, before["address"])
    wait_until(lambda: len(live_workers(platform)) == 3, what="a router that sees all")
    assert len(wait_until(lambda: _try_tokens(platform), what="an answer after the crash")) == 5


@pytest.mark.parametrize("signum", [signal.SIGSTOP, signal.SIGKILL])
def test_a_gateway_that_hangs_or_is_gone_takes_no_new_connection(platform: PlatformProcess, signum: int) -> None:
    before = platform.processes()["gateway-0"]
    process = psutil.Process(before["pid"])
    process.send_signal(signum)
    try:
        wait_until(lambda: state_of(process) in (psutil.STATUS_ZOMBIE, psutil.STATUS_STOPPED), what="the fault")
        headers = {"Authorization": f"Bearer {platform.api_key}"}
        for _ in range(10):  # each a connection of its own
            assert httpx.get(f"{platform.base_url}/models", headers=headers, timeout=None).status_code == 200
    finally:
        if signum == signal.SIGSTOP:
            process.send_signal(signal.SIGCONT)
    wait_until(lambda: signum == signal.SIGSTOP or platform.is_back(before), what="both gateways")


def _try_tokens(platform: PlatformProcess) -> list[int]:
    try:
        return token_ids(platform, 5)
    except openai.OpenAIError:
        return []


def test_a_second_platform_takes_the_next_port(platform: PlatformProcess) -> None:
    port = int(platform.base_url.rsplit(":")[-1].split("/")[0])
    other = launch_platform(platform.data_dir, "--engine", "fake", "--port", str(port))
    try:
        other.wait_for("Ctrl-C here")
        assert f"port {port} is busy" in other.output
        assert other.base_url != platform.base_url
        assert other.api_key == platform.api_key
        for running in (platform, other):
            assert client_of(running).models.list().data[0].id == "base"
        children, shm = other.children(), other.shm_dir()
        assert shm.is_dir()
    finally:
        code = other.stop()
    assert code == 0
    assert gone(children)
    assert not shm.exists()
    assert "stopped" in other.output
    assert token_ids(platform, 5)


@pytest.mark.slow
def test_simulated_workers_serve_streams_beside_the_others(platform: PlatformProcess) -> None:
    prompts = [f"{index} {PROMPT}" for index in range(12)]  # a cached one would go where it is cached
    argv = ["stratos.cli", "sim-worker", "--count", "4", "--data-dir", str(platform.data_dir)]
    process = warm_process.begin(*argv, "--run", platform.run_id, "--step-ms", "10", files=warm_process.INHERITED)
    try:
        names = {f"sim-{index}" for index in range(4)}
        begun = wait_until(lambda: workers_of(platform, names), what="simulated workers in every router")
        answers = all_token_ids(platform, 40, prompts)
        wait_until(
            lambda: [
                name
                for name, now in live_workers(platform).items()
                if name in names and now["engine_step"] >= begun[name]["engine_step"] + 40
            ],
            what="the steps of a simulated worker in every router",
        )
        after = live_workers(platform)
        assert len({w["incarnation"] for w in after.values()}) == len(after)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    assert code == 0
    wait_until(lambda: not [w for w in platform.status()["workers"] if w["worker_id"] in names], what="their end")
    assert answers == all_token_ids(platform, 40, prompts), "the others say the same"
    assert platform.processes().keys() >= SERVICES, "none was drained for being one too many"


def workers_of(platform: PlatformProcess, names: set[str]) -> dict[str, dict[str, Any]] | None:
    """All live workers in one look, once those with these names are among them; a busy machine may hide one again."""
    found = live_workers(platform)
    return found if names <= found.keys() else None


MIX: list[dict[str, Any]] = [{}, {"n": 2}, {"frequency_penalty": 1.0}, {"structured_outputs": {"json": LONG_ARRAY}}]


def test_no_token_differs_while_processes_of_each_kind_are_killed_and_stopped(platform: PlatformProcess) -> None:
    """The short form of tests/chaos/test_faults.py."""
    prompts = [f"{index} {PROMPT}" for index in range(len(MIX))]
    with ThreadPoolExecutor(len(MIX)) as pool:
        expected = list(pool.map(lambda prompt, more: token_ids(platform, 120, prompt, **more), prompts, MIX))
    is_over = threading.Event()

    def stream(index: int) -> list[list[int]]:
        answers = []
        while not is_over.is_set():
            answers.append(token_ids(platform, 120, prompts[index], **MIX[index]))
        return answers

    with ThreadPoolExecutor(len(MIX)) as pool:
        streams = [pool.submit(stream, index) for index in range(len(MIX))]
        try:
            for faults in ROUNDS:
                asyncio.run(strike(platform, faults))
                wait_until(lambda: is_whole(platform), what=f"the return after {', '.join(map(str, faults))}")
        finally:
            is_over.set()
    for wanted, answers in zip(expected, streams, strict=True):
        assert answers.result() == [wanted] * len(answers.result())


def test_a_prompt_that_crashes_workers_costs_two_and_is_refused_by_every_gateway(platform: PlatformProcess) -> None:
    def num_deaths() -> int:
        return sum(platform.processes()[name]["num_restarts"] for name in ("decode-0", "decode-1"))

    poison, before = [7] * (CRASH_POSITION + 1), num_deaths()
    others = [f"bystander {index}" for index in range(4)]
    with ThreadPoolExecutor(len(others)) as pool:
        bystanders = [pool.submit(token_ids, platform, 100, prompt) for prompt in others]
        with pytest.raises(openai.InternalServerError) as caught:
            token_ids(platform, 8, poison)
    assert (caught.value.status_code, caught.value.code) == (503, "prompt_refused")
    wait_until(lambda: num_deaths() >= before + 2 and is_whole(platform), what="the workers' return")
    assert num_deaths() == before + 2
    for _ in range(6):  # each a connection of its own, at either gateway
        with pytest.raises(openai.InternalServerError) as caught:
            token_ids(platform, 8, poison)
        assert caught.value.code == "prompt_refused"
    assert num_deaths() == before + 2
    assert [answer.result() for answer in bystanders] == all_token_ids(platform, 100, others)


def live_workers(platform: PlatformProcess) -> dict[str, dict[str, Any]]:
    return {worker["worker_id"]: worker for worker in platform.status()["workers"] if worker["is_live"]}


def test_nothing_connects_to_the_outside(platform: PlatformProcess, guard_dir: Path) -> None:
    assert token_ids(platform, 5)
    loaded = {int(p.name.split("-")[1]) for p in guard_dir.glob("loaded-*")}
    services = {p["pid"] for name, p in platform.processes().items() if name != "redis"}
    assert services <= loaded, "the guard was not active everywhere"
    assert not list(guard_dir.glob("blocked-*")), [p.read_text() for p in guard_dir.glob("blocked-*")]
    for process in [psutil.Process(platform.popen.pid), *platform.children()]:
        for connection in process.net_connections("inet"):
            assert connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1"), (process.name(), connection)


def test_an_operator_drains_a_worker_and_its_stream_goes_on_with_its_kv(platform: PlatformProcess) -> None:
    extra = {"ignore_eos": True, "speculation": "off"}
    with client_of(platform) as client:
        stream = client.completions.create(model="base", prompt=PROMPT, max_tokens=2000, stream=True, extra_body=extra)
        chunks = iter(stream)  # which ends with its iterator
        next(chunks)
        name = wait_until(lambda: [n for n, w in live_workers(platform).items() if w["num_running"]])[0]
        told = outcome_text(asyncio.run(drain_worker(find_platform(platform.data_dir, platform.run_id), name)))
        next(chunks)
    assert f"{name} handed 1 streams back, 1 of them with their KV here; 1 were fetched" in told
    assert "no worker named 'decode-9'; running: " in platform.stratos("drain", "decode-9", check=False).stderr


def test_ctrl_c_leaves_nothing_behind(platform: PlatformProcess) -> None:
    # Last in this file: it ends the shared platform.
    children, run_dir, shm_dir = platform.children(), platform.run_dir(), platform.shm_dir()
    assert len(children) >= len(SERVICES) - 1
    port = int(platform.base_url.rsplit(":")[-1].split("/")[0])
    assert platform.stop(signal.SIGINT) == 0
    assert gone(children)
    assert not [path for path in (run_dir, shm_dir) if path.exists()]
    assert not list((platform.data_dir / "run").iterdir())
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
