"""LoRAs in all the forms that trainers write, on every family whose denoiser is a transformer: exact by layer, against
the weights of the file with the difference written in. The table in docs/models.md is made of this."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable
from modules.models.families.registry import FAMILIES
from modules.models.loading.loaded import LoadedModel
from modules.models.names.row_map import Source
from tests.adapters.test_fused_layers import NoFullPrecision
from tests.models.split_models import SPLIT_FAMILIES, split_model
from tests.models.test_gguf_files import load

DENOISER = "model.diffusion_model."
DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- LoRA forms: tests/adapters/test_lora_forms.py -->", "<!-- /LoRA forms -->"
RANK, ALPHA = 4, 2.0
Tensors = dict[str, Tensor]
Changes = dict[str, Callable[[Tensor], Tensor]]
"""By layer what a form adds to its weight, given the weight."""


@dataclass(frozen=True)
class Layer:
    """A linear layer of the first blocks: `name` in the file, or `path` in diffusers' module, and [out, in]."""

    name: str
    shape: tuple[int, int]

    @property
    def joined(self) -> str:
        return self.name.replace(".", "_")


@dataclass(frozen=True)
class Form:
    """What a row of the table is called; `write` gives a file's tensors and the change of one layer. `of_path`: layers
    are called as in diffusers' module. `fused`: for layers that are several in diffusers' module."""

    title: str
    write: Callable[[Layer, int], tuple[Tensors, Callable[[Tensor], Tensor]]]
    of_path: bool = False
    fused: bool = False

    def __str__(self) -> str:
        return self.title


@cache
def model_of(family: str) -> LoadedModel:
    with TemporaryDirectory() as folder:
        return load(split_model(family).write(Path(folder)))


def sources(family: str) -> dict[str, Source]:
    """By path of each linear layer of the denoiser where its weight is in the file."""
    (component,) = (each for each in model_of(family).components if each.name == "unet")
    linear = [name for name, layer in component.module.named_modules() if isinstance(layer, nn.Linear)]
    return {path: Source.of(str(component.keymap.to_original(f"{path}.weight"))) for path in linear}


def plain(source: Source) -> str:
    return source.key.removeprefix(DENOISER).removesuffix(".weight")


def layers(family: str, form: Form) -> list[Layer]:
    """Those of the first block of each kind."""
    found: dict[str, Layer] = {}
    weights = split_model(family).denoiser
    for path, source in sources(family).items():
        if ".0." not in path or (source.rows is not None) is not (
            form.fused or (form.of_path and source.rows is not None)
        ):
            continue
        out, width = weights[f"{plain(source)}.weight"].shape
        if not form.of_path:
            found[plain(source)] = Layer(plain(source), (out, width))
        else:
            rows = source.rows or ((0, out),)
            found[path] = Layer(path, (sum(end - begin for begin, end in rows), width))
    return list(found.values())


def wanted(family: str, changes: Changes, of_path: bool) -> dict[str, Tensor]:
    """The weights of all linear layers with the changes in the file's."""
    weights = {key: tensor.float() for key, tensor in split_model(family).denoiser.items()}
    known = sources(family)
    for name, change in changes.items():
        source = known[name] if of_path else Source(f"{DENOISER}{name}.weight")
        whole = weights[f"{plain(source)}.weight"]
        rows = torch.cat([torch.arange(begin, end) for begin, end in source.rows or ((0, len(whole)),)])
        changed = whole.clone()
        changed[rows] += change(whole[rows])
        weights[f"{plain(source)}.weight"] = changed
    found = {}
    for path, source in known.items():
        whole = weights[f"{plain(source)}.weight"]
        found[path] = whole if source.rows is None else torch.cat([whole[begin:end] for begin, end in source.rows])
    return found


def effective(family: str, tensors: Tensors, folder: Path) -> dict[str, Tensor]:
    """What all linear layers multiply by with an adapter on."""
    model = model_of(family)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "a.safetensors")
    table = TargetTable({c.name: (c.module, c.keymap.to_original) for c in model.components})
    applier = AdapterApplier(table, NoFullPrecision(), torch.device("cpu"))
    applier.apply([Use("a", "a")], {"a": read_adapter_file(folder / "a.safetensors")}, LoraMode.EXACT)
    try:
        found = {}
        with torch.inference_mode():
            for path in sources(family):
                layer = model.unet.get_submodule(path)
                one = torch.eye(layer.in_features)
                found[path] = (layer(one) - layer(torch.zeros_like(one))).T
        return found
    finally:
        applier.remove()


# -- forms -----------------------------------------------------------------------------------------------------------


def factors(layer: Layer, number: int, rank: int = RANK) -> tuple[Tensor, Tensor]:
    """Down [rank,in] and up [out,rank]."""
    generator = torch.Generator().manual_seed(number)
    out, width = layer.shape
    return torch.randn(rank, width, generator=generator) / width**0.5, torch.randn(out, rank, generator=generator) / 8


def lora(
    stem: Callable[[Layer], str],
    ends: tuple[str, str],
    alpha: float | None = None,
    rank: Callable[[int], int] = lambda number: RANK,
) -> Callable[[Layer, int], tuple[Tensors, Callable[[Tensor], Tensor]]]:
    def write(layer: Layer, number: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        down, up = factors(layer, number, rank(number))
        tensors = {f"{stem(layer)}.{ends[0]}": down, f"{stem(layer)}.{ends[1]}": up}
        if alpha is not None:
            tensors[f"{stem(layer)}.alpha"] = torch.tensor(alpha)
        scale = 1.0 if alpha is None else alpha / rank(number)
        return tensors, lambda weight: scale * up @ down

    return write


def loha(layer: Layer, number: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
    (down, up), (down_2, up_2) = factors(layer, number), factors(layer, number + 100)
    stem = f"lora_unet_{layer.joined}"
    tensors = {"hada_w1_a": up, "hada_w1_b": down, "hada_w2_a": up_2, "hada_w2_b": down_2, "alpha": torch.tensor(ALPHA)}
    difference = (up @ down) * (up_2 @ down_2) * ALPHA / RANK
    return {f"{stem}.{end}": tensor for end, tensor in tensors.items()}, lambda weight: difference


def lokr(stem: Callable[[Layer], str]) -> Callable[[Layer, int], tuple[Tensors, Callable[[Tensor], Tensor]]]:
    def write(layer: Layer, number: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
        generator = torch.Generator().manual_seed(number)
        out, width = layer.shape
        one = torch.randn(2, 2, generator=generator)
        two = torch.randn(out // 2, width // 2, generator=generator) / width
        return {f"{stem(layer)}.lokr_w1": one, f"{stem(layer)}.lokr_w2": two}, lambda weight: torch.kron(one, two)

    return write


def dora(layer: Layer, number: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
    tensors, difference = lora(dotted, PEFT)(layer, number)
    scale = torch.rand(layer.shape[0], 1, generator=torch.Generator().manual_seed(number)) + 0.5

    def decomposed(weight: Tensor) -> Tensor:
        whole = weight + difference(weight)
        change: Tensor = whole / whole.norm(dim=1, keepdim=True) * scale - weight
        return change

    return {**tensors, f"{dotted(layer)}.dora_scale": scale}, decomposed


def whole_difference(layer: Layer, number: int) -> tuple[Tensors, Callable[[Tensor], Tensor]]:
    down, up = factors(layer, number)
    return {f"{dotted(layer)}.diff": up @ down}, lambda weight: up @ down


def after(start: str) -> Callable[[Layer], str]:
    return lambda layer: f"{start}{layer.name}"


def joined(start: str) -> Callable[[Layer], str]:
    return lambda layer: f"{start}{layer.joined}"


def dotted(layer: Layer) -> str:
    return f"diffusion_model.{layer.name}"


KOHYA, PEFT = ("lora_down.weight", "lora_up.weight"), ("lora_A.weight", "lora_B.weight")
NAMED = ("lora_A.default.weight", "lora_B.default.weight")
FUSED_FAMILIES = ("z_image", "flux1_dev", "flux2_klein", "chroma1", "qwen_image21")
BY_RANK = lora(joined("lora_unet_"), KOHYA, ALPHA, lambda number: 2 + number % 5)
FORMS = (
    Form("`lora_unet_` and the original name, with alpha (kohya)", lora(joined("lora_unet_"), KOHYA, ALPHA)),
    Form("kohya without alpha", lora(joined("lora_unet_"), KOHYA)),
    Form("kohya in another rank for each layer", BY_RANK),
    Form("kohya on layers that are fused in the file", lora(joined("lora_unet_"), KOHYA, ALPHA), fused=True),
    Form("`lora_unet_` and diffusers' name", lora(joined("lora_unet_"), KOHYA, ALPHA), of_path=True),
    Form("`lora_transformer_` and diffusers' name", lora(joined("lora_transformer_"), KOHYA, ALPHA), of_path=True),
    Form("`transformer.` and diffusers' name (diffusers, PEFT)", lora(after("transformer."), PEFT), of_path=True),
    Form("PEFT with the name of an adapter (`lora_A.default`)", lora(after("transformer."), NAMED), of_path=True),
    Form("PEFT with alpha", lora(after("transformer."), PEFT, ALPHA), of_path=True),
    Form("diffusers' name alone", lora(after(""), PEFT), of_path=True),
    Form("`diffusion_model.` and diffusers' name", lora(dotted, PEFT), of_path=True),
    Form("`diffusion_model.` and the original name (ComfyUI, ai-toolkit)", lora(dotted, PEFT)),
    Form("`diffusion_model.` with alpha", lora(dotted, PEFT, ALPHA)),
    Form("`diffusion_model.` on layers that are fused in the file", lora(dotted, PEFT), fused=True),
    Form("`base_model.model.` and the original name (fal)", lora(after("base_model.model."), PEFT)),
    Form("fal with the name of an adapter", lora(after("base_model.model."), NAMED)),
    Form("the original name alone (BFL)", lora(after(""), PEFT)),
    Form("LoHa", loha),
    Form("LoKr, `lycoris_` and diffusers' name", lokr(joined("lycoris_")), of_path=True),
    Form("LoKr, `diffusion_model.` and the original name", lokr(dotted)),
    Form("DoRA", dora),
    Form("a whole difference (`diff`)", whole_difference),
)


def has_layers(family: str, form: Form) -> bool:
    return not form.fused or family in FUSED_FAMILIES


@pytest.mark.parametrize(
    ("family", "form"),
    [(family, form) for family in SPLIT_FAMILIES for form in FORMS if has_layers(family, form)],
    ids=str,
)
def test_a_form_is_exact_by_layer(family: str, form: Form, tmp_path: Path) -> None:
    tensors: Tensors = {}
    changes: Changes = {}
    for number, layer in enumerate(layers(family, form)):
        own, changes[layer.name] = form.write(layer, number)
        tensors |= own
    assert len(changes) >= 1
    found, expected = effective(family, tensors, tmp_path), wanted(family, changes, form.of_path)
    before = wanted(family, {}, form.of_path)
    assert sum(not torch.equal(expected[path], before[path]) for path in expected) >= len(changes)
    for path, weight in expected.items():
        torch.testing.assert_close(found[path], weight, rtol=1e-4, atol=1e-5, msg=f"{form.title}: {path}")


def table() -> str:
    """Return the table of the document."""
    lines = ["| form | families |", "|---|---|"]
    for form in FORMS:
        labels = [FAMILIES.get(family).label for family in SPLIT_FAMILIES if has_layers(family, form)]
        lines.append(f"| {form.title} | {'all' if len(labels) == len(SPLIT_FAMILIES) else ', '.join(labels)} |")
    return "\n".join(lines)


def test_the_document_has_the_table() -> None:
    assert f"{BEGIN}\n\n{table()}\n\n{END}" in DOCUMENT.read_text(encoding="utf-8")
