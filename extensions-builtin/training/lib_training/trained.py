"""The trained layers: parameters of each, which are an `Adapter` as a file's tensors are, and put on as that is.

What computes in training is what computes when images are made: a LoRA is `Branches` (modules/memory/changes), all
other kinds are the delta that the same `Adapter` gives, multiplied as a second product. The base may be stored in 8
bits or streamed from its file; it is never written, and `detach` gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lib_training.config import AdapterConfig
from lib_training.failures import TrainingError
from modules.adapters.adapter_file import AdapterFile, read_adapter
from modules.adapters.algorithms.adapter import Adapter
from modules.adapters.algorithms.loha import HALVES, Loha
from modules.adapters.algorithms.lokr import Lokr
from modules.adapters.algorithms.lora import Lora
from modules.adapters.applying import managed_whole
from modules.memory.changes import AllBranches, Branches, convolved, with_geometry
from modules.memory.layer import SideBranches, full_weight, restore_class, stored_state
from modules.models.families.family import LoraBase, LoraNaming
from modules.models.loading.loaded import LoadedModel
from modules.models.names.fused import original_name

CONVOLUTIONS = (".resnets.", ".downsamplers.", ".upsamplers.")
MODULATION = (".norm1", ".norm2", ".norm3", ".norm1_context", ".norm.", ".adaLN_modulation.")
"""In transformers of flow models, linear layers that scale and shift by the time; trainers leave them alone."""
TEXT_LAYERS = "encoder.layers."


@dataclass(frozen=True)
class TrainedLayer:
    """One layer's adapter. `parameters` are by the end of their names in files ("lora_up.weight", "hada_w1_a"), `name`
    is what kohya's or LyCORIS' files call the layer, `dotted` what diffusers' do. `whole` is what kohya's files call
    the layer of the original layout that it is part of, from row `row` on; "" where they are the same."""

    name: str
    dotted: str
    layer: nn.Module
    parameters: Mapping[str, nn.Parameter]
    alpha: float
    is_text: bool
    whole: str = ""
    row: int = 0

    def adapter(self) -> Adapter:
        """The change, as a file with these tensors is read; gradients reach the parameters through it."""
        adapter = read_adapter({**self.parameters, "alpha": torch.tensor(self.alpha)})
        assert adapter is not None
        return adapter


# -- which layers, and how they begin ----------------------------------------------------------------------------------


@torch.no_grad()
def make_layers(model: LoadedModel, config: AdapterConfig, seed: int) -> list[TrainedLayer]:
    """New parameters for the layers that `config` chooses, which change nothing yet."""
    generator = torch.Generator().manual_seed(seed)
    make = KINDS[config.type]
    dtype = torch.bfloat16 if config.dtype == "bf16" else torch.float32
    found = []
    for component, path, layer, rank in _chosen(model, config):
        weight = layer._parameters["weight"]
        assert weight is not None
        shape = tuple(weight.shape)
        rank = min(rank, shape[0], torch.Size(shape[1:]).numel())
        tensors = make(layer, shape, rank, config, generator)
        name, dotted, whole, row = _names(model, component, path)
        found.append(
            TrainedLayer(
                name,
                dotted,
                layer,
                {end: nn.Parameter(tensor.to(model.device, dtype)) for end, tensor in tensors.items()},
                float(config.alpha if config.alpha is not None else rank),
                component != "unet",
                whole,
                row,
            )
        )
    if not found:
        raise TrainingError("The ranks choose no layer of this model. Give a rank for the attention blocks.")
    return found


def _chosen(model: LoadedModel, config: AdapterConfig) -> Iterator[tuple[str, str, nn.Module, int]]:
    for path, layer in _weighted(model.unet):
        rank = rank_of(path, lora_base(model), config)
        if rank:
            yield "unet", path, layer, rank
    for component, encoder in model.text_encoders.items():
        for path, layer in _weighted(encoder) if component in model.family.texts.embedding_components else ():
            if config.text_rank and TEXT_LAYERS in path:
                yield component, path, layer, config.text_rank


def lora_base(model: LoadedModel) -> LoraBase:
    """How LoRAs for the model are named; `load_base` refuses models that have none."""
    base = model.family.lora_base
    assert base is not None, "load_base refuses such models"
    return base


def rank_of(path: str, base: LoraBase, config: AdapterConfig) -> int:
    """The rank that is trained for the denoiser's layer of this path; 0 for what trainers leave alone: first and last
    layer, the time embedding, modulation."""
    if any(mark in path for mark in CONVOLUTIONS):
        return config.conv_rank
    in_block = any(mark in path for mark in base.blocks) and not any(mark in path for mark in MODULATION)
    return config.rank if in_block else 0


def _weighted(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for path, layer in module.named_modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            yield path, layer


def _names(model: LoadedModel, component: str, path: str) -> tuple[str, str, str, int]:
    """`name`, `dotted`, `whole` and `row` of a `TrainedLayer`."""
    base = lora_base(model)
    if component != "unet":
        inner = f"text_model.{TEXT_LAYERS}{path.partition(TEXT_LAYERS)[2]}"
        number = component.removeprefix("text_encoder").removeprefix("_")
        prefix = f"lora_te{number or '1'}" if len(model.family.texts.embedding_components) > 1 else "lora_te"
        return f"{prefix}_{inner.replace('.', '_')}", f"{component}.{inner}", "", 0
    dotted = f"{base.part}.{path}"
    if base.naming is LoraNaming.KOHYA:
        return _kohya(path), dotted, "", 0
    if base.naming is LoraNaming.DOTTED:
        return f"diffusion_model.{path}", dotted, "", 0
    keymap = next(part.keymap for part in model.components if part.name == "unet")
    original = keymap.to_original(f"{path}.weight")
    assert original is not None, path
    if base.naming is LoraNaming.DOTTED_ORIGINAL:
        return f"diffusion_model.{_bare(original)}", dotted, "", 0
    if base.naming is LoraNaming.KOHYA_ORIGINAL:
        return _kohya(_bare(original)), dotted, "", 0
    origin = original_name(original)
    row = origin.rows[0][0] if origin.rows else 0
    return f"lora_transformer_{path.replace('.', '_')}", dotted, _kohya(_bare(origin.key)), row


def _bare(original: str) -> str:
    return original.removesuffix(".weight").removeprefix("model.diffusion_model.")


def _kohya(path: str) -> str:
    return f"lora_unet_{path.replace('.', '_')}"


Shape = tuple[int, ...]
Make = Callable[[nn.Module, Shape, int, AdapterConfig, torch.Generator], dict[str, Tensor]]


def _uniform(shape: Shape, inputs: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(shape, generator=generator) * 2 - 1) / sqrt(inputs)


def _lora(
    layer: nn.Module, shape: Shape, rank: int, config: AdapterConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """`down` uniform within 1 / sqrt(inputs), `up` zero (Hu et al., arXiv:2106.09685)."""
    return {
        "lora_down.weight": _uniform((rank, *shape[1:]), torch.Size(shape[1:]).numel(), generator),
        "lora_up.weight": torch.zeros((shape[0], rank, *(1,) * (len(shape) - 2))),
    }


def _dora(
    layer: nn.Module, shape: Shape, rank: int, config: AdapterConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """A LoRA, and the norm of each row of the weight as it is now (Liu et al., arXiv:2402.09353), decoded in fp32."""
    norms = full_weight(layer).flatten(1).norm(dim=1).cpu()
    return {**_lora(layer, shape, rank, config, generator), "dora_scale": norms.reshape(-1, *(1,) * (len(shape) - 1))}


def _loha(
    layer: nn.Module, shape: Shape, rank: int, config: AdapterConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """Two low-rank products, of which the second begins as zero (Yeh et al., arXiv:2309.14859)."""
    inputs = torch.Size(shape[1:]).numel()
    return {
        "hada_w1_a": torch.randn(shape[0], rank, generator=generator) * 0.1,
        "hada_w1_b": torch.randn(rank, inputs, generator=generator),
        "hada_w2_a": torch.zeros(shape[0], rank),
        "hada_w2_b": torch.randn(rank, inputs, generator=generator),
    }


def _lokr(
    layer: nn.Module, shape: Shape, rank: int, config: AdapterConfig, generator: torch.Generator
) -> dict[str, Tensor]:
    """A small whole factor, and a low-rank one that begins as zero; whole where the rank would not be smaller."""
    rows, columns = _factor(shape[0], config.factor), _factor(shape[1], config.factor)
    kernel = torch.Size(shape[2:]).numel()
    tall, wide = shape[0] // rows, shape[1] // columns
    first = {"lokr_w1": _uniform((rows, columns), columns, generator)}
    if rank * 2 >= min(tall, wide * kernel):
        return {**first, "lokr_w2": torch.zeros((tall, wide, *shape[2:]))}
    low = {"lokr_w2_a": _uniform((tall, rank), rank, generator), "lokr_w2_b": torch.zeros(rank, wide * kernel)}
    return {**first, **low}


def _factor(count: int, largest: int) -> int:
    return max(number for number in range(1, min(largest, count) + 1) if count % number == 0)


KINDS: Mapping[str, Make] = {"lora": _lora, "dora": _dora, "loha": _loha, "lokr": _lokr}


@torch.no_grad()
def take_over(layers: Sequence[TrainedLayer], start: AdapterFile, name: str) -> None:
    """Begin with the values of an adapter file. Raises `TrainingError` where its layers, ranks or alphas are others."""
    used: set[str] = set()
    for each in layers:
        found = next((key for key in (each.name, each.dotted, each.whole) if key in start.adapters), "")
        used.add(found)
        known = start.adapters.get(found)
        if found == each.whole and isinstance(known, Lora):
            known = _part_of(known, each, layers)
        tensors = None if known is None else tensors_of(known)
        same = tensors is not None and all(
            end in tensors and tensors[end].shape == parameter.shape for end, parameter in each.parameters.items()
        )
        if tensors is None or known is None or not same:
            raise TrainingError(
                f"{name} cannot be resumed from: {each.name} has another rank or kind there, or is missing. "
                "Choose the type and ranks that it was trained with."
            )
        if known.alpha is not None and known.alpha != each.alpha:
            raise TrainingError(
                f"{name} cannot be resumed from: its alpha is {known.alpha:g}, not {each.alpha:g}. Choose that alpha."
            )
        for end, parameter in each.parameters.items():
            is_scaled = known.alpha is None and end == "lora_up.weight"  # PEFT's names: the scale is in the factor
            parameter.copy_(tensors[end] * (parameter.shape[1] / each.alpha) if is_scaled else tensors[end])
    if len(start.adapters) != len(used):
        raise TrainingError(
            f"{name} cannot be resumed from: it has {len(start.adapters)} layers, and {len(used)} would be trained. "
            "Choose the ranks that it was trained with."
        )


def parts_of(whole: str, layers: Sequence[TrainedLayer]) -> list[TrainedLayer]:
    """The layers that are one in the original layout, in the order of its rows."""
    return sorted((each for each in layers if each.whole == whole), key=lambda each: each.row)


def _part_of(known: Lora, each: TrainedLayer, layers: Sequence[TrainedLayer]) -> Lora | None:
    """Return what `names.joined` made of this layer, out of the factors of the whole one; None where these are
    others."""
    parts = parts_of(each.whole, layers)
    ranks = [len(part.parameters["lora_down.weight"]) for part in parts if "lora_down.weight" in part.parameters]
    heights = [len(part.parameters["lora_up.weight"]) for part in parts if "lora_up.weight" in part.parameters]
    if len(ranks) < len(parts) or known.down.shape[0] != sum(ranks) or known.up.shape[0] != sum(heights):
        return None
    index = parts.index(each)
    columns = slice(sum(ranks[:index]), sum(ranks[: index + 1]))
    rows = slice(sum(heights[:index]), sum(heights[: index + 1]))
    alpha = None if known.alpha is None else known.alpha * ranks[index] / sum(ranks)
    return replace(known, down=known.down[columns], up=known.up[rows, columns], alpha=alpha)


def tensors_of(adapter: Adapter) -> dict[str, Tensor]:
    """The tensors of an adapter that was read, by the ends of their names."""
    found: dict[str, Tensor] = {}
    if isinstance(adapter, Lora):
        found = {"lora_down.weight": adapter.down, "lora_up.weight": adapter.up}
    elif isinstance(adapter, Loha):
        found = dict(zip(HALVES, (adapter.a1, adapter.b1, adapter.a2, adapter.b2), strict=True))
    elif isinstance(adapter, Lokr):
        found = {f"lokr_{end}": tensor for end, tensor in adapter.parts.items()}
    if adapter.dora_scale is not None:
        found["dora_scale"] = adapter.dora_scale
    return found


# -- on the model ------------------------------------------------------------------------------------------------------


@dataclass
class Attached:
    """Trained layers in effect, and the way back."""

    layers: Sequence[TrainedLayer]
    _branches: list[SideBranches] = field(default_factory=list)
    _managed: list[nn.Module] = field(default_factory=list)  # for no other reason

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """While open, the model computes without them."""
        for each in self.layers:
            _state(each.layer).branches = None
        try:
            yield
        finally:
            for each, branches in zip(self.layers, self._branches, strict=True):
                _state(each.layer).branches = branches

    def detach(self) -> None:
        """The model is as it was. Safe to call twice."""
        for each in self.layers if self._branches else ():
            _state(each.layer).branches = None
        for layer in self._managed:
            restore_class(layer)
        self._branches.clear()
        self._managed.clear()


def attach(layers: Sequence[TrainedLayer]) -> Attached:
    """Make them effective, as adapters in mode exact are."""
    attached = Attached(layers)
    for each in layers:
        if stored_state(each.layer) is None:
            attached._managed.append(each.layer)
        state = managed_whole(each.layer)
        branches = branches_of(each)
        state.branches = branches
        attached._branches.append(branches)
    return attached


def branches_of(each: TrainedLayer) -> SideBranches:
    """How one layer computes with its adapter."""
    if set(each.parameters) == {"lora_down.weight", "lora_up.weight"}:
        down, up = each.parameters["lora_down.weight"], each.parameters["lora_up.weight"]
        scale = torch.full((len(down),), each.alpha / len(down), device=down.device)
        return TrainedBranches((Branches(down, up, scale),))
    return DeltaProduct(each)


class TrainedBranches(AllBranches):
    """A LoRA's side branch; a convolution's kernel is not joined with it, because autograd would keep the copy."""

    def linear(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`. Estimates run on the meta device, which knows no autocast."""
        if inputs.is_meta:
            return self.add_to_output(layer, inputs, F.linear(inputs, weight, bias))
        return super().linear(layer, inputs, weight, bias)

    def convolution(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`."""
        return self.add_to_output(layer, inputs, convolved(layer, inputs, weight, bias))

    def merging(self, layer: nn.Module, inputs: Tensor, shape: Sequence[int], has_product: bool) -> None:
        """See `SideBranches`; never, as what is kept of the factors must be the parameters."""


@dataclass
class DeltaProduct:
    """A second product with the adapter's delta (a `SideBranches`). The delta is as large as the weight, so it is not
    kept for the backward pass, but made again."""

    trained: TrainedLayer

    def merging(self, layer: nn.Module, inputs: Tensor, shape: Sequence[int], has_product: bool) -> None:
        """See `SideBranches`; never, as autograd would keep what is made for the call."""

    def tensors(self) -> None:
        """See `SideBranches`; the delta is made again at each use."""

    def linear(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`."""
        return self.add_to_output(layer, inputs, F.linear(inputs, weight, bias))

    def convolution(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `SideBranches`."""
        return self.add_to_output(layer, inputs, convolved(layer, inputs, weight, bias))

    def add_to_output(self, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        """See `SideBranches`."""

        def product(x: Tensor) -> Tensor:
            delta = self._delta(layer).to(x.dtype)
            return F.linear(x, delta) if isinstance(layer, nn.Linear) else with_geometry(layer, x, delta)

        if not torch.is_grad_enabled():
            return output + product(inputs).to(output.dtype)
        added: Tensor = checkpoint(product, inputs, use_reentrant=False, preserve_rng_state=False)
        return output + added.to(output.dtype)

    def _delta(self, layer: nn.Module) -> Tensor:
        adapter = self.trained.adapter()
        weight = full_weight(layer) if adapter.dora_scale is not None else _shell(layer)
        delta = adapter.weight_delta(weight)
        assert delta is not None
        return delta.reshape(weight.shape)


def _shell(layer: nn.Module) -> Tensor:
    """A tensor of the weight's shape, where the layer computes, of whose values nothing depends."""
    state, weight = stored_state(layer), layer._parameters["weight"]
    assert weight is not None
    device = weight.device if state is None or state.device is None else state.device
    return torch.zeros((), device=device).expand(weight.shape)


def _state(layer: nn.Module) -> Any:
    state = stored_state(layer)
    assert state is not None
    return state
