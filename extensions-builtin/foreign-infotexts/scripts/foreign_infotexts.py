"""Notes of ComfyUI, InvokeAI, Fooocus, Draw Things, NovelAI and Easy Diffusion in images, read as infotexts."""

import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_foreign_infotexts.reading import foreign_infotexts, infotext_of_text  # noqa: E402
from modules.images.other_programs import InfotextReader, register_infotext_reader  # noqa: E402

register_infotext_reader("other programs", InfotextReader(foreign_infotexts, infotext_of_text))
