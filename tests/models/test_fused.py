"""OpenCLIP text models and SDXL's size vector against independent computations."""

from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import InvalidValueError
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.ldm.conditioning import SizeFacts, SizeVector, size_vector
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.models.names.fused import LayoutWriter, original_name
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

CPU = torch.device("cpu")
TOKENS = torch.tensor([[49406, 320, 736, 2368, 49407, *[0] * 72]])
HEAD_WIDTH = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("sdxl"), "sdxl")


@pytest.fixture(scope="module")
def model(path: Path) -> LoadedModel:
    info = CheckpointInfo(path, path.name, path.stat().st_size, path.stat().st_mtime_ns)
    plan = PrecisionPlan(device=CPU, compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(info, CONFIGS, lambda family: plan)


def open_clip(tensors: dict[str, Tensor], prefix: str, tokens: Tensor, skip: int) -> tuple[Tensor, Tensor]:
    """The hidden states before the last `skip` blocks, and the projected output at the end token, by the formula."""
    part = {key[len(prefix) :]: value.float() for key, value in tensors.items() if key.startswith(prefix)}
    x = part["token_embedding.weight"][tokens] + part["positional_embedding"]
    layers = len({key.split(".")[2] for key in part if key.startswith("transformer.resblocks.")})
    width = x.shape[-1]
    mask = torch.full((77, 77), -torch.inf).triu(1)
    hidden = x
    for index in range(layers):
        if index == layers - skip:
            hidden = x
        layer = {k.split(f"resblocks.{index}.")[1]: v for k, v in part.items() if f"resblocks.{index}." in k}
        attention = nn.MultiheadAttention(width, width // HEAD_WIDTH, batch_first=True)
        attention.load_state_dict({k.removeprefix("attn."): v for k, v in layer.items() if k.startswith("attn.")})
        normed = F.layer_norm(x, (width,), layer["ln_1.weight"], layer["ln_1.bias"])
        x = x + attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        normed = F.layer_norm(x, (width,), layer["ln_2.weight"], layer["ln_2.bias"])
        inner = F.gelu(F.linear(normed, layer["mlp.c_fc.weight"], layer["mlp.c_fc.bias"]))
        x = x + F.linear(inner, layer["mlp.c_proj.weight"], layer["mlp.c_proj.bias"])
    end = F.layer_norm(x, (width,), part["ln_final.weight"], part["ln_final.bias"])[0, int(tokens[0].argmax())]
    return hidden, end @ part["text_projection"]


@torch.no_grad()
def test_the_second_encoder_computes_what_open_clip_does(path: Path, model: LoadedModel) -> None:
    hidden, pooled = open_clip(load_file(path), "conditioner.embedders.1.model.", TOKENS, skip=1)
    output = model.text_encoders["text_encoder_2"](input_ids=TOKENS, output_hidden_states=True)
    torch.testing.assert_close(output.hidden_states[-2], hidden, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output.text_embeds[0], pooled, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_the_size_vector_is_that_of_diffusers(model: LoadedModel) -> None:
    """diffusers embeds the sizes inside of its UNet ("text_time"); the same weights give the same prediction."""
    config = {**model.unet.config, "class_embed_type": None, "projection_class_embeddings_input_dim": 128 + 6 * 256}
    oracle = UNet2DConditionModel.from_config(config, addition_embed_type="text_time", addition_time_embed_dim=256)
    renamed = {key.replace("class_embedding.", "add_embedding."): v for key, v in model.unet.state_dict().items()}
    oracle.load_state_dict(renamed)
    x, t, context = torch.randn(1, 4, 8, 8), torch.tensor([500.0]), torch.randn(1, 77, 192)
    pooled = torch.randn(1, 128)
    facts = SizeFacts(width_px=832, height_px=1216, crop_left_px=8, crop_top_px=16)
    suffix = size_vector(SizeVector.SIZES, facts, is_negative=False)
    assert suffix is not None
    ours = model.predict(x, t, DenoiserContext(context, torch.cat([pooled, suffix[None]], dim=1)))
    sizes = torch.tensor([[1216.0, 832.0, 16.0, 8.0, 1216.0, 832.0]])
    theirs = oracle(x, t, context, added_cond_kwargs={"text_embeds": pooled, "time_ids": sizes}).sample
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_refiners_vector_ends_with_the_score() -> None:
    facts = SizeFacts(1024, 1024, 0, 0, low_score=2.5, high_score=6.0)
    good, bad = (size_vector(SizeVector.AESTHETIC, facts, is_negative=negative) for negative in (False, True))
    assert good is not None and bad is not None and good.shape == (5 * 256,)
    assert torch.equal(good[:1024], bad[:1024]) and not torch.equal(good[1024:], bad[1024:])
    assert torch.allclose(good[1024], torch.cos(torch.tensor(6.0)))


def test_what_is_read_in_parts_is_written_whole(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.safetensors"
    with open_checkpoint(path) as file:
        declared = {name: (entry.dtype, entry.shape) for name, entry in file.entries.items()}
        with LayoutWriter(copy, declared, 1 << 16) as writer:
            for name in file.entries:
                writer.write(name, file.read(name))
    original, again = load_file(path), load_file(copy)
    assert original.keys() == again.keys()
    assert all(torch.equal(original[key], again[key]) for key in original)


def test_parts_of_one_tensor_cannot_be_stored_differently(tmp_path: Path) -> None:
    stem = "cond_stage_model.model.transformer.resblocks.0.attn"
    shapes = {
        f"{stem}.q_proj.weight": (torch.float16, (4, 4)),
        f"{stem}.k_proj.weight": (torch.float8_e4m3fn, (4, 4)),
    }
    with pytest.raises(InvalidValueError, match=r"attn\.in_proj_weight .* skip patterns"):
        LayoutWriter(tmp_path / "x.safetensors", shapes, 0)


def test_scales_of_fused_weights_are_split_and_joined(tmp_path: Path) -> None:
    stem = "cond_stage_model.model.transformer.resblocks.0.attn"
    scale = torch.arange(6.0)
    save_file({f"{stem}.in_proj.scale_weight": scale}, tmp_path / "s.safetensors")
    with open_checkpoint(tmp_path / "s.safetensors") as file:
        assert torch.equal(file.read(f"{stem}.k_proj.scale_weight"), scale[2:4])
    assert original_name(f"{stem}.k_proj.scale_weight").key == f"{stem}.in_proj.scale_weight"
