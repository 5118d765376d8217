"""What LoRAs for transformers of the new families call their layers: every form of name finds its layer."""

import pytest

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.models.families.architecture import read_architecture
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES
from modules.models.loading.assembled import with_whole_names
from modules.models.loading.open_clip_layout import OpenClipLayout
from tests.models.dit_files import HeaderOnly, full_header
from tests.recordings import CONFIGS

FILES = {
    "z_image": ("z-image", "te-qwen3-4b", "text_encoders.qwen3_4b.transformer.", "vae-flux1"),
    "anima": ("anima", "te-qwen3-0.6b", "text_encoders.qwen3_06b.transformer.", "vae-qwen-image"),
}


@pytest.fixture(scope="module")
def tables() -> dict[str, TargetTable]:
    return {name: table_of(name) for name in FILES}


def table_of(name: str) -> TargetTable:
    family, (denoiser, text, prefix, vae) = FAMILIES.get(name), FILES[name]
    whole = with_whole_names(HeaderOnly(full_header(denoiser)), [family])
    header = {**whole.entries, **full_header(text, prefix), **full_header(vae, "first_stage_model.")}
    file = OpenClipLayout(HeaderOnly(header), [family])
    architecture = sized_by_header(file.entries, read_architecture(CONFIGS / family.config_name))
    components = family.components(file.entries, architecture, ())
    return TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})


TO_K = "layers.3.attention.to_k"
Z_IMAGE = {
    "lora_unet_layers_3_attention_to_k.lora_down.weight": TO_K,
    "lora_transformer_layers_3_attention_to_k.lora_up.weight": TO_K,
    "transformer.layers.3.attention.to_k.lora_A.weight": TO_K,
    "diffusion_model.layers.3.attention.to_k.lora_B.weight": TO_K,
    "diffusion_model.layers.3.attention.to_k.lora_A.default.weight": TO_K,
    "base_model.model.layers.3.attention.to_k.lora_A.default.weight": TO_K,
    "layers.3.attention.to_k.lora_A.weight": TO_K,
    "diffusion_model.layers.3.attention.out.lora_A.weight": "layers.3.attention.to_out.0",
    "lora_unet_layers_3_attention_out.lora_down.weight": "layers.3.attention.to_out.0",
    "diffusion_model.layers.3.attention.to_out.0.lora_A.weight": "layers.3.attention.to_out.0",
    "lora_unet_layers_3_feed_forward_w1.alpha": "layers.3.feed_forward.w1",
    "lora_unet_cap_embedder_1.lora_down.weight": "cap_embedder.1",
    "diffusion_model.layers.3.adaLN_modulation.0.lora_A.weight": "layers.3.adaLN_modulation.0",
    "lycoris_layers_3_attention_to_k.lokr_w1": TO_K,
    "lora_te_layers_3_self_attn_q_proj.lora_down.weight": "layers.3.self_attn.q_proj",
}
ANIMA = {
    "diffusion_model.blocks.3.self_attn.q_proj.lora_A.weight": "transformer_blocks.3.attn1.to_q",
    "lora_unet_blocks_3_cross_attn_output_proj.lora_up.weight": "transformer_blocks.3.attn2.to_out.0",
    "transformer.transformer_blocks.3.ff.net.2.lora_A.weight": "transformer_blocks.3.ff.net.2",
    "diffusion_model.llm_adapter.blocks.1.cross_attn.q_proj.lora_B.weight": "blocks.1.cross_attn.q_proj",
    "lora_unet_llm_adapter_blocks_1_mlp_0.lora_down.weight": "blocks.1.mlp.0",
}


@pytest.mark.parametrize(
    ("family", "key", "path"),
    [
        *(("z_image", key, path) for key, path in Z_IMAGE.items()),
        *(("anima", key, path) for key, path in ANIMA.items()),
    ],
)
def test_every_form_of_name_finds_its_layer(tables: dict[str, TargetTable], family: str, key: str, path: str) -> None:
    target = tables[family].find(split_key(key)[0])
    assert target is not None and target.path == path


@pytest.mark.parametrize(
    "name",
    [
        "lora_unet_layers_3_attention_qkv",
        "diffusion_model.layers.3.attention.qkv",
        "layers.3.attention.qkv",
        "lycoris_layers_3_attention_qkv",
    ],
)
def test_fused_layers_are_found_part_by_part(tables: dict[str, TargetTable], name: str) -> None:
    parts = tables["z_image"].parts(name)
    assert [part.target.path for part in parts] == [f"layers.3.attention.to_{part}" for part in "qkv"]
    assert [part.rows for part in parts] == [((0, 3840),), ((3840, 7680),), ((7680, 11520),)]
