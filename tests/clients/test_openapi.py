"""Requests that schemathesis makes of the OpenAPI document: no 5xx, and no answer that the document does not have."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.worlds.gateway_keys import KEY
from tests.support.worlds.gateway_world import gateway_world

PROGRAM = ROOT / ".venv-clients-3" / "bin" / "schemathesis"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


async def test_no_request_gets_an_answer_that_the_document_does_not_have(tmp_path: Path) -> None:
    """Embeddings are left out: this world has no worker for them."""
    async with gateway_world() as world:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "run", f"http://{world.service.http_address}/openapi.json", "--header",
            f"Authorization: Bearer {KEY}", "--checks", CHECKS, "--max-examples", "20", "--seed", "1",
            "--phases", "examples,coverage,fuzzing", "--continue-on-failure", "--exclude-path", "/v1/embeddings",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path,
        )  # fmt: skip
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert "Tested: 38" in output.decode(), output.decode()
