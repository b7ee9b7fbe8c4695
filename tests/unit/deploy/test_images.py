"""Promises of every image, read from the Dockerfiles: nothing is built here."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from deploy.images.requirements import requirements
from deploy.images.write_sbom import debian_packages, files
from scripts.images.build_images import IMAGES, Build, Image, chosen
from stratos.engine.native.build import chosen_sets
from stratos.engine.native.isa import INSTRUCTION_SETS, TILE_TWIN
from tests.support.kube.dockerfiles import Stage, filled, read_image, read_instructions, read_stages
from tests.support.paths import ROOT

SERVICES = {"gateway": "gateway", "router": "router", "lora-registry": "lora_registry", "autoscaler": "autoscaler"}
LABELS = ("title", "description", "licenses", "version", "revision", "source")
BUILD = Build(builder=("docker", "build"), repository="team", tag="t", version="1", revision="r", source="s")


@pytest.fixture(params=IMAGES, ids=[image.name for image in IMAGES])
def image(request: pytest.FixtureRequest) -> Image:
    return request.param


@pytest.fixture
def final(image: Image) -> Stage:
    return read_image(ROOT / image.dockerfile, image.build_args)


def test_every_dockerfile_makes_an_image() -> None:
    found = {str(path.relative_to(ROOT)) for folder in ("services", "deploy") for path in _dockerfiles(ROOT / folder)}
    assert found - {image.dockerfile for image in IMAGES} == {"deploy/images/sbom.Dockerfile"}


def _dockerfiles(folder: Path) -> list[Path]:
    return [*folder.rglob("Dockerfile"), *folder.rglob("*.Dockerfile")]


def test_it_runs_as_a_user_of_its_own_who_is_not_root(final: Stage) -> None:
    user, group = final.values("USER")[-1].split(":")
    assert int(user) >= 10000
    assert int(group) >= 10000


def test_the_first_process_is_the_program_without_a_shell(final: Stage) -> None:
    (entrypoint,) = final.values("ENTRYPOINT")
    for value in (entrypoint, *final.values("CMD")):
        assert all(isinstance(part, str) for part in json.loads(value))
    assert not {"sh", "bash", "-c"} & set(json.loads(entrypoint))


def test_it_says_what_it_is(image: Image, final: Stage) -> None:
    labels = final.labels()
    assert set(labels) == {f"org.opencontainers.image.{name}" for name in LABELS}
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"] == f"stratosserve-{image.name.removesuffix('-gpu')}"
    for name in ("VERSION", "REVISION", "SOURCE"):
        assert labels[f"org.opencontainers.image.{name.lower()}"] == f"${{{name}}}"
        assert any(value.startswith(f"{name}=") for value in final.values("ARG"))


def test_the_version_of_the_labels_is_that_of_the_project(final: Stage) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"VERSION={version}" in final.values("ARG")


FOR_TRITON = re.compile(r"case \",\$\{EXTRAS\},\" in \*,gpu,\*\).* ;; esac")
"""What the variant for GPUs installs: Triton compiles at run time."""


def test_the_last_stage_holds_no_tool_of_the_build(final: Stage) -> None:
    commands = [FOR_TRITON.sub("", instruction.value) for instruction in final.instructions]
    text = " ".join(commands)
    assert not re.search(r"g\+\+|gcc|build-essential|\bpip\b|install\.sh|\bgit\b|\bcurl\b", text)
    assert not [value for value in final.values("ARG") if value.startswith("PIP_")]


def test_packages_are_the_pinned_ones(image: Image) -> None:
    for stage in read_stages(ROOT / image.dockerfile):
        for command in stage.values("RUN"):
            assert "pip install" not in command or "-c constraints.txt" in command
    install = (ROOT / "deploy/images/install.sh").read_text()
    assert 'PIP_CONSTRAINT="$PWD/constraints.txt"' in install


@pytest.mark.parametrize("name", [*SERVICES, "worker"])
def test_a_service_can_live_with_a_root_that_it_cannot_write(name: str) -> None:
    (image,) = chosen(name)
    stage = read_image(ROOT / image.dockerfile, image.build_args)
    environment = stage.environment()
    assert environment["HOME"] == "/tmp"
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert stage.values("WORKDIR") == ["/tmp"]


@pytest.mark.parametrize(("name", "module"), SERVICES.items())
def test_an_image_starts_its_service(name: str, module: str) -> None:
    (image,) = chosen(name)
    stage = read_image(ROOT / image.dockerfile, image.build_args)
    assert [json.loads(value) for value in stage.values("ENTRYPOINT")] == [["python", "-m", f"stratos_{module}"]]
    checks = [filled(command, image.build_args) for command in stage.values("RUN")]
    assert any(f"import sys, stratos_{module}.__main__; assert 'torch' not in" in command for command in checks)


@pytest.mark.parametrize("name", SERVICES)
def test_services_that_do_not_compute_have_no_torch(name: str) -> None:
    (image,) = chosen(name)
    commands = [command for stage in read_stages(ROOT / image.dockerfile) for command in stage.values("RUN")]
    text = filled("\n".join(commands), image.build_args)
    extras = ",".join(re.findall(r"install\.sh dependencies (\S+)", text)).split(",")
    assert SERVICES[name] in extras
    names = {re.split(r"[\[<>=; ]", requirement)[0] for requirement in requirements(extras, ROOT / "pyproject.toml")}
    assert "grpcio" in names
    assert not {"torch", "triton", "transformers", "numpy"} & names


def test_the_worker_image_computes_on_gpus_with_another_extra() -> None:
    (gpu,) = [image for image in IMAGES if image.name == "worker-gpu"]
    assert not gpu.is_default
    (build,) = [stage for stage in read_stages(ROOT / gpu.dockerfile) if stage.name == "dependencies"]
    assert "EXTRAS=worker" in build.values("ARG")
    assert any("dependencies ${EXTRAS}" in command for command in build.values("RUN"))
    extra = requirements(gpu.build_args["EXTRAS"].split(","), ROOT / "pyproject.toml")
    assert {"torch", "triton"} <= {re.split(r"[<>=; ]", requirement)[0] for requirement in extra}


def test_kernels_of_every_instruction_set_are_compiled_apart_from_the_result() -> None:
    stages = read_stages(ROOT / "deploy/images/worker.Dockerfile")
    (kernels,) = [stage for stage in stages if stage.name == "kernels"]
    assert any("stratos.engine.native.build --shipped" in command for command in kernels.values("RUN"))
    assert chosen_sets(is_shipped=True, builds_all=False) == INSTRUCTION_SETS
    assert {*chosen_sets(is_shipped=False, builds_all=True)} == {*INSTRUCTION_SETS, TILE_TWIN}
    copied = {Path(word).name for word in kernels.values("COPY")[0].split()[:-1]}
    assert copied == {"*.cpp", "*.h", "build.py", "isa.py"}, "a change of anything else compiles them again"
    assert any(value.startswith("--from=kernels") and ".so" in value for value in stages[-1].values("COPY"))
    assert not any("g++" in command for stage in stages if stage is not kernels for command in stage.values("RUN"))


@pytest.mark.parametrize("name", [*SERVICES, "worker"])
def test_a_new_version_of_the_project_leaves_the_large_layer_as_it_is(name: str) -> None:
    (image,) = chosen(name)
    stages = read_stages(ROOT / image.dockerfile)
    below = [stage for stage in stages if stage.name in ("common", "dependencies")]
    assert [stage.source for stage in below] == ["${BASE}", "common"]
    assert not any(re.search(r"\b(libs|services)\b", value) for stage in below for value in stage.values("COPY"))
    final = read_image(ROOT / image.dockerfile, image.build_args)
    words = [instruction.word for instruction in final.instructions]
    assert words.index("COPY") < words.index("ARG"), "a new revision label would make the layers after it again"
    assert final.values("COPY")[0] == "--from=dependencies /opt/stratos /opt/stratos"


def test_what_is_copied_is_sent_to_the_builder(image: Image) -> None:
    sent = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copies = [value for stage in read_stages(ROOT / image.dockerfile) for value in stage.values("COPY")]
    for value in copies:
        for source in [] if value.startswith("--from") else value.split()[:-1]:
            assert list(ROOT.glob(source)), source
            assert any(Path(source).is_relative_to(path) for path in sent), source


def test_a_build_names_image_file_and_version() -> None:
    (gpu,) = chosen("worker-gpu")
    command = BUILD.command(gpu)
    assert command[:6] == ["docker", "build", "-t", "team/worker-gpu:t", "-f", "deploy/images/worker.Dockerfile"]
    assert "EXTRAS=gpu" in command
    assert "REVISION=r" in command
    assert command[-1] == "."


def test_a_list_of_contents_is_made_from_the_built_image() -> None:
    command = BUILD.sbom_command(chosen("redis")[0], Path("/lists"))
    assert "IMAGE=team/redis:t" in command
    assert command[-3:] == ["--output", "type=local,dest=/lists", "."]


def test_what_all_services_share_is_built_once() -> None:
    files = {image.dockerfile for image in IMAGES if image.name in {*SERVICES, "worker", "worker-gpu"}}
    shared = {
        tuple(stage for stage in read_stages(ROOT / name) if stage.name in ("common", "project")) for name in files
    }
    assert len(files) == 2
    assert len(shared) == 1


def test_unknown_images_are_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="no image is called gatway"):
        chosen("gatway")
    assert "worker-gpu" not in {image.name for image in chosen("")}


def test_debian_packages_are_listed_with_their_urls() -> None:
    status = (
        "Package: libstdc++6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1:12.2.0-14\n"
        "Description: library\n and: more\n\nPackage: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    (component,) = debian_packages(status)
    assert component["purl"] == "pkg:deb/debian/libstdc++6@1%3A12.2.0-14?arch=amd64"


def test_files_of_a_bare_image_are_listed_with_their_digests(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"w")
    (tmp_path / "link").symlink_to("model")
    (component,) = files(tmp_path)
    assert component["name"] == "/model/weights"
    assert component["hashes"][0]["content"].startswith("50e721e4")


def test_continued_lines_and_comments_are_one_instruction() -> None:
    first, second = read_instructions("# c\nRUN a \\\n  # inside\n  b\nUSER 1:1\n")
    assert (first.word, first.value) == ("RUN", "a b")
    assert second.value == "1:1"
