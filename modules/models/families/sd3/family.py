"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206): a transformer that sees image and text side by
side and predicts a flow.

CLIP-L and OpenCLIP bigG are side by side, filled up to the width of T5, whose tokens follow; without T5 zeros do, as it
was trained. Sizes, the second attention and the normed queries and keys of SD3.5 follow from the tensors.
"""

from modules.models.detection.families import SD3
from modules.models.families.family import (
    ExternalTextEncoder,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Texts,
    is_left_over,
)
from modules.models.families.sd3.conditioning import CLIP, ClipAndT5
from modules.models.families.sd3.denoiser import DENOISER
from modules.models.families.sd3.folder import FOLDER
from modules.models.families.sd3.layout import CLIP_L_PREFIX, T5_PREFIX
from modules.models.families.sd3.t5 import T5, is_unused_of_t5, notes_on_converting, notes_on_merging, t5_components
from modules.models.families.sd3.text import CLIP_G, CLIP_L, clip_g_component, clip_l_component
from modules.prompting.chunks import CHUNK_TOKENS

UNUSED = f"{CLIP_L_PREFIX}.text_projection."
FAMILY = ModelFamily(
    signs=SD3,
    denoiser=DENOISER,
    texts=Texts(
        encoders=(
            lambda header, *_: clip_l_component(header),
            lambda header, *_: clip_g_component(header),
            lambda header, *_: t5_components(header),
        ),
        conditioning=ClipAndT5,
        tokens=2 * CHUNK_TOKENS,
        reads_weights=True,
        reads_breaks=True,
        embedding_components=CLIP.components,
        optional=T5,
        external=(
            CLIP_L,
            CLIP_G,
            ExternalTextEncoder("t5xxl", T5_PREFIX, any_ending=True, is_optional=True),
        ),
    ),
    latents=Latents("taesd3", "vaeapprox-sd3"),
    folder=FOLDER,
    config_name="sd3-inference.yaml",
    lora_base=LoraBase("sd3", "stable-diffusion-3", LoraNaming.KOHYA_FUSED, part="transformer"),
    is_ignored=lambda key: is_left_over(key) or key.startswith(UNUSED) or is_unused_of_t5(key),
    notes_on_converting=notes_on_converting,
    notes_on_merging=notes_on_merging,
)
