"""The command: its flags, what it refuses, and what it prints."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratos.cli.chaos.agreement import BREAK_FLAG, OWN_DATA_DIR, check_may_break, check_may_break_cluster
from stratos.cli.commands.shared import RunOption, explained_errors
from stratos.common.errors import BadRequest, NotFound, StratosError

if TYPE_CHECKING:
    from stratos.cli.chaos.faults.fault import Fault, Repertoire
    from stratos.cli.chaos.kube.release import ReleasePlace
    from stratos.cli.chaos.report import ChaosReport, ChaosRow
    from stratos.cli.chaos.target import BreakablePlatform

_OF_KUBE = "With --kube: "


def chaos(
    faults: Annotated[
        list[str] | None,
        typer.Argument(
            help='What to do, e.g. "kill decode-0" or "stop router-0 and reset prefill-0"; default: kill and stop one '
            "process of each kind, and every other fault of a decode worker."
        ),
    ] = None,
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Data directory of the platform.")] = OWN_DATA_DIR,
    run: RunOption = "",
    break_things: Annotated[
        bool, typer.Option(BREAK_FLAG, help=f"Needed for every data directory but {OWN_DATA_DIR}, and for --kube.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="File for the report: JSON, and a page beside it.")] = None,
    lasting: Annotated[float, typer.Option(min=0.1, help="Seconds of a fault that is no moment.")] = 4.0,
    kube: Annotated[bool, typer.Option("--kube", help="Break a Helm release in a cluster.")] = False,
    namespace: Annotated[str, typer.Option(help=f"{_OF_KUBE}of the release.")] = "stratos",
    release: Annotated[str, typer.Option(help=f"{_OF_KUBE}name of the release.")] = "stratos",
    context: Annotated[str, typer.Option(help=f"{_OF_KUBE}of the kubeconfig; default: its current one.")] = "",
    kubeconfig: Annotated[Path | None, typer.Option(help=f"{_OF_KUBE}file; default: as kubectl has it.")] = None,
    url: Annotated[
        str,
        typer.Option(help=f"{_OF_KUBE}of the gateways for clients, with /v1; default: through the API server."),
    ] = "",
    admin_key: Annotated[
        str,
        typer.Option(envvar="STRATOS_ADMIN_KEY", help=f"{_OF_KUBE}of the role admin; default: that of the release."),
    ] = "",
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"{_OF_KUBE}for streams; default: the first one, and its adapters."),
    ] = None,
) -> None:
    """Break processes of a running platform under streams, and show which promises held. Exit code 1 if one did not."""
    from stratos.cli.chaos.kube.release import ReleasePlace
    from stratos.cli.chaos.promises import observed_promises, promise_table
    from stratos.cli.chaos.report import ChaosReport

    with explained_errors():
        if kube:
            place = ReleasePlace(
                namespace=namespace, release=release, url=url, admin_key=admin_key, models=tuple(model or ())
            )
            check_may_break_cluster(place, is_agreed=break_things)
        else:
            check_may_break(data_dir, is_agreed=break_things)
        found = ChaosReport(report)
        opened = _cluster(place, kubeconfig, context) if kube else _platform(data_dir, run, is_agreed=break_things)
        asyncio.run(_run_until_signalled(_run(opened, faults or (), lasting, found)))
    typer.echo("\n" + "\n".join(promise_table(observed_promises(found.rows))))
    raise typer.Exit(0 if all(row.passed for row in found.rows) else 1)


def parse_scenarios(
    texts: Iterable[str], names: Sequence[str], repertoire: Repertoire | None = None
) -> list[tuple[Fault, ...]]:
    """Scenarios as they were asked for, or one of each kind of running process that a promise is about.

    Raises:
        BadRequest: a text is no fault, has one twice, or one that the platform or its gateways do not suffer.
        NotFound: no process has a name.
    """
    from stratos.cli.chaos.faults.fault import LOCAL, STORE, SWEEPING, Fault

    able = repertoire or LOCAL
    asked: list[tuple[Fault, ...]] = [tuple(Fault.parse(part, able) for part in text.split(" and ")) for text in texts]
    for fault in (fault for scenario in asked for fault in scenario):
        if fault.target.startswith("gateway") and fault.kind not in able.of_gateways:
            raise BadRequest(f"{fault}: a gateway can suffer {', '.join(able.of_gateways)}; the others share its port")
        if fault.target not in (*names, STORE) and fault.kind not in SWEEPING:
            raise NotFound(f"there is no process named {fault.target!r}; running: {', '.join(sorted(names))}")
    for scenario in asked:
        if len({(fault.kind, fault.target) for fault in scenario}) < len(scenario):
            raise BadRequest(f"{' and '.join(map(str, scenario))}: one fault comes twice at once")
    return asked or _one_of_each(names, able)


def _one_of_each(names: Sequence[str], able: Repertoire) -> list[tuple[Fault, ...]]:
    from stratos.cli.chaos.faults.fault import Fault
    from stratos.cli.chaos.promises import PROMISES

    tried = [
        name for name in sorted(names, reverse=True) if any(re.fullmatch(p.pattern, f"kill {name}") for p in PROMISES)
    ]
    kinds = {name.rstrip("0123456789"): name for name in tried}
    each: list[tuple[Fault, ...]] = [
        (Fault(kind, name),) for name in sorted(kinds.values()) for kind in ("kill", "stop")
    ]
    return each + [(Fault(kind, name),) for kind in able.of_decode for name in names if name == "decode-0"]


async def _run_until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """SIGTERM and SIGHUP end the work as Ctrl-C does: what stands still goes on first."""
    task, signals = asyncio.ensure_future(work), list[int]()

    def stop(number: int) -> None:
        signals.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await task
    except asyncio.CancelledError:
        if not signals:
            raise
        raise typer.Exit(128 + signals[0]) from None


@asynccontextmanager
async def _platform(data_dir: Path, run_id: str, *, is_agreed: bool) -> AsyncIterator[BreakablePlatform]:
    from stratos.cli.chaos.local_target import ChaosTarget
    from stratos.cli.local.running import find_platform

    yield ChaosTarget(find_platform(data_dir, run_id), data_dir, is_agreed)


@asynccontextmanager
async def _cluster(place: ReleasePlace, kubeconfig: Path | None, context: str) -> AsyncIterator[BreakablePlatform]:
    from stratos.cli.chaos.kube.api import opened_api
    from stratos.cli.chaos.kube.cluster_target import opened_target

    async with opened_api(kubeconfig, context) as api, opened_target(api, place) as target:
        yield target


async def _run(
    opened: AbstractAsyncContextManager[BreakablePlatform], texts: Iterable[str], lasting_s: float, report: ChaosReport
) -> None:
    async with opened as target:
        try:
            await _try_all(target, texts, lasting_s, report)
        finally:
            try:
                await target.remove_tenants()
            except StratosError as error:
                typer.echo(f"tenants of this run stay, {', '.join(target.tenants)}: {error.message}", err=True)


async def _try_all(target: BreakablePlatform, texts: Iterable[str], lasting_s: float, report: ChaosReport) -> None:
    from stratos.cli.chaos.scenario import run_control, run_scenario, undisturbed_streams

    asked = parse_scenarios(texts, await target.names(), target.repertoire)
    scenarios = [tuple(replace(fault, lasting_s=lasting_s) for fault in scenario) for scenario in asked]
    await target.prepare([fault for scenario in scenarios for fault in scenario])
    await target.wait_whole()
    report.about = await target.about()
    typer.echo(f"{len(scenarios)} scenarios against {target.base_url}, {report.about}")
    undisturbed = await undisturbed_streams(target)
    _tell(report, await run_scenario(target, (), undisturbed))
    for kind in sorted({fault.kind for scenario in scenarios for fault in scenario}):
        _tell(report, await run_control(target, next(f for s in scenarios for f in s if f.kind == kind)))
    for index, scenario in enumerate(scenarios):
        if not await target.is_whole():
            typer.echo(f"the platform is not whole, so {len(scenarios) - index} scenarios were not tried")
            return
        _tell(report, await run_scenario(target, scenario, undisturbed))


def _tell(report: ChaosReport, row: ChaosRow) -> None:
    report.add(row)
    counts = f"{row.streams} streams, {row.different} different, {row.failed} failed, gap {row.longest_gap_s:.1f} s"
    typer.echo(f"{'ok    ' if row.passed else 'FAILED'} {row.scenario}: {counts if row.streams else row.effect}")
    for problem in row.problems:
        typer.echo(f"         {problem}")
