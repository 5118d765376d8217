"""Chroma1 (lodestone-rock 2025): the blocks of FLUX.1 with T5 as the only text encoder, guided by a negative prompt; a
small network gives all blocks their modulation."""

from functools import partial

from modules.models.detection.families import CHROMA1, PREFIX, TRANSFORMER
from modules.models.detection.parts import T5_TABLE
from modules.models.families.chroma.denoiser import DENOISER, TABLE
from modules.models.families.chroma.texts import MOST_TOKENS, T5, T5Texts
from modules.models.families.family import LoraBase, LoraNaming, ModelFamily, Texts, context_width
from modules.models.families.flux1.family import LATENTS, T5_ENCODER
from modules.models.families.flux1.layout import T5_PREFIX, t5_names
from modules.models.names.folder_layout import FIRST, FolderLayout
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.t5 import t5_component

FAMILY = ModelFamily(
    signs=CHROMA1,
    denoiser=DENOISER,
    texts=Texts(
        encoders=(lambda header, *_: t5_component(T5, header, T5_PREFIX, T5_ENCODER.hint, context_width(header)),),
        conditioning=T5Texts,
        tokens=128,
        counting=TokenCounting("t5", MOST_TOKENS),
        external=(T5_ENCODER,),
    ),
    latents=LATENTS,
    folder=FolderLayout(
        title="Chroma1",
        names={TRANSFORMER: partial(TABLE.folder_names, prefix=PREFIX), FIRST: t5_names},
        text_signs={FIRST: T5_TABLE},
    ),
    config_name="chroma1.yaml",
    lora_base=LoraBase("chroma", "chroma", LoraNaming.KOHYA_FUSED, part="transformer"),
)
