"""What is said of a file that is no checkpoint of a known family."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError
from modules.models.families.registry import detect_family
from modules.models.loading.open_clip_layout import open_checkpoint
from tests.models.family_files import write_family

FIRST = "model.diffusion_model.input_blocks.0.0.weight"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("lora_unet_mid_block.lora_down.weight",), "a LoRA"),
        (("emb_params",), "an embedding"),
        (("control_model.input_hint_block.0.weight",), "a ControlNet"),
        (("double_blocks.0.img_attn.qkv.weight",), "Flux"),
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
    with pytest.raises(CheckpointError, match="no text encoders"), open_checkpoint(path) as file:
        detect_family(file)
