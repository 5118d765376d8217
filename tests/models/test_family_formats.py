"""Denoisers of transformer families in the 8-bit codes and GGUF blocks that users have on disk: every layer holds what
the codes mean, also where one tensor of the file is several layers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.memory.formats.rotation import rotate
from modules.memory.layer import stored_state
from modules.models.loading.loaded import LoadedModel
from tests.models.dit_files import recipe_tensors
from tests.models.dit_models import TINY
from tests.models.gguf_files import decoded, quantization, write_gguf
from tests.models.test_gguf_files import load

Tensors = dict[str, Tensor]
Code = Callable[[str, Tensor], tuple[Tensors, Tensor]]
DENOISERS: dict[str, Callable[[], Tensors]] = {
    "z_image": lambda: recipe_tensors("z_image_tiny"),
    "flux1": TINY["dev"].denoiser,
    "klein": TINY["klein"].denoiser,
    "chroma": TINY["chroma"].denoiser,
}
PARTS = {
    "z_image": ("qwen3_4b_tiny",),
    "flux1": ("t5xxl_tiny", "clip_l_tiny"),
    "klein": ("qwen3_4b_tiny",),
    "chroma": ("t5xxl_tiny",),
}


def marker(declared: dict[str, object]) -> Tensor:
    return torch.tensor(list(json.dumps(declared).encode()), dtype=torch.uint8)


def scaled_fp8(layer: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().max() / 448
    data = (weight / scale).to(torch.float8_e4m3fn)
    return {f"{layer}.weight": data, f"{layer}.scale_weight": scale}, data.float() * scale


def comfy_int8(layer: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 127
    data = (weight / scale).round().to(torch.int8)
    declared = marker({"format": "int8_tensorwise", "per_row": True})
    tensors = {f"{layer}.weight": data, f"{layer}.weight_scale": scale, f"{layer}.comfy_quant": declared}
    return tensors, data.float() * scale


def comfy_rotated(layer: str, weight: Tensor) -> tuple[Tensors, Tensor]:
    if weight.shape[1] % 256:
        return comfy_int8(layer, weight)
    tensors, meant = comfy_int8(layer, rotate(weight))
    declared = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256, "per_row": True}
    return {**tensors, f"{layer}.comfy_quant": marker(declared)}, rotate(meant)


CODES: dict[str, Code] = {"scaled_fp8": scaled_fp8, "comfy_int8": comfy_int8, "comfy_rotated": comfy_rotated}


def weights(model: LoadedModel) -> dict[str, Tensor]:
    layers = {name: layer for name, layer in model.unet.named_modules() if isinstance(layer, nn.Linear)}
    return {name: layer.weight.detach().float() for name, layer in layers.items()}


@pytest.fixture(scope="module", params=DENOISERS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Tensors]:
    """Name, a folder with text encoders and VAE next to it, and the denoiser's tensors."""
    root = tmp_path_factory.mktemp(request.param)
    for folder in ("Stable-diffusion", "text_encoder", "VAE"):
        (root / folder).mkdir()
    for recipe in PARTS[request.param]:
        save_file(recipe_tensors(recipe), root / "text_encoder" / f"{recipe}.safetensors")
    vae = TINY["klein"].vae() if request.param == "klein" else recipe_tensors("flux_ae_tiny")
    save_file(vae, root / "VAE" / "vae.safetensors")
    return request.param, root / "Stable-diffusion", DENOISERS[request.param]()


@pytest.mark.parametrize("code", [*CODES, "Q8_0", "Q4_0"])
def test_layers_hold_what_the_codes_mean(code: str, family: tuple[str, Path, Tensors]) -> None:
    _, folder, tensors = family
    meant, coded = dict(tensors), dict(tensors)
    for key, tensor in tensors.items():
        if not quantization(key, tensor):
            continue
        if code in CODES:
            own, meant[key] = CODES[code](key.removesuffix(".weight"), tensor.float())
            coded |= own
        else:
            meant[key] = decoded(code, tensor)
    plain = folder / "plain.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in meant.items()}, plain)
    if code in CODES:
        extra = {"scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)} if code == "scaled_fp8" else {}
        path = folder / "coded.safetensors"
        save_file({key: tensor.contiguous() for key, tensor in {**coded, **extra}.items()}, path)
    else:
        path = write_gguf(folder / "coded.gguf", tensors, code, "test")
    model = load(path)
    wanted, found = weights(load(plain)), weights(model)
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        # What converters leave alone is in fp16 in GGUF files, and small next to it.
        torch.testing.assert_close(found[name], weight, rtol=1e-3, atol=2e-6, msg=name)
    kept = [layer for layer in model.unet.modules() if (state := stored_state(layer)) and "weight" in state.formats]
    assert len(kept) > len(wanted) / 3, "the codes are kept, not decoded when they are read"
