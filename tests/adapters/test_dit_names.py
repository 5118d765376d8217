"""What LoRAs for transformers of the new families call their layers: every form of name finds its layer."""

import pytest

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.models.families.architecture import read_architecture
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES
from modules.models.names.fused import unfused
from tests.cases import for_each
from tests.models.dit_files import HeaderOnly, full_header, with_whole_names
from tests.recordings import CONFIGS

QWEN = {"te-qwen3-4b": "text_encoders.qwen3_4b.transformer."}
T5 = {"te-t5xxl": "text_encoders.t5xxl.transformer."}
FILES: dict[str, tuple[str, dict[str, str], str]] = {
    "z_image": ("z-image", QWEN, "vae-flux1"),
    "anima": ("anima", {"te-qwen3-0.6b": "text_encoders.qwen3_06b.transformer."}, "vae-qwen-image"),
    "flux1_dev": ("flux1-dev", {**T5, "te-clip-l": "text_encoders.clip_l.transformer."}, "vae-flux1"),
    "flux2_klein": ("flux2-klein-4b", QWEN, "vae-flux2"),
    "chroma1": ("chroma1", T5, "vae-flux1"),
}


@pytest.fixture(scope="module")
def tables() -> dict[str, TargetTable]:
    return {name: table_of(name) for name in FILES}


def table_of(name: str) -> TargetTable:
    family, (denoiser, texts, vae) = FAMILIES.get(name), FILES[name]
    whole = with_whole_names(HeaderOnly(full_header(denoiser)))
    header = {**whole.entries, **full_header(vae, "first_stage_model.")}
    for text, prefix in texts.items():
        header |= full_header(text, prefix)
    file = unfused(HeaderOnly(header), [family])
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
DOUBLE, SINGLE = "transformer_blocks.3", "single_transformer_blocks.5"
FLUX = {
    "lora_unet_double_blocks_3_img_attn_proj.lora_down.weight": f"{DOUBLE}.attn.to_out.0",
    "lora_unet_double_blocks_3_txt_mlp_0.alpha": f"{DOUBLE}.ff_context.net.0.proj",
    "lora_unet_single_blocks_5_linear2.lora_up.weight": f"{SINGLE}.proj_out",
    "transformer.transformer_blocks.3.attn.add_q_proj.lora_A.weight": f"{DOUBLE}.attn.add_q_proj",
    "transformer.single_transformer_blocks.5.proj_mlp.lora_B.weight": f"{SINGLE}.proj_mlp",
    "lora_transformer_transformer_blocks_3_attn_to_q.lora_down.weight": f"{DOUBLE}.attn.to_q",
    "lycoris_transformer_blocks_3_attn_to_out_0.lokr_w1": f"{DOUBLE}.attn.to_out.0",
    "diffusion_model.double_blocks.3.txt_attn.proj.lora_A.weight": f"{DOUBLE}.attn.to_add_out",
    "base_model.model.double_blocks.3.img_mlp.2.lora_B.weight": f"{DOUBLE}.ff.net.2",
    "base_model.model.transformer.double_blocks.3.img_mlp.2.lora_B.weight": f"{DOUBLE}.ff.net.2",
    "double_blocks.3.img_mlp.0.lora_A.default.weight": f"{DOUBLE}.ff.net.0.proj",
    "double_blocks.3.processor.proj_lora1.down.weight": f"{DOUBLE}.attn.to_out.0",
    "diffusion_model.double_blocks.3.processor.proj_lora2.up.weight": f"{DOUBLE}.attn.to_add_out",
    "single_blocks.5.processor.proj_lora.down.weight": f"{SINGLE}.proj_out",
}
OF_DEV = {
    "lora_te1_text_model_encoder_layers_3_mlp_fc1.lora_down.weight": "encoder.layers.3.mlp.fc1",
    "lora_te2_encoder_block_3_layer_0_SelfAttention_q.lora_up.weight": "encoder.block.3.layer.0.SelfAttention.q",
    "lora_te3_encoder_block_3_layer_1_DenseReluDense_wo.lora_up.weight": "encoder.block.3.layer.1.DenseReluDense.wo",
    "lora_unet_guidance_in_in_layer.alpha": "time_text_embed.guidance_embedder.linear_1",
}
KLEIN = {
    "lora_unet_double_blocks_3_img_attn_proj.lora_down.weight": f"{DOUBLE}.attn.to_out.0",
    "lora_unet_double_blocks_3_img_mlp_0.lora_down.weight": f"{DOUBLE}.ff.linear_in",
    "lora_unet_single_blocks_5_linear1.lora_down.weight": f"{SINGLE}.attn.to_qkv_mlp_proj",
    "diffusion_model.single_blocks.5.linear2.lora_A.default.weight": f"{SINGLE}.attn.to_out",
    "transformer.single_transformer_blocks.5.attn.to_qkv_mlp_proj.lora_A.weight": f"{SINGLE}.attn.to_qkv_mlp_proj",
    "base_model.model.double_blocks.3.txt_mlp.2.lora_B.weight": f"{DOUBLE}.ff_context.linear_out",
    "diffusion_model.double_blocks.3.img_mlp.2.lokr_w1": f"{DOUBLE}.ff.linear_out",
}
OF_CHROMA = {"lora_te3_encoder_block_3_layer_0_SelfAttention_q.alpha": "encoder.block.3.layer.0.SelfAttention.q"}


@for_each(
    ("family", "key", "path"),
    [
        *(("flux1_dev", key, path) for key, path in {**FLUX, **OF_DEV}.items()),
        *(("chroma1", key, path) for key, path in {**FLUX, **OF_CHROMA}.items()),
        *(("flux2_klein", key, path) for key, path in KLEIN.items()),
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


@pytest.mark.parametrize(
    ("family", "name", "paths"),
    [
        ("flux1_dev", "lora_unet_double_blocks_3_img_attn_qkv", [f"{DOUBLE}.attn.to_{part}" for part in "qkv"]),
        ("flux1_dev", "double_blocks.3.processor.qkv_lora2", [f"{DOUBLE}.attn.add_{part}_proj" for part in "qkv"]),
        (
            "chroma1",
            "diffusion_model.single_blocks.5.linear1",
            [*(f"{SINGLE}.attn.to_{part}" for part in "qkv"), f"{SINGLE}.proj_mlp"],
        ),
        (
            "flux2_klein",
            "base_model.model.double_blocks.3.txt_attn.qkv",
            [f"{DOUBLE}.attn.add_{part}_proj" for part in "qkv"],
        ),
    ],
)
def test_fused_layers_of_two_streams_are_found(
    tables: dict[str, TargetTable], family: str, name: str, paths: list[str]
) -> None:
    layer, _ = split_key(f"{name}.down.weight" if ".processor." in name else f"{name}.lora_A.weight")
    parts = sorted(tables[family].parts(layer), key=lambda part: part.rows)
    assert [part.target.path for part in parts] == paths
