"""Write the OpenAPI document that the gateway serves; a test says when it is old."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from scripts.openapi.document import build_document

DOCUMENT = Path(__file__).parents[2] / "services/gateway/stratos_gateway/openapi/openapi.json"


def document_text() -> str:
    """The document as it is stored."""
    return json.dumps(build_document(), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write it."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    DOCUMENT.write_text(document_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
