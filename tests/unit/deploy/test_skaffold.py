"""skaffold.yaml: its form, and that what it names exists. Skaffold itself is not run."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
import yaml

from scripts.images.build_images import IMAGES
from tests.support.paths import FIXTURES, ROOT

TEMPLATE = re.compile(r"^\{\{\.IMAGE_(?:REPO|TAG)_(?P<image>\w+)\}\}$")
VALUES = yaml.safe_load((ROOT / "deploy/helm/stratosserve/values.yaml").read_text())


def config() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "skaffold.yaml").read_text()))


def schema() -> dict[str, Any]:
    return dict(json.loads((FIXTURES / "skaffold/v4beta13.subset.json").read_text()))


@pytest.fixture(params=["cpu", "gpu"])
def profile(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Configuration that Skaffold runs with the profile: its parts in place of the main ones."""
    (chosen,) = [entry for entry in config()["profiles"] if entry["name"] == request.param]
    return config() | chosen


def test_its_form_is_that_of_its_version() -> None:
    jsonschema.validate(config(), schema())


@pytest.mark.parametrize("wrong", [{"bild": {}}, {"apiVersion": "skaffold/v9"}, {"profiles": [{"patches": []}]}])
def test_another_form_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config() | wrong, schema())


def test_artifacts_are_images_that_make_images_builds(profile: dict[str, Any]) -> None:
    known = {f"stratosserve/{image.name}": image for image in IMAGES}
    for artifact in profile["build"]["artifacts"]:
        image = known[artifact["image"]]
        assert artifact["docker"]["dockerfile"] == image.dockerfile
        assert artifact["docker"].get("buildArgs", {}) == image.build_args
        assert (ROOT / image.dockerfile).is_file()


def test_every_image_is_in_one_profile() -> None:
    parts = [config(), *config()["profiles"]]
    built = {artifact["image"] for part in parts for artifact in part.get("build", {}).get("artifacts", ())}
    assert built == {f"stratosserve/{image.name}" for image in IMAGES}


def test_values_exist_and_take_images_that_are_built(profile: dict[str, Any]) -> None:
    (release,) = profile["deploy"]["helm"]["releases"]
    built = {re.sub(r"\W", "_", artifact["image"]) for artifact in profile["build"]["artifacts"]}
    used = set()
    for path, template in release["setValueTemplates"].items():
        assert isinstance(_value_at(VALUES, path), str), path
        used.add(TEMPLATE.match(template)["image"])
    for path in release.get("setValues", {}):
        assert isinstance(_value_at(VALUES, path), str), path
    assert used == built
    for name in (release["chartPath"], *release.get("valuesFiles", ())):
        assert (ROOT / name).exists()


def _value_at(values: Any, path: str) -> Any:
    for part in re.split(r"\.|(?=\[)", path):
        values = values[int(part[1:-1])] if part.startswith("[") else values[part]
    return values


def test_every_image_of_the_chart_is_set() -> None:
    (release,) = config()["deploy"]["helm"]["releases"]
    images = {path.removesuffix(".repository") for path in release["setValueTemplates"] if path.endswith("repository")}
    assert images == {*_images(VALUES, "")}


def _images(values: Any, path: str) -> list[str]:
    if isinstance(values, list):
        return [found for index, inner in enumerate(values) for found in _images(inner, f"{path}[{index}]")]
    if not isinstance(values, dict):
        return []
    found = [path] if "repository" in values else []
    return found + [name for key, inner in values.items() for name in _images(inner, f"{path}.{key}".lstrip("."))]
