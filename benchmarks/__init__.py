"""Measurements of the program. Some measure what its extension for training computes."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).parents[1] / "extensions-builtin" / "training")
if FOLDER not in sys.path:  # of `lib_training`
    sys.path.append(FOLDER)
