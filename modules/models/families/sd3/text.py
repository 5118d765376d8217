"""The text encoders of SD3 files: CLIP-L, and OpenCLIP bigG with transformers' names."""

from modules.models.families.sd3.layout import CLIP_G_PREFIX, CLIP_L_PREFIX
from modules.models.names.component import Component, Header
from modules.models.text_encoders.clip import separate_clip_component

CLIP_L_PROJECTION = f"{CLIP_L_PREFIX}.pooled_projection"
"""A projection of CLIP-L's pooled output, which original files never apply (they may hold one all the same, called
`text_projection`): folders of diffusers can have one that does something."""
CLIP_G_PROJECTION = f"{CLIP_G_PREFIX}.text_projection"


def encoder_components(header: Header) -> tuple[Component, ...]:
    """Raises `CheckpointError` that names the file that is missing."""
    projects = f"{CLIP_L_PROJECTION}.weight" in header
    return (
        separate_clip_component(
            "text_encoder",
            header,
            CLIP_L_PREFIX,
            "clip_l.safetensors",
            projection=CLIP_L_PROJECTION if projects else "",
        ),
        separate_clip_component(
            "text_encoder_2",
            header,
            CLIP_G_PREFIX,
            "clip_g.safetensors",
            activation="gelu",
            projection=CLIP_G_PROJECTION,
        ),
    )
