"""What is said of a file that is no checkpoint of a known family."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError
from modules.models.families.registry import detect_family
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.family_files import write_family
from tests.models.gguf_files import write_gguf

FIRST = "model.diffusion_model.input_blocks.0.0.weight"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("lora_unet_mid_block.lora_down.weight",), "a LoRA"),
        (("emb_params",), "an embedding"),
        (("control_model.input_hint_block.0.weight",), "a ControlNet"),
        (("double_blocks.0.img_attn.qkv.weight",), "FLUX"),
        (("blocks.0.self_attn.q.weight", "patch_embedding.weight", "time_projection.1.weight"), "Wan, a video model"),
        (("txt_in.individual_token_refiner.x", "double_blocks.0.img_attn.qkv.weight"), "HunyuanVideo, a video model"),
        (("patchify_proj.weight", "adaln_single.linear.weight"), "LTX-Video, a video model"),
        (("net.x_embedder.proj.1.weight", "net.t_embedder.1.linear_1.weight"), "Cosmos-Predict2 without"),
        (("layers.0.x", "cap_embedder.0.weight", "noise_refiner.0.attention.qkv.weight"), "Lumina 2"),
        (("x_embedder.proj.weight", "y_embedder.y_proj.fc1.weight", "blocks.0.scale_shift_table"), "PixArt"),
        (("model.layers.0.self_attn.q_proj.weight", "model.embed_tokens.weight"), "a language model"),
        (("encoder.block.0.layer.0.SelfAttention.q.weight", "shared.weight"), "a text encoder, T5"),
        (("decoder.conv_in.weight", "encoder.conv_in.weight"), "a VAE"),
        (("something", "else"), "begin with else, something"),
    ],
)
def test_a_file_of_another_kind_is_named(names: tuple[str, ...], said: str, tmp_path: Path) -> None:
    save_file({name: torch.zeros(2, 2) for name in names}, tmp_path / "x.safetensors")
    with (
        pytest.raises(CheckpointError, match=f"no known model family: .*{said}.*Known: SD 1"),
        open_checkpoint(tmp_path / "x.safetensors") as file,
    ):
        detect_family(file)


@pytest.mark.parametrize(
    ("family", "channels", "said"), [("sd2", 5, "depth model"), ("sd1", 7, "upscaler"), ("sd1", 6, "6 channels")]
)
def test_a_unet_of_other_inputs_is_named(family: str, channels: int, said: str, tmp_path: Path) -> None:
    path = write_family(tmp_path, family)
    tensors = load_file(path)
    tensors[FIRST] = torch.zeros(tensors[FIRST].shape[0], channels, 3, 3)
    save_file(tensors, path)
    with pytest.raises(CheckpointError, match=said), open_checkpoint(path) as file:
        detect_family(file)


def test_sdxl_without_its_text_encoders_is_not_taken_for_sd1(tmp_path: Path) -> None:
    path = write_family(tmp_path, "sdxl")
    save_file({key: value for key, value in load_file(path).items() if "conditioner" not in key}, path)
    with pytest.raises(CheckpointError, match=r"lacks CLIP-L .*models/text_encoder"), open_checkpoint(path) as file:
        detect_family(file)


def test_a_language_model_in_gguf_is_named(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(32, 32) for name in ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight")}
    path = write_gguf(tmp_path / "x.gguf", tensors, "Q8_0", "llama")
    with pytest.raises(CheckpointError, match=r"a language model"), open_checkpoint(path) as file:
        detect_family(file)
