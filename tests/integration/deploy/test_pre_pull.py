"""Published models come to the nodes of their workers before these do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from scripts.chart.rendering import NO_RENDERER, RenderError, has_renderer
from stratos.cli.main import app
from tests.support.kube.chart_objects import Object, kinds
from tests.support.kube.chart_rendering import rendered
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(not has_renderer(), reason=NO_RENDERER)
DIGEST, NEXT = "e" * 64, "f" * 64
GPU_NODES = {"nodeSelector": {"kind": "gpu"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


def pulling(digest: str = DIGEST, cache: Object | None = None, **model: Any) -> dict[str, Object]:
    """Its DaemonSets by name."""
    given = {"hostPath": "/var/models", "prePull": {"digests": [NEXT]}} if cache is None else cache
    source = {"registry": {"name": "org/big", "digest": digest, "cache": given}}
    return kinds(rendered({"models": [{"name": "big", "source": source, **model}]}), "DaemonSet")


def test_each_kind_of_node_pulls_once_what_its_workers_read() -> None:
    (found,) = pulling().values()
    spec = found["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["command"][-2:] == [f"registry:org/big@{digest}" for digest in (DIGEST, NEXT)]
    assert {"name": "model", "hostPath": {"path": "/var/models", "type": "Directory"}} in spec["volumes"]
    assert "nodeSelector" not in spec
    assert pulling(cache={"hostPath": "/var/models"}) == {}
    both = pulling(decode={"scheduling": GPU_NODES})
    specs = [both[f"demo-pull-{role}-big"]["spec"]["template"]["spec"] for role in ("prefill", "decode")]
    assert [spec.get("nodeSelector") for spec in specs] == [None, GPU_NODES["nodeSelector"]]
    assert specs[1]["tolerations"] == GPU_NODES["tolerations"]
    selectors = {str(found["spec"]["selector"]) for found in both.values()}
    assert len(selectors) == 2, "no pod is of two of them"
    with pytest.raises(RenderError, match="which is not set"):
        pulling(cache={"prePull": {"digests": []}})


@pytest.mark.slow
def test_its_command_pulls_says_so_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    store = f"--object-store=file://{tmp_path / 'objects'}"
    publish = ["models", "publish", "org/big", f"--path={ROOT / 'models' / 'draft'}", store, f"--data-dir={tmp_path}"]
    made = CliRunner().invoke(app, publish)
    assert made.exit_code == 0, made.output
    digest = made.stdout.splitlines()[-1].partition("@")[2]
    (found,) = pulling(digest, {"hostPath": "/var/models", "prePull": {"digests": []}}).values()
    command = found["spec"]["template"]["spec"]["containers"][0]["command"]
    env = os.environ | {
        "HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "STRATOS_PULL": f"--cache={tmp_path / 'cache'} {store}",
    }  # fmt: skip
    process = subprocess.Popen(command, env=env, start_new_session=True)
    try:
        wait_until((tmp_path / "pulled").exists, what="the first pull")
        assert [folder.name for folder in (tmp_path / "cache").iterdir() if folder.name.startswith(digest)]
        process.terminate()
        assert process.wait(5) == 0
    finally:
        with suppress(ProcessLookupError):  # it ended, and left nothing
            os.killpg(process.pid, signal.SIGKILL)
    missing = subprocess.run([*command[:4], f"registry:org/big@{NEXT}"], env=env, capture_output=True, check=False)
    assert missing.returncode == 1, "the pod fails, and its status says why"
    assert b"is not published" in missing.stderr + missing.stdout
