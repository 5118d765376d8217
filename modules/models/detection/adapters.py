"""Detection of files of the LoRA family: for the models of which family, after whose names, of which algorithm. Imports
no torch."""

import re
from collections.abc import Mapping

from modules.models.detection.kinds import HasShape, Kind, Row, rows

START = re.compile(
    r"^(?:(?:base_model\.model|model\.diffusion_model|diffusion_model|model|transformer|unet|net|dit)\.|"
    r"(?:lora_unet|lora_transformer|lycoris|oft_unet)_)+"
)
"""Before the names of layers."""
INPUT_SIDE = r"[^\n=]*?(?:lora_A|lora_down|_down|hada_w1_b)[^\n=]*="
"""The factor whose last side is as wide as the input of its layer."""
ALGORITHMS = (
    (("dora_scale", "lora_magnitude_vector"), "a DoRA"),
    (("hada_w1",), "a LoHa"),
    (("lokr_w",), "a LoKr"),
    (("oft_blocks", "oft_diag"), "an OFT"),
    (("on_input",), "an IA3"),
    (("glora", ".a1.weight"), "a GLoRA"),
    (("lora_", ".lora.", ".down.", ".up."), "a LoRA"),
    ((".diff",), "a LoRA (whole differences)"),
)
"""Parts of names, looked for in this order, and what a file with such a name is."""
LAYOUTS = (
    (r"\.processor\.(?:qkv|proj)_lora", "XLabs"),
    (r"^lycoris_", "LyCORIS"),
    (r"^lora_(?:unet|te\d?|transformer)_", "kohya"),
    (r"\.lora_[AB]\.", "PEFT"),
    (r"(?:\.lora|_lora|lora_linear_layer)\.(?:down|up)\.", "diffusers"),
    (r"\.lora_(?:down|up)\.", "original"),
)


def adapter_of(header: Mapping[str, HasShape]) -> Row | None:
    """Return the row of the family, or of the model that is not read here, which an adapter is for; None where its
    layers do not say it."""
    bare = {START.sub("", name).replace(".", "_"): entry for name, entry in header.items()}
    text = "".join(f"{name}={entry.shape[-1] if entry.shape else 0}\n" for name, entry in bare.items())
    fitting = (row for row in rows() if row.group is Kind.LORA)
    return next((row for row in fitting if any(all(_has(text, sign) for sign in signs) for signs in row.signs)), None)


def _has(text: str, sign: str) -> bool:
    name, _, width = sign.replace("#", r"\d+").partition("=")
    return re.search(f"(?m){name}{INPUT_SIDE}{width}$" if width else f"(?m){name}", text) is not None


def algorithm_of(header: Mapping[str, HasShape]) -> str:
    """Return what an adapter is, for people; "" for a file that holds alphas alone."""
    names = [name for name in header if not name.endswith(".alpha")]
    return next((what for marks, what in ALGORITHMS if any(mark in name for name in names for mark in marks)), "")


def adapter_layout(header: Mapping[str, HasShape]) -> str:
    """Return whose names an adapter has."""
    return next((who for pattern, who in LAYOUTS if any(map(re.compile(pattern).search, header))), "")
