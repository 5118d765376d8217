"""FLUX.1 (Black Forest Labs 2024): a transformer with two streams and then one, which predicts a flow.

Two families share it. FLUX.1 dev (with Krea, Fill and Kontext) was distilled from guidance and takes its scale as an
input; FLUX.1 schnell was distilled to few steps, has no such input and half the text tokens.
"""

from functools import partial

from modules.models.detection.families import FLUX1_DEV, FLUX1_SCHNELL, PREFIX, FamilySigns
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
from modules.models.families.flux1.layout import CLIP_PREFIX, T5_PREFIX, VECTOR, folder
from modules.models.names.component import Header
from modules.models.text_encoders.clip import separate_clip_component
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.t5 import t5_component


def _clip_width(header: Header) -> int | None:
    entry = header.get(f"{PREFIX}{VECTOR}")
    return entry.shape[1] if entry is not None and len(entry.shape) == 2 else None


CLIP_ENCODER = ExternalTextEncoder(
    "clip_l",
    CLIP_PREFIX,
    is_part=True,
    type="clip",
    width=_clip_width,
    title="CLIP-L (768 wide, 0.25 GB in 16 bits)",
)
T5_ENCODER = ExternalTextEncoder(
    "t5xxl",
    T5_PREFIX,
    is_part=True,
    type="t5",
    width=context_width,
    title="T5-XXL (4096 wide, 9.8 GB in 16 bits, 4.9 GB in 8)",
)
VAE = ExternalVae("AutoencoderKL", 16, ("ae", "flux"), "the VAE of FLUX.1 (ae.safetensors, 0.3 GB)")
LATENTS = Latents("taef1", "vaeapprox-f1", VAE, multiple=2)


def _family(signs: FamilySigns, config_name: str, tokens: int) -> ModelFamily:
    return ModelFamily(
        signs=signs,
        denoiser=DENOISER,
        texts=Texts(
            encoders=(
                lambda header, *_: separate_clip_component(
                    CLIP, header, CLIP_PREFIX, CLIP_ENCODER.hint, _clip_width(header)
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
