"""How faithful a LoRA is on 8-bit weights: the example LoRAs on the bundled model, alongside the same delta in fp32."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.full_size import load_through_program
from modules.adapters.adapter_file import AdapterFile, read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use, add_branches
from modules.adapters.targets import TargetTable
from modules.memory.changes import Budget, SideBranch, changed_weight
from modules.memory.formats.format import FORMATS
from modules.memory.layer import stored_state, unmanage
from modules.memory.storage import StoredLayers
from modules.models.loading.full_precision import FullPrecisionFile
from modules.models.loading.loaded import LoadedModel
from modules.sampling.discrete import scaled_linear_alphas_cumprod
from recipes.loras.example import LORAS, SHIPPED
from recipes.scenes.model import SceneModel
from recipes.scenes.preview import sample_latents

PROMPTS = (
    "sea by day with a red balloon, blueprint",
    "a green balloon on a pink background",
    "a red balloon on a white background",
    "a blue star on a yellow background, blueprint",
    "desert at sunset with a yellow balloon",
    "meadow by day, blueprint",
    "a large purple circle on a green background",
    "snow at night with a balloon, blueprint",
)
NAMES = ("blueprint", "balloon")
STEPS = 12
SEEDS = 24  # of each prompt
CPU = torch.device("cpu")


def applier_of(model: LoadedModel, device: torch.device = CPU) -> AdapterApplier:
    """What puts adapters on UNet and text encoder of a loaded model."""
    return AdapterApplier(target_table(model), FullPrecisionFile(model), device)


def target_table(model: LoadedModel) -> TargetTable:
    """The names of all layers of UNet and text encoder."""
    return TargetTable(
        {part.name: (part.module, part.keymap.to_original) for part in model.components if part.name != "vae"}
    )


@dataclass(frozen=True)
class Fidelity:
    """Latents of images with both LoRAs, apart from those with the delta added by hand in fp32.

    `ratio`: in mode exact, computing in bf16, over the delta by hand, computing in bf16; the geometric mean over the
    images, as rounding turns some of them much further than others, this way or that. `error`: its standard error.
    `in_fp32`: in mode exact, computing in fp32, relative. Faithful means that the first is no more than 1, and the last
    next to nothing.
    """

    ratio: float
    error: float
    in_fp32: float


def fidelity(storage: str) -> Fidelity:
    """Of mode exact on weights in this format."""
    files = {name: read_adapter_file(LORAS / f"{name}.safetensors") for name in NAMES}
    wanted = _latents(_by_hand(storage, torch.float32, files.values()))
    exact = _apart(_latents(_exact(storage, torch.bfloat16, files)), wanted)
    floor = _apart(_latents(_by_hand(storage, torch.bfloat16, files.values())), wanted)
    in_fp32 = _apart(_latents(_exact(storage, torch.float32, files)), wanted)
    ratios = exact - floor
    ratio = float(ratios.mean().exp())
    return Fidelity(ratio, ratio * float(ratios.std()) / math.sqrt(len(ratios)), float(in_fp32.mean().exp()))


def _apart(latents: Tensor, wanted: Tensor) -> Tensor:
    """The logarithm of each image's relative difference."""
    each = (latents - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
    return torch.log(each.clamp_min(1e-12))


def _exact(storage: str, dtype: torch.dtype, files: dict[str, AdapterFile]) -> LoadedModel:
    model = load_through_program(SHIPPED, storage, dtype)
    applier_of(model).apply([Use(name, name) for name in files], files, LoraMode.EXACT)
    return model


def _by_hand(storage: str, dtype: torch.dtype, files: Iterable[AdapterFile]) -> LoadedModel:
    """The decoded weights with the deltas added in fp32, rounded once to `dtype`."""
    model = load_through_program(SHIPPED, storage, dtype)
    table = target_table(model)
    changes: dict[int, tuple[Any, list[Any]]] = {}
    for file in files:
        for name, adapter in file.adapters.items():
            target = table.find(name)
            assert target is not None, name
            changes.setdefault(id(target.layer), (target.layer, []))[1].append(adapter)
    for layer, adapters in changes.values():
        if stored_state(layer) is not None:
            unmanage(layer)
        layer.weight.data = changed_weight(layer.weight.data.float(), adapters).to(dtype)
    return model


def _latents(model: LoadedModel) -> Tensor:
    adapters: dict[str, Any] = {part.name: part.module for part in model.components}
    dtype = model.plan.compute_dtype

    def text(tokens: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=adapters["text_encoder"](input_ids=tokens).last_hidden_state)

    def unet(x: Tensor, t: Tensor, encoder_hidden_states: Tensor) -> SimpleNamespace:
        context = encoder_hidden_states.to(dtype)
        return SimpleNamespace(sample=adapters["unet"](x.to(dtype), t, encoder_hidden_states=context).sample.float())

    schedule = model.architecture.noise_schedule
    scene = SceneModel(
        unet=unet,
        vae=None,
        text=text,
        scale_factor=1.0,
        alphas_cumprod=scaled_linear_alphas_cumprod(schedule.linear_start, schedule.linear_end, schedule.timesteps),
    )
    first = range(0, SEEDS * len(PROMPTS), len(PROMPTS))
    return torch.cat([sample_latents(scene, PROMPTS, range(n, n + len(PROMPTS)), steps=STEPS) for n in first])


def retention(storage: str, dtype: torch.dtype, share: float, factors: bool) -> float:
    """How much of a change's effect arrives at a layer's output in mode exact: its projection on the wanted one.

    The change is `share` of the weights' size; with `factors` it stands alongside the layer as such, else whole.
    """
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(1280, 1280, bias=False).requires_grad_(False)
    layer.weight.copy_(torch.randn(1280, 1280, generator=generator) * 0.03)
    stored, form = StoredLayers(), FORMATS.get(storage)
    stored.put(layer, "weight", form, form.encode(layer.weight), "weight")
    stored.manage(dtype)
    x = torch.randn(4096, 1280, generator=generator, dtype=dtype)
    before = layer(x).float()
    up, down = torch.randn(1280, 16, generator=generator), torch.randn(16, 1280, generator=generator)
    up *= 0.03 * share / 4
    branch = SideBranch(down, up, None, 1.0) if factors else None
    change: Any = SimpleNamespace(
        branch=lambda: branch, weight_delta=lambda _: up @ down, bias_delta=lambda _: None, sum_dtype=None
    )
    add_branches(layer, [change], Budget(1 << 30), CPU)
    wanted = x.float() @ (up @ down).t()
    return float(((layer(x).float() - before) * wanted).sum() / wanted.square().sum())


def lora_of(path: Path) -> dict[str, AdapterFile]:
    """A file as `AdapterApplier` takes it, under the name "x"."""
    return {"x": read_adapter_file(path)}
