"""Detectors of faces and eyes, and of what the user's YOLO files find, for the detailer and for other extensions."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from lib_detailer.detectors import FOLDER, Detectors  # noqa: E402
from modules.scripts import script_callbacks  # noqa: E402
from modules.scripts.program import Program  # noqa: E402


def detectors(program: Program) -> Detectors:
    """Return those of the program's own kinds and of the files in its folder."""
    return Detectors(program.find_faces, program.folders(FOLDER)[0])


script_callbacks.on_detectors(detectors)
