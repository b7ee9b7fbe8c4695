"""The shape of the repository: file sizes, what every service has, lists that must agree, links that must live."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

MAX_LINES = 400
MAX_MODULES = 14
DOCUMENT_FOLDERS = ("docs", "services", "libs", "models", "examples")
SERVICES = ("gateway", "router", "prefill_worker", "decode_worker", "lora_registry", "autoscaler")
_LINK = re.compile(r"\[[^\]]+\]\((?!https?://|mailto:)(?P<target>[^)#\s]+)(?:#(?P<anchor>[^)\s]+))?\)")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def source_files() -> list[Path]:
    folders = ("libs", "services", "tests", "scripts", "examples")
    return [p for f in folders for p in (ROOT / f).rglob("*.py") if "libs/stratos/api/" not in p.as_posix()]


def test_no_file_outgrows_one_noun() -> None:
    sizes = {str(p.relative_to(ROOT)): len(p.read_text().splitlines()) for p in source_files()}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}


def test_no_folder_of_the_product_has_more_than_fourteen_modules() -> None:
    product = [p for p in source_files() if p.is_relative_to(ROOT / "libs") or p.is_relative_to(ROOT / "services")]
    counts = Counter(str(p.parent.relative_to(ROOT)) for p in product if p.name != "__init__.py")
    assert {folder: count for folder, count in counts.items() if count > MAX_MODULES} == {}


def test_no_drawer_modules() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "misc.py"}
    assert [str(p) for p in source_files() if p.name in drawers] == []


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_its_parts(service: str) -> None:
    folder = ROOT / "services" / service
    for part in ("README.md", f"stratos_{service}/__main__.py", f"stratos_{service}/settings.py"):
        assert (folder / part).is_file(), f"services/{service}/{part} is missing"
    settings = (folder / f"stratos_{service}/settings.py").read_text()
    assert f'env_prefix = "STRATOS_{service.upper()}_"' in settings


def test_every_package_says_what_it_is() -> None:
    folders = {path.parent for path in source_files() if path.is_relative_to(ROOT / "libs")}
    folders |= {path.parent for path in source_files() if path.is_relative_to(ROOT / "services")}
    assert len(folders) > 30
    texts = {folder: folder / "__init__.py" for folder in folders}
    silent = [
        str(f.relative_to(ROOT)) for f, init in texts.items() if not init.is_file() or '"""' not in init.read_text()
    ]
    assert sorted(silent) == []


def test_every_import_name_has_one_root() -> None:
    config = project()
    build, mypy = config["tool"]["hatch"]["build"], config["tool"]["mypy"]
    found = {ROOT / "libs": "stratos"} | {
        ROOT / "services" / name: f"stratos_{name}" for name in (*SERVICES, "offline")
    }
    roots = {root.relative_to(ROOT).as_posix(): name for root, name in found.items()}
    assert all((root / name / "__init__.py").is_file() for root, name in found.items())
    assert set(build["dev-mode-dirs"]) == set(roots)
    assert set(mypy["mypy_path"]) == set(roots)
    assert set(build["targets"]["wheel"]["packages"]) == {f"{root}/{name}" for root, name in roots.items()}
    assert set(config["tool"]["importlinter"]["root_packages"]) == set(roots.values())
    assert set(mypy["packages"]) == {*roots.values(), "scripts"}, "scripts are no import name, and have types"
    assert [p.relative_to(ROOT).as_posix() for p in ROOT.glob("[ls]*/**/py.typed")] == ["libs/stratos/py.typed"]


def test_every_dependency_is_pinned() -> None:
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    groups = [project()["project"]["dependencies"], *project()["project"]["optional-dependencies"].values()]
    wanted = {_name(requirement) for group in groups for requirement in group} - {"stratosserve"}
    assert wanted - pinned == set()


def test_triton_is_the_one_that_the_ordinary_build_of_torch_depends_on() -> None:
    """CPU builds depend on none: what installs with one may not install from the public index."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [line for line in lines if line.startswith(("torch==", "triton=="))]
    assert found == ["torch==2.13.0", "triton==3.7.1"], "look up what the new torch's CUDA build requires"


def test_constraints_are_constraints() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", line)] == []


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def documents() -> list[Path]:
    below = [path for folder in DOCUMENT_FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *below])


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_documents_live() -> None:
    assert len(documents()) >= 10
    dead = []
    for path in documents():
        for match in _LINK.finditer(path.read_text()):
            target = (path.parent / match["target"]).resolve()
            anchor = match["anchor"]
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                dead.append(f"{path.relative_to(ROOT)}: {match[0]}")
    assert dead == []


def test_readme_shows_how_to_start() -> None:
    readme = (ROOT / "README.md").read_text()
    for text in ("make run", "make test", "curl", "docs/architecture.md", "docs/glossary.md", "docs/configuration.md"):
        assert text in readme, f"README.md does not mention {text}"


def test_documented_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for path in documents():
        for target in re.findall(r"`?make (e2e|[a-z][a-z-]+)\b(?=[`\s])", _code(path.read_text())):
            assert target in targets, f"{path.relative_to(ROOT)} speaks of make {target}"


def _code(text: str) -> str:
    blocks = re.findall(r"```(?:bash|sh|console)?\n(.*?)```", text, flags=re.DOTALL)
    return "\n".join([*blocks, *(f"`{span}`" for span in re.findall(r"`([^`\n]+)`", text))])
