"""Whole images of transformer families with LoRAs in the forms that trainers write: each is the image of a checkpoint
whose weights hold the difference, resident, streamed, and on weights that the file has in 8 bits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.adapters.adapter_facts import AdapterError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.dit_files import recipe_tensors
from tests.models.dit_models import TINY
from tests.processing.test_flux_families import PROMPT, made, pixels
from tests.recordings import CONFIGS, cpu_machine

RANK, ALPHA, STRENGTH = 4, 2.0, 0.8
Pair = tuple[Tensor, Tensor]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A family's parts, and the layers of its original layout that a LoRA changes."""

    denoiser: Callable[[], Tensors]
    encoders: tuple[str, ...]
    vae: Callable[[], Tensors]
    layers: tuple[str, ...]


def flux(name: str) -> Case:
    layers = ("double_blocks.0.img_attn.qkv", "double_blocks.1.txt_attn.proj", "single_blocks.0.linear1")
    return Case(TINY[name].denoiser, tuple(TINY[name].encoders), TINY[name].vae, (*layers, "single_blocks.1.linear2"))


CASES = {
    "dev": flux("dev"),
    "klein": flux("klein"),
    "z_image": Case(
        lambda: recipe_tensors("z_image_tiny"),
        ("qwen3_4b_tiny",),
        lambda: recipe_tensors("flux_ae_tiny"),
        ("layers.0.attention.qkv", "layers.1.attention.out", "layers.1.feed_forward.w2"),
    ),
}


def factors(case: Case, tensors: Tensors) -> dict[str, Pair]:
    """Down [rank,in] and up [out,rank] of each layer."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for layer in case.layers:
        out, width = tensors[f"{layer}.weight"].shape
        down = torch.randn(RANK, width, generator=generator) / width**0.5
        found[layer] = down, torch.randn(out, RANK, generator=generator) / 4
    return found


def kohya(pairs: Mapping[str, Pair]) -> Tensors:
    tensors: Tensors = {}
    for layer, (down, up) in pairs.items():
        stem = f"lora_unet_{layer.replace('.', '_')}"
        tensors |= {
            f"{stem}.lora_down.weight": down,
            f"{stem}.lora_up.weight": up,
            f"{stem}.alpha": torch.tensor(ALPHA),
        }
    return tensors


def peft(start: str, adapter: str = "") -> Callable[[Mapping[str, Pair]], Tensors]:
    """PEFT has no alpha in the file: the factors hold it."""

    def write(pairs: Mapping[str, Pair]) -> Tensors:
        tensors = {}
        for layer, (down, up) in pairs.items():
            tensors[f"{start}{layer}.lora_A{adapter}.weight"] = down
            tensors[f"{start}{layer}.lora_B{adapter}.weight"] = up * (ALPHA / RANK)
        return tensors

    return write


def lokr(pairs: Mapping[str, Pair]) -> Tensors:
    """The same difference as a Kronecker product with a matrix of one number."""
    tensors = {}
    for layer, (down, up) in pairs.items():
        tensors[f"diffusion_model.{layer}.lokr_w1"] = torch.full((1, 1), ALPHA / RANK)
        tensors[f"diffusion_model.{layer}.lokr_w2"] = up @ down
    return tensors


FORMS = {
    "kohya": kohya,
    "diffusion_model": peft("diffusion_model."),
    "named": peft("base_model.model.", ".default"),
    "bare": peft(""),
    "lokr": lokr,
}


def merged(tensors: Tensors, pairs: Mapping[str, Pair]) -> Tensors:
    changed = dict(tensors)
    for layer, (down, up) in pairs.items():
        weight = changed[f"{layer}.weight"].float()
        changed[f"{layer}.weight"] = weight + STRENGTH * ALPHA / RANK * (up @ down)
    return changed


def in_8_bits(tensors: Tensors, layers: tuple[str, ...]) -> tuple[Tensors, Tensors]:
    """The tensors with these layers as fp8 and its scale, and with the weights that they mean."""
    coded, plain = dict(tensors), dict(tensors)
    for layer in layers:
        weight = tensors[f"{layer}.weight"].float()
        scale = weight.abs().max() / 448
        coded[f"{layer}.weight"] = (weight / scale).to(torch.float8_e4m3fn)
        coded[f"{layer}.scale_weight"] = scale
        plain[f"{layer}.weight"] = coded[f"{layer}.weight"].float() * scale
    return {**coded, "scaled_fp8": torch.zeros(2, dtype=torch.float8_e4m3fn)}, plain


class Files:
    """A family's files: `plain` and `fp8`, each `_merged` too, and a LoRA for each form."""

    def __init__(self, case: Case, root: Path) -> None:
        self.root = root
        for folder in ("Stable-diffusion", "text_encoder", "VAE", "Lora"):
            (root / folder).mkdir(parents=True)
        for recipe in case.encoders:
            save_file(recipe_tensors(recipe), root / "text_encoder" / f"{recipe}.safetensors")
        save_file(case.vae(), root / "VAE" / "vae.safetensors")
        tensors = case.denoiser()
        pairs = factors(case, tensors)
        coded, decoded = in_8_bits(tensors, case.layers)
        for name, held in (
            ("plain", tensors),
            ("plain_merged", merged(tensors, pairs)),
            ("fp8", coded),
            ("fp8_merged", merged(decoded, pairs)),
        ):
            save_file(held, root / "Stable-diffusion" / f"{name}.safetensors")
        for form, write in FORMS.items():
            save_file(write(pairs), root / "Lora" / f"{form}.safetensors")
        other = {
            key.replace("blocks.", "parts.").replace("layers.", "parts."): value for key, value in kohya(pairs).items()
        }
        save_file(
            {key.replace("blocks_", "parts_").replace("layers_", "parts_"): v for key, v in other.items()},
            root / "Lora" / "other.safetensors",
        )
        catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
        modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
        self.engine = Engine(
            catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=adapters_of(root / "Lora"), modules=modules)
        )

    def image(self, checkpoint: str, lora: str = "", **settings: Any) -> Any:
        tag = f" <lora:{lora}:{STRENGTH}>" if lora else ""
        chosen = Settings().with_changes({"sd_model_checkpoint": checkpoint, **settings})
        return pixels(made(self.engine, self.root, prompt=f"{PROMPT}{tag}", settings=chosen))


@pytest.fixture(scope="module", params=CASES)
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(CASES[request.param], tmp_path_factory.mktemp("root") / "models")


def apart(a: Any, b: Any) -> float:
    return float(np.abs(a - b).mean())


def test_every_form_makes_the_image_of_the_merged_weights(files: Files) -> None:
    wanted, without = files.image("plain_merged"), files.image("plain")
    assert apart(wanted, without) > 2
    for form in FORMS:
        found = files.image("plain", form)
        assert np.abs(found - wanted).max() <= 2 and apart(found, wanted) < 0.02, form


@pytest.mark.parametrize("settings", [{}, {"stream_weights": "Layers"}, {"stream_weights": "Blocks"}], ids=str)
def test_the_effect_is_whole_on_8_bits_resident_and_streamed(files: Files, settings: dict[str, str]) -> None:
    wanted = files.image("fp8_merged")
    found = files.image("fp8", "kohya", **settings)
    assert np.abs(found - wanted).max() <= 2 and apart(found, wanted) < 0.02


def test_a_lora_of_another_family_is_refused(files: Files) -> None:
    with pytest.raises(AdapterError, match=r"was made for another kind of model: .* layers are not in this one"):
        files.image("plain", "other")
