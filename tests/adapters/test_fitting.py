"""Factors that cannot be, and changes that do not fit a model: one sentence each, and never a part of a network."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.adapter_file import AdapterFile, read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable


class Layers(nn.Module):
    """A layer of each sort."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 4)
        self.square = nn.Linear(8, 8, bias=False)
        self.conv = nn.Conv2d(36, 40, 3)
        self.first = nn.Conv2d(9, 8, 3)
        self.point = nn.Conv2d(8, 8, 1)


class FullPrecisionSource:
    """The weights as they are."""

    def __init__(self, module: nn.Module) -> None:
        self._weights: dict[str, Tensor] = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def read(self, component: str, key: str) -> Tensor:
        return self._weights[key].clone()

    def is_source(self, component: str, key: str) -> bool:
        return True

    def close(self) -> None:
        pass


def written(tensors: dict[str, Tensor], folder: Path) -> AdapterFile:
    save_file({f"lora_unet_{name}": tensor for name, tensor in tensors.items()}, folder / "a.safetensors")
    return read_adapter_file(folder / "a.safetensors")


def applied(tensors: dict[str, Tensor], folder: Path, mode: LoraMode = LoraMode.EXACT) -> tuple[Layers, AdapterApplier]:
    layers = Layers().requires_grad_(False)
    applier = AdapterApplier(
        TargetTable({"unet": (layers, lambda _: None)}), FullPrecisionSource(layers), torch.device("cpu")
    )
    applier.apply([Use("mine", "hash")], {"hash": written(tensors, folder)}, mode)
    return layers, applier


def lora(layer: str, up: Sequence[int], down: Sequence[int]) -> dict[str, Tensor]:
    return {f"{layer}.lora_up.weight": torch.ones(tuple(up)), f"{layer}.lora_down.weight": torch.ones(tuple(down))}


def loha(layer: str, *shapes: Sequence[int]) -> dict[str, Tensor]:
    names = ("w1_a", "w1_b", "w2_a", "w2_b")
    return {f"{layer}.hada_{name}": torch.ones(tuple(shape)) for name, shape in zip(names, shapes, strict=True)}


@pytest.mark.parametrize("mode", list(LoraMode))
@pytest.mark.parametrize(
    "tensors",
    [
        lora("linear", (4, 2), (3, 8)),
        lora("linear", (5, 2), (2, 8)),
        lora("linear", (8, 2), (2, 4)),
        lora("conv", (40, 2, 1, 1), (2, 37, 3, 3)),
        lora("conv", (40, 2, 1, 1), (2, 35, 3, 3)),
        lora("conv", (40, 2, 1, 1), (2, 36, 1, 1)),
        lora("conv", (40, 2), (2, 36)),
        lora("conv", (40, 2, 3, 3), (2, 36, 3, 3)),
        lora("first", (8, 2, 1, 1), (2, 10, 3, 3)),
        lora("linear", (4, 2), (2, 8)) | {"linear.lora_mid.weight": torch.ones(2, 2, 3, 3)},
        lora("linear", (4, 2), (2, 8)) | {"linear.dora_scale": torch.ones(1)},
        lora("linear", (4, 2), (2, 8)) | {"linear.diff_b": torch.ones(5)},
        loha("linear", (4, 2), (2, 8), (4, 2), (3, 8)),
        {"linear.lokr_w1": torch.ones(2, 2), "linear.lokr_w2": torch.ones(2, 2)},
        {"linear.diff": torch.ones(8, 4)},
        {"linear.diff": torch.ones(4, 8), "linear.diff_b": torch.ones(3)},
        {"square.diff_b": torch.ones(3)},
        {"linear.weight": torch.ones(1), "linear.on_input": torch.tensor([False])},
        {"linear.weight": torch.ones(5), "linear.on_input": torch.tensor([True])},
        {"square.oft_blocks": torch.zeros(2, 2, 2)},
        {"square.oft_blocks": torch.zeros(2, 4, 2)},
        {"square.oft_blocks": torch.zeros(2, 4, 4), "square.rescale": torch.ones(1)},
        {f"square.{name}.weight": torch.ones(8, 8) for name in ("a1", "a2", "b1")}
        | {"square.b2.weight": torch.ones(8, 3)},
    ],
    ids=lambda tensors: ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()),
)
def test_what_does_not_fit_is_refused_in_a_sentence(tensors: dict[str, Tensor], mode: LoraMode, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"mine: its change to \w+ does not fit the layer's \[.*choose a checkpoint"):
        applied(tensors, tmp_path, mode)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (lora("linear", (4, 2), (2, 8)) | {"linear.alpha": torch.ones(2)}, "alpha holds 2 numbers"),
        (lora("linear", (4,), (2, 8)), "lora_up.weight has 1 dimensions"),
        (lora("linear", (4, 2), (8,)), "lora_down.weight has 1 dimensions"),
        (lora("linear", (4, 2), ()), "lora_down.weight has 0 dimensions"),
        (loha("linear", (4, 2), (2,), (4, 2), (2, 8)), "hada_w1_b has 1 dimensions"),
        ({"linear.weight": torch.ones(4), "linear.on_input": torch.ones(2)}, "on_input holds 2 numbers"),
        ({"linear.weight": torch.tensor(1.0), "linear.on_input": torch.ones(1)}, "weight has 0 dimensions"),
        ({"linear.lokr_w1": torch.tensor(1.0), "linear.lokr_w2": torch.ones(4, 8)}, "lokr_w1 has 0 dimensions"),
        ({"linear.oft_blocks": torch.ones(4, 4)}, "oft_blocks has 2 dimensions"),
        ({"linear.diff": torch.ones(4, 8, dtype=torch.int32)}, "diff holds int32 numbers"),
        ({"linear.diff_b": torch.tensor(1.0)}, "diff_b has 0 dimensions"),
        (
            lora("linear", (4, 2), (2, 8))
            | {"linear.bias_indices": torch.tensor([[9], [0]])}
            | {"linear.bias_values": torch.ones(1), "linear.bias_size": torch.tensor([4, 8])},
            "do not fit together",
        ),
    ],
)
def test_factors_that_cannot_be_are_refused_when_read(tensors: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=rf"a\.safetensors: lora_unet_linear: .*{said}.*damaged"):
        written(tensors, tmp_path)


def test_tensors_beside_a_known_kind_are_named_and_the_file_refused(tmp_path: Path) -> None:
    tensors = lora("linear", (4, 2), (2, 8)) | {"linear.lora_gate": torch.ones(2), "linear.extra": torch.ones(2)}
    with pytest.raises(AdapterError, match="lora_unet_linear: extra, lora_gate beside it means nothing here"):
        written(tensors, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_factors_in_eight_bits_are_widened(dtype: torch.dtype, tmp_path: Path) -> None:
    up, down = torch.randn(4, 2).to(dtype), torch.randn(2, 8).to(dtype)
    before = Layers().linear.weight
    layers, _ = applied({"linear.lora_up.weight": up, "linear.lora_down.weight": down}, tmp_path, LoraMode.MERGE)
    assert torch.allclose(layers.linear.weight, before + up.float() @ down.float(), atol=1e-6)
    broken = {"linear.diff": torch.full((4, 8), float("nan")).to(dtype)}
    with pytest.raises(AdapterError, match="NaN"):
        written(broken, tmp_path)


def test_a_matrix_may_be_a_convolution_of_one_pixel_and_the_reverse(tmp_path: Path) -> None:
    before = Layers()
    layers, _ = applied(
        lora("linear", (4, 2, 1, 1), (2, 8, 1, 1)) | lora("point", (8, 2), (2, 8)), tmp_path, LoraMode.MERGE
    )
    assert torch.allclose(layers.linear.weight, before.linear.weight + 2)
    assert torch.allclose(layers.point.weight, before.point.weight + 2)


@pytest.mark.parametrize("mode", [LoraMode.EXACT, LoraMode.MERGE])
def test_more_image_channels_than_the_adapter_knows_get_nothing(mode: LoraMode, tmp_path: Path) -> None:
    x = torch.randn(1, 9, 4, 4, generator=torch.Generator().manual_seed(1))
    before = Layers().first(x)
    layers, _ = applied(lora("first", (8, 2, 1, 1), (2, 4, 3, 3)), tmp_path, mode)
    added = nn.functional.conv2d(x[:, :4], torch.full((8, 4, 3, 3), 2.0))
    assert torch.allclose(layers.first(x), before + added, atol=1e-4)


def test_what_lycoris_added_sparsely_is_part_of_the_delta(tmp_path: Path) -> None:
    tensors = lora("linear", (4, 2), (2, 8)) | {
        "linear.alpha": torch.tensor(1.0),
        "linear.bias_indices": torch.tensor([[3], [7]]),
        "linear.bias_values": torch.tensor([5.0]),
        "linear.bias_size": torch.tensor([4, 8]),
    }
    expected = torch.full((4, 8), 2.0)
    expected[3, 7] += 5
    layers, _ = applied(tensors, tmp_path, LoraMode.MERGE)
    assert torch.allclose(layers.linear.weight, Layers().linear.weight + expected / 2, atol=1e-6)


@pytest.mark.parametrize("mode", list(LoraMode))
def test_a_bias_for_a_layer_without_one_is_added_in_every_mode(mode: LoraMode, tmp_path: Path) -> None:
    bias, x = torch.arange(8.0), torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    before = Layers().square(x)
    layers, applier = applied({"square.diff_b": bias, "square.diff": torch.zeros(8, 8)}, tmp_path, mode)
    assert torch.allclose(layers.square(x), before + bias, atol=1e-5)
    assert applier.retention is not None
    assert applier.retention.retention == pytest.approx(1)
    assert dict(applier.retention.adapters) == {"mine": pytest.approx(1)}
    if mode is not LoraMode.EXACT:
        assert ("square.bias", 1.0) in applier.retention.worst
    applier.remove()
    assert torch.equal(layers.square(x), before)


def test_a_bias_beside_a_lora_is_added_too(tmp_path: Path) -> None:
    tensors = lora("linear", (4, 2), (2, 8)) | {"linear.diff_b": torch.arange(4.0)}
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    images = [applied(tensors, tmp_path, mode)[0].linear(x) for mode in (LoraMode.EXACT, LoraMode.MERGE)]
    assert torch.allclose(images[0], images[1], atol=1e-5)
    assert torch.allclose(images[0], Layers().linear(x) + 2 * x.sum(1, keepdim=True) + torch.arange(4.0), atol=1e-5)


@pytest.mark.parametrize("end", ["lora_magnitude_vector", "lora_magnitude_vector.weight"])
@pytest.mark.parametrize("layer", ["linear", "conv"])
def test_the_magnitudes_of_peft_are_those_of_rows(layer: str, end: str, tmp_path: Path) -> None:
    """DoRA as PEFT defines it: each row of weight + scale * B @ A is brought to its magnitude (arXiv:2402.09353)."""
    weight = dict(Layers().named_parameters())[f"{layer}.weight"].detach().double()
    generator = torch.Generator().manual_seed(1)
    down = torch.randn(2, *weight.shape[1:], generator=generator)
    up = torch.randn(len(weight), 2, *(1,) * (weight.ndim - 2), generator=generator)
    magnitude = torch.rand(len(weight), generator=generator) + 0.5
    shape = (-1,) if weight.ndim == 2 else (1, -1, 1, 1)
    tensors = {"lora_A.weight": down, "lora_B.weight": up, end: magnitude.reshape(shape)}
    save_file({f"unet.{layer}.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "a.safetensors")
    layers = Layers().requires_grad_(False)
    applier = AdapterApplier(
        TargetTable({"unet": (layers, lambda _: None)}), FullPrecisionSource(layers), torch.device("cpu")
    )
    applier.apply([Use("mine", "h")], {"h": read_adapter_file(tmp_path / "a.safetensors")}, LoraMode.MERGE)
    rows = weight.flatten(1) + up.double().flatten(1) @ down.double().flatten(1)
    rows *= magnitude.double()[:, None] / rows.pow(2).sum(1, keepdim=True).sqrt()
    merged = dict(layers.named_parameters())[f"{layer}.weight"]
    assert torch.allclose(merged.double().flatten(1), rows, atol=1e-6)


def many(count: int, *extra: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name in [f"layers_{number}" for number in range(count)] + list(extra):
        tensors |= lora(name, (4, 2), (2, 4))
    return tensors


def applied_to_many(tensors: dict[str, Tensor], folder: Path) -> list[str]:
    adapter = nn.Module()
    adapter.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(20))
    applier = AdapterApplier(
        TargetTable({"unet": (adapter, lambda _: None)}), FullPrecisionSource(adapter), torch.device("cpu")
    )
    applier.apply([Use("mine", "h")], {"h": written(tensors, folder)}, LoraMode.EXACT)
    return applier.notices


def test_a_few_layers_that_match_nothing_are_listed_by_name(tmp_path: Path) -> None:
    said = "mine: 2 of its layers are not in this model and were left out: lora_unet_odd, lora_unet_strange."
    assert applied_to_many(many(18, "odd", "strange"), tmp_path) == [said]
    assert applied_to_many(many(20), tmp_path) == []


@pytest.mark.parametrize(("count", "extra"), [(17, 2), (10, 10), (0, 1)])
def test_an_adapter_that_lacks_more_is_for_another_family(count: int, extra: int, tmp_path: Path) -> None:
    tensors = many(count, *(f"odd_{number}" for number in range(extra)))
    with pytest.raises(AdapterError, match=rf"another kind of model: {extra} of its {count + extra} .*lora_unet_odd_0"):
        applied_to_many(tensors, tmp_path)


def test_layers_of_a_text_encoder_that_is_off_do_not_count(tmp_path: Path) -> None:
    tensors = {f"lora_unet_{name}": tensor for name, tensor in many(4).items()}
    tensors |= {f"lora_te3_{name}": tensor for name, tensor in many(20).items()}
    save_file(tensors, tmp_path / "t5.safetensors")
    adapter = nn.Module()
    adapter.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
    applier = AdapterApplier(
        TargetTable({"unet": (adapter, lambda _: None)}, switched_off=("lora_te3_",)),
        FullPrecisionSource(adapter),
        torch.device("cpu"),
    )
    applier.apply([Use("mine", "h")], {"h": read_adapter_file(tmp_path / "t5.safetensors")}, LoraMode.EXACT)
    assert "20 of its layers" in applier.notices[0]


@pytest.mark.parametrize("mode", list(LoraMode))
def test_a_single_layer_computes_without_what_is_on_it_for_a_while(mode: LoraMode, tmp_path: Path) -> None:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    bare = Layers().linear(x)
    layers, applier = applied(lora("linear", (4, 2), (2, 8)), tmp_path, mode)
    changed = layers.linear(x)
    with applier.taken_off(layers.linear), applier.taken_off(layers.square):
        assert torch.equal(layers.linear(x), bare)
    assert torch.equal(layers.linear(x), changed) and not torch.allclose(changed, bare)
