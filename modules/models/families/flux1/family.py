"""FLUX.1 (Black Forest Labs 2024): a transformer with two streams and then one, which predicts a flow.

Two families share it. FLUX.1 dev (with Krea, Fill and Kontext) was distilled from guidance and takes its scale as an
input; FLUX.1 schnell was distilled to few steps, has no such input and half the text tokens.
"""

from functools import partial

from modules.models.detection.families import FLUX1_DEV, FLUX1_SCHNELL, FLUX_CLIP, T5_XXL, VAE_FLUX, FamilySigns
from modules.models.families.family import (
    ExternalTextEncoder,
    ExternalVae,
    Latents,
    LoraBase,
    LoraNaming,
    ModelFamily,
    Texts,
    context_width,
)
from modules.models.families.flux1.conditioning import CLIP, T5, ClipAndT5
from modules.models.families.flux1.denoiser import DENOISER
from modules.models.families.flux1.layout import CLIP_PREFIX, T5_PREFIX, folder
from modules.models.text_encoders.clip import separate_clip_component
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.t5 import t5_component

CLIP_ENCODER = ExternalTextEncoder("clip_l", CLIP_PREFIX, is_part=True, need=FLUX_CLIP)
T5_ENCODER = ExternalTextEncoder("t5xxl", T5_PREFIX, is_part=True, need=T5_XXL)
VAE = ExternalVae(VAE_FLUX, ("ae", "flux"))
LATENTS = Latents("taef1", "vaeapprox-f1", VAE, multiple=2)


def _family(signs: FamilySigns, config_name: str, tokens: int) -> ModelFamily:
    return ModelFamily(
        signs=signs,
        denoiser=DENOISER,
        texts=Texts(
            encoders=(
                lambda header, *_: separate_clip_component(
                    CLIP, header, CLIP_PREFIX, CLIP_ENCODER.hint, CLIP_ENCODER.width(header)
                ),
                lambda header, *_: t5_component(T5, header, T5_PREFIX, T5_ENCODER.hint, context_width(header)),
            ),
            conditioning=partial(ClipAndT5, tokens=tokens),
            tokens=tokens,
            counting=TokenCounting("t5", tokens),
            external=(CLIP_ENCODER, T5_ENCODER),
        ),
        latents=LATENTS,
        folder=folder(signs.label),
        config_name=config_name,
        lora_base=LoraBase("flux1", "flux-1-dev", LoraNaming.KOHYA_FUSED, part="transformer"),
    )


SCHNELL = _family(FLUX1_SCHNELL, "flux1-schnell.yaml", tokens=256)
DEV = _family(FLUX1_DEV, "flux1-dev.yaml", tokens=512)
