"""``stratos admin record-model`` and ``retire-models`` as the jobs of an installation run them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.core.files.model_files import read_model_files
from stratos.core.files.model_texts import text_names
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.redis import open_redis
from tests.support.paths import ROOT

DRAFT = ROOT / "models" / "draft"


class Installation:
    """Stores of an installation, and its jobs."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.redis_url, self.objects = redis_url, folder / "objects"

    def admin(self, *arguments: str) -> str:
        stores = f"--object-store=file://{self.objects}"
        result = CliRunner().invoke(app, ["admin", *arguments, stores], env={"REDIS_URL": self.redis_url})
        assert result.exit_code == 0, result.output
        return result.output

    def record(self, name: str, *arguments: str, owner: str = "values of a/b") -> str:
        return self.admin("record-model", name, f"--owner={owner}", *arguments)

    def records(self) -> list[Record]:
        async def read() -> list[Record]:
            async with open_redis(self.redis_url) as redis:
                return [r for r in await RecordStore(redis).records(Kind.MODEL) if not r.is_deleted]

        return sorted(asyncio.run(read()), key=lambda record: record.version)

    def served(self) -> list[tuple[str, str]]:
        values = [record.value for record in self.records()]
        return [(value.name, value.digest[0]) for value in values if isinstance(value, ModelRecord)]


@pytest.fixture
def installation(redis_url: str, tmp_path: Path) -> Installation:
    found = Installation(redis_url, tmp_path)
    found.objects.mkdir()
    found.admin("init-store")
    return found


def test_a_folder_is_recorded_once_with_its_digest_terms_and_words(installation: Installation) -> None:
    terms = f"--terms={json.dumps({'size': '8b', 'max_input_tokens': 99})}"
    first = installation.record("small", f"--folder={DRAFT}", terms)
    (record,) = installation.records()
    assert installation.record("small", f"--folder={DRAFT}", terms) != first
    assert [found.version for found in installation.records()] == [record.version], "again changes nothing"
    value = record.value
    assert isinstance(value, ModelRecord)
    assert (value.digest, value.size, value.max_input_tokens) == (read_model_files(DRAFT).digest, "8b", 99)
    words = installation.objects / "catalogue" / "models" / value.text_digest
    assert sorted(path.name for path in words.rglob("*") if path.is_file()) == text_names(DRAFT)
    installation.record("small", f"--folder={DRAFT}")
    assert installation.records()[0].version > record.version, "other terms are another version"


def test_of_a_digest_no_weights_are_read_and_the_last_two_revisions_stay(installation: Installation) -> None:
    published = installation.objects / "models" / "small"
    published.mkdir(parents=True)
    for name in text_names(DRAFT):
        shutil.copy(DRAFT / name, published / name)  # no weights at all
    for digit in "abc":
        installation.record("small", "--from=models/small", f"--digest={digit * 64}")
    assert installation.served() == [("small", "b"), ("small", "c")]
    installation.record("small", "--from=models/small", f"--digest={'b' * 64}")
    assert installation.served() == [("small", "c"), ("small", "b")], "going back makes it the newest"


def test_models_that_values_name_no_more_go_and_those_of_people_stay(installation: Installation) -> None:
    (installation.objects / "m").mkdir(parents=True)
    for name in text_names(DRAFT):
        shutil.copy(DRAFT / name, installation.objects / "m" / name)
    for name, digit, owner in (("a", "a", "values of a/b"), ("b", "b", "values of a/b"), ("c", "c", "values of x/y")):
        installation.record(name, "--from=m", f"--digest={digit * 64}", owner=owner)
    assert "removed: b" in installation.admin("retire-models", "--owner=values of a/b", "--keep=a")
    assert installation.served() == [("a", "a"), ("c", "c")]
    assert "removed: nothing" in installation.admin("retire-models", "--owner=values of a/b", "--keep=a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["small", "--from=m", f"--digest={'a' * 64}"], "m"),
        (["small", f"--folder={DRAFT}", "--terms=[]"], "--terms is an object"),
        (["small", f"--folder={DRAFT}", '--terms={"sise": "8b"}'], "sise"),
        (["small"], "give one of --folder and --from"),
        (["other", f"--folder={DRAFT}"], "recorded as 'small' already"),
    ],
)
def test_what_cannot_be_recorded_is_refused(installation: Installation, arguments: list[str], said: str) -> None:
    installation.record("small", f"--folder={DRAFT}")
    stores = f"--object-store=file://{installation.objects}"
    asked = ["admin", "record-model", *arguments, "--owner=o", stores]
    result = CliRunner().invoke(app, asked, env={"REDIS_URL": installation.redis_url})
    assert result.exit_code == 1
    assert said in result.output
    assert len(installation.records()) == 1
