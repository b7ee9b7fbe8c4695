"""The commands of docs/operations.md, section Kubernetes: each is run by the end-to-end tests, or says why not."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.support.document_blocks import section, shell_blocks
from tests.support.paths import ROOT

TEXT = section(ROOT / "docs" / "operations.md", "Kubernetes")


def test_every_block_is_run_by_an_end_to_end_test() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "e2e").glob("test_*.py"))
    assert set(shell_blocks(TEXT)) == set(re.findall(r'run_documented\("([^"]+)"', tests))


def test_blocks_use_no_other_variables_than_the_text_names() -> None:
    for name, code in shell_blocks(TEXT).items():
        used = set(re.findall(r"\$\{?([A-Z]\w+)", code)) - set(re.findall(r"^([A-Z]\w+)=", code, flags=re.MULTILINE))
        assert used <= {
            "NAMESPACE", "TAG", "HELM_ARGS", "BACKUP", "PORT",
            "STRATOS_LORA_REGISTRY_REDIS_URL", "STRATOS_LORA_REGISTRY_OBJECT_STORE__URL",
            "STRATOS_LORA_REGISTRY_OBJECT_STORE__S3_ENDPOINT_URL", "STRATOS_LORA_REGISTRY_RECORDS__PREFIX",
        }, name  # fmt: skip


def test_commands_that_read_the_object_store_are_told_its_server() -> None:
    """The defect: a restore asked Amazon for the bucket of the release's own server."""
    blocks = [code for code in shell_blocks(TEXT).values() if "adopt-store" in code]
    assert len(blocks) == 2
    assert all("--s3-endpoint" in code or "exec deploy/stratos-toolbox" in code for code in blocks)


def test_a_block_without_a_mark_is_refused() -> None:
    assert shell_blocks("<!-- run: a b -->\n```bash\nls\n```\n<!-- not run: no -->\n```bash\nrm\n```\n") == {
        "a b": "ls\n"
    }
    with pytest.raises(ValueError, match="is it run"):
        shell_blocks("```bash\nls\n```\n")


def test_files_that_the_text_names_exist() -> None:
    for name in re.findall(r"`?-f (\S+?\.yaml)", TEXT):
        assert yaml.safe_load((ROOT / name).read_text())
