"""The text encoders of SD3 files: CLIP-L, and OpenCLIP bigG with transformers' names."""

from modules.models.detection.families import CLIP_G as NEEDS_CLIP_G
from modules.models.detection.families import CLIP_L as NEEDS_CLIP_L
from modules.models.families.family import ExternalTextEncoder
from modules.models.families.sd3.layout import CLIP_G_PREFIX, CLIP_L_PREFIX
from modules.models.names.component import Component, Header
from modules.models.text_encoders.clip import separate_clip_component

CLIP_L_PROJECTION = f"{CLIP_L_PREFIX}.pooled_projection"
"""A projection of CLIP-L's pooled output, which original files never apply (they may hold one all the same, called
`text_projection`): folders of diffusers can have one that does something."""
CLIP_G_PROJECTION = f"{CLIP_G_PREFIX}.text_projection"


CLIP_L = ExternalTextEncoder("clip_l", CLIP_L_PREFIX, need=NEEDS_CLIP_L)
CLIP_G = ExternalTextEncoder("clip_g", CLIP_G_PREFIX, need=NEEDS_CLIP_G)


def clip_l_component(header: Header) -> Component:
    """Raises `CheckpointError` that names the file that is missing."""
    projection = CLIP_L_PROJECTION if f"{CLIP_L_PROJECTION}.weight" in header else ""
    return separate_clip_component("text_encoder", header, CLIP_L_PREFIX, CLIP_L.hint, projection=projection)


def clip_g_component(header: Header) -> Component:
    """Raises `CheckpointError` that names the file that is missing."""
    return separate_clip_component(
        "text_encoder_2", header, CLIP_G_PREFIX, CLIP_G.hint, activation="gelu", projection=CLIP_G_PROJECTION
    )
