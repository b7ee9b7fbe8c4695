"""Routers of other projects, each installed from PyPI into an environment of its own and started before a backend."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

from stratos.cli.local.ports import any_free_port

START_S = 60.0


@dataclass(frozen=True, slots=True)
class RouterPackage:
    """One package, with the arguments that precede its options; its settings are its defaults."""

    name: str
    words: tuple[str, ...]


PACKAGES = (RouterPackage("sglang-router", ("launch",)), RouterPackage("vllm-router", ()))


@dataclass(frozen=True, slots=True)
class InstalledRouter:
    """A package in its environment."""

    package: RouterPackage
    folder: Path

    @property
    def version(self) -> str:
        """Version that was installed."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        return next(one.version for one in distributions(name=self.package.name, path=[str(site)]))

    @contextmanager
    def running(self, backend_url: str) -> Iterator[tuple[str, int]]:
        """Its URL and process, once it answers."""
        port = any_free_port()
        command = [
            str(self.folder / "bin" / self.package.name), *self.package.words, "--host", "127.0.0.1",
            "--port", str(port), "--prometheus-port", str(any_free_port()), "--worker-urls", backend_url,
        ]  # fmt: skip
        log = (self.folder / "log").open("wb")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        try:
            _wait(process, f"http://127.0.0.1:{port}", self.folder / "log")
            yield f"http://127.0.0.1:{port}/v1", process.pid
        finally:
            process.terminate()
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()


def install(package: RouterPackage, parent: Path) -> InstalledRouter:
    """Make its environment, unless it is there.

    Raises:
        RuntimeError: it cannot be installed here; the text says why.
    """
    folder = parent / package.name
    if not (folder / "bin" / package.name).exists():
        try:
            for command in (
                [sys.executable, "-m", "venv", str(folder)],
                [str(folder / "bin" / "pip"), "install", "-q", package.name],
            ):
                subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise RuntimeError(f"not installed: {str(error.stderr or error).strip()[-300:]}") from error
    if not (folder / "bin" / package.name).exists():
        raise RuntimeError(f"not installed: the package has no program {package.name}")
    return InstalledRouter(package, folder)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a short stream comes through."""
    body = b'{"model":"base","prompt":"one two","max_tokens":1,"stream":true}'
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"content-type": "application/json"})
    end_s = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < end_s:
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:
                if b'data: {"id"' in answer.read():
                    return
        except OSError:
            time.sleep(0.2)
    tail = log.read_text(errors="replace")[-300:]
    raise RuntimeError(f"not started ({'it ended' if process.poll() is not None else 'it does not answer'}): {tail}")
