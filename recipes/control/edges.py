"""The edges that the control net sees: those of the preprocessor *canny* of the ControlNet extension."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).parents[2] / "extensions-builtin" / "controlnet")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_controlnet.edges import canny  # noqa: E402 - the folder is known only now

__all__ = ["canny"]
