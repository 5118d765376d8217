"""Files of a training that hold the UNet only as its running mean ("EMA", Polyak and Juditsky 1992).

The original programs keep it next to the weights as `model_ema.` and the weight's name without its dots
(`model_ema.diffusion_modelinput_blocks00weight`). Where a file has both, the plain weights are used, as in the
reference UI; a file that was cut down to the mean has nothing else, and the dots are put back.
"""

import re
from collections.abc import Iterable, Mapping

from modules.models.names.ldm_unet import PREFIX

EMA_PREFIX = "model_ema.diffusion_model"
END = r"(weight|bias)"
TRANSFORMER = (
    rf"transformer_blocks(\d+)(attn[12])(to_[qkv]){END}",
    rf"transformer_blocks(\d+)(attn[12])(to_out)(0){END}",
    rf"transformer_blocks(\d+)(ff)(net)(0)(proj){END}",
    rf"transformer_blocks(\d+)(ff)(net)(2){END}",
    rf"transformer_blocks(\d+)(norm[123]){END}",
)
LAYERS = (
    rf"(in_layers|emb_layers|out_layers)(\d){END}",
    rf"(skip_connection|norm|proj_in|proj_out|op|conv){END}",
    *(rule.replace("transformer_blocks", "(transformer_blocks)") for rule in TRANSFORMER),
)
RULES = tuple(
    re.compile(f"^{rule}$")
    for rule in (
        rf"(time_embed)(\d){END}",
        rf"(label_emb)(\d)(\d){END}",
        rf"(out)(\d){END}",
        rf"(input_blocks)(0)(0){END}",
        *(rf"(input_blocks|output_blocks)(\d+)(\d){layer}" for layer in LAYERS),
        *(rf"(middle_block)(\d){layer}" for layer in LAYERS),
    )
)
"""Where the dots stood; the part of a block that a name is in has one digit."""


def restored_names(names: Iterable[str]) -> Mapping[str, str]:
    """The original names of a file's mean weights by theirs; empty where the file has the plain weights too."""
    known = list(names)
    if any(name.startswith(f"{PREFIX}.") for name in known):
        return {}
    found = {}
    for name in known:
        if name.startswith(EMA_PREFIX):
            restored = with_dots(name.removeprefix(EMA_PREFIX))
            if restored is not None:
                found[name] = f"{PREFIX}.{restored}"
    return found


def with_dots(text: str) -> str | None:
    """A UNet's tensor name from itself without dots; None where it is none."""
    match = next((match for rule in RULES if (match := rule.match(text))), None)
    return None if match is None else ".".join(match.groups())
