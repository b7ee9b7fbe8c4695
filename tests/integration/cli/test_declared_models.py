"""``stratos admin record-model`` and ``retire-models`` as the jobs of an installation run them."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stratos.cli.main import app
from stratos.cli.models.declared import remove_records
from stratos.core.files.model_files import read_model_files
from stratos.core.files.model_texts import text_names
from stratos.store.local_store import LocalStore
from stratos.store.models.model_record import ModelRecord
from stratos.store.records.record import Kind, Record
from stratos.store.records.record_store import RecordStore
from stratos.store.records.writer import RecordWriter
from stratos.store.redis import open_redis
from tests.support.paths import ROOT
from tests.support.reference.published_models import published

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

    def publish(self, prefix: str) -> None:
        """A model's words at a place of the object store."""
        (self.objects / prefix).mkdir(parents=True)
        for name in text_names(DRAFT):
            shutil.copy(DRAFT / name, self.objects / prefix / name)

    def write(self, kind: Kind, record_id: str, value: dict[str, Any]) -> None:
        async def write() -> None:
            async with open_redis(self.redis_url) as redis:
                await RecordWriter(RecordStore(redis), actor="a").change(kind, record_id, "set", lambda old: value)

        asyncio.run(write())

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


def test_a_published_model_is_recorded_by_its_reference_with_facts(installation: Installation) -> None:
    made = asyncio.run(published(LocalStore(installation.objects), DRAFT, "org/draft"))
    installation.record("small", f"--from={made.reference}", f"--digest={made.manifest.digest}")
    (record,) = installation.records()
    assert isinstance(record.value, ModelRecord)
    assert (record.value.digest, record.value.text_digest) == (made.manifest.digest, made.manifest.text_digest)
    assert (record.value.facts, record.value.source) == (made.manifest.facts, "values of a/b")


def test_of_a_digest_no_weights_are_read_and_the_last_revisions_stay(installation: Installation) -> None:
    installation.publish("models/small")  # no weights at all
    before = {"model": "small", "digest": "a" * 64}
    installation.write(Kind.ALIAS, "chat", {"targets": [{"model": "small"}], "before": [before]})
    for digit in "abcdef":
        installation.record("small", "--from=models/small", f"--digest={digit * 64}")
    kept = "acdef"  # one of them may be all that has workers, and the alias may still lead to the first
    assert installation.served() == [("small", digit) for digit in kept]
    installation.record("small", "--from=models/small", f"--digest={'c' * 64}")
    assert installation.served() == [("small", digit) for digit in "adefc"], "going back makes it the newest"


def test_what_people_record_stays_theirs_and_the_newest(installation: Installation) -> None:
    installation.publish("m")
    installation.record("small", "--from=m", f"--digest={'a' * 64}")
    for digit in "bc":
        installation.record("small", "--from=m", f"--digest={digit * 64}", owner="a person")
    before = installation.records()
    for digit in "ab":
        terms = {"size": "8b"} if digit == "b" else {}
        said = installation.record("small", "--from=m", f"--digest={digit * 64}", f"--terms={json.dumps(terms)}")
        assert "was recorded already" in said
    assert installation.records() == before


def test_names_that_are_swapped_converge_in_either_order(installation: Installation) -> None:
    installation.publish("m")
    for names, is_backwards in (("xy", False), ("yx", False), ("xy", True)):
        order = list(zip(names, "ab", strict=True))
        for name, digit in reversed(order) if is_backwards else order:
            installation.record(name, "--from=m", f"--digest={digit * 64}")
        assert sorted(installation.served()) == sorted(order)


def test_a_record_that_changed_since_it_was_read_is_not_removed(redis_url: str, installation: Installation) -> None:
    installation.publish("m")
    installation.record("small", "--from=m", f"--digest={'a' * 64}")
    stale = installation.records()
    installation.record("small", "--from=m", f"--digest={'a' * 64}", '--terms={"size": "8b"}')

    async def remove(records: list[Record]) -> list[Record]:
        async with open_redis(redis_url) as redis:
            return await remove_records(RecordWriter(RecordStore(redis), actor="a"), records)

    assert asyncio.run(remove(stale)) == []
    (record,) = installation.records()
    assert asyncio.run(remove([record])) == [record]


def test_models_that_values_name_no_more_go_and_those_of_people_stay(installation: Installation) -> None:
    installation.publish("m")
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
