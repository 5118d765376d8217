"""Recordings of the reference UI, and how many examples the property tests draw."""

import json
import os
from pathlib import Path
from typing import Any

from hypothesis import settings

REFERENCE = Path(__file__).parent.parent / "reference"
MODELS = REFERENCE / "models"
PARTS: dict[str, Any] = json.loads((REFERENCE / "parts.json").read_text(encoding="utf-8"))

# FEATHERWEIGHT_EXAMPLES=2000 makes the property tests thorough.
thorough = settings(max_examples=int(os.environ.get("FEATHERWEIGHT_EXAMPLES", "200")), deadline=None)
