"""Measurements of the program. Some measure what its extensions for training and for work on checkpoints compute."""

import sys
from pathlib import Path

for name in ("training", "workbench"):  # of `lib_training` and `lib_workbench`
    folder = str(Path(__file__).parents[1] / "extensions-builtin" / name)
    if folder not in sys.path:
        sys.path.append(folder)
