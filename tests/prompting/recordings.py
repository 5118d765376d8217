"""Recordings of the reference UI for the prompting tests."""

import json
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent.parent / "reference"
MODELS = REFERENCE / "models"
PARTS: dict[str, Any] = json.loads((REFERENCE / "parts.json").read_text(encoding="utf-8"))
