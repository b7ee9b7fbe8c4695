"""Folders of the checkout."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "models"
BASE_MODEL = MODELS / "base"
SHIPPED_ADAPTERS = MODELS / "adapters"
FIXTURES = ROOT / "tests" / "fixtures"
