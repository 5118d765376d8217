"""`modules.extras`: what an image says of itself."""

from __future__ import annotations

import html
from typing import Any

from PIL import Image

from compat.facades.refusal import refusing
from modules.images.metadata import read_metadata

checkpoint_dict_skip_on_merge = ["cond_stage_model.transformer.text_model.embeddings.position_ids"]


def run_pnginfo(image: Image.Image | None) -> tuple[str, str, str]:
    """ "", the infotext in an image, and all its texts as HTML."""
    if image is None:
        return "", "", ""
    infotext, items = read_metadata(image)
    shown: dict[str, Any] = {**({"parameters": infotext} if infotext else {}), **items}
    parts = [
        f"<div><p><b>{html.escape(str(key))}</b></p><p>{html.escape(str(text))}</p></div>"
        for key, text in shown.items()
    ]
    return "", infotext or "", "".join(parts) or "<div><p>Nothing found in the image.</p></div>"


__getattr__ = refusing(
    "extras",
    {
        "run_modelmerger": "the Checkpoint merger and POST /featherweight/v1/merge merge.",
        "create_config": "the Checkpoint merger writes no configuration files.",
        "to_half": "POST /featherweight/v1/merge saves in the precision that it is asked for.",
        "run_extras": "POST /sdapi/v1/extra-single-image runs the operations of the Extras tab.",
    },
)
