"""The examples for the bundled model: each draws its own images and says how it is trained."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).parents[2] / "extensions-builtin" / "training")
if FOLDER not in sys.path:  # of `lib_training`
    sys.path.append(FOLDER)
