"""Stored layers: what they compute, and that nothing is left behind."""

import copy
import inspect
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.formats.format import FORMATS
from modules.memory.layer import Part, read_part, read_weight, stored_state, unmanage
from modules.memory.skip import SkipRules
from modules.memory.storage import StorageRules, stored_bytes
from tests.memory.storing import apply_storage
from tests.memory.toys import CONVOLUTIONS, Toy, convolution, toy_inputs

EIGHT_BITS = ("fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row")


def run(model: Callable[..., Any]) -> tuple[Tensor, ...]:
    with torch.no_grad():
        result: tuple[Tensor, ...] = model(*toy_inputs())
    return result


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(before: dict[str, Tensor], after: dict[str, Tensor]) -> None:
    for name, tensor in after.items():
        assert torch.equal(before[name].view(torch.uint8), tensor.view(torch.uint8)), name


def stored_layers(model: nn.Module) -> list[str]:
    return [path for path, layer in model.named_modules() if stored_state(layer) is not None]


def everything(storage: str) -> StorageRules:
    return StorageRules(storage, embeddings=True, direct=True)


@pytest.mark.parametrize("storage", EIGHT_BITS)
def test_the_output_is_that_of_the_decoded_weights(storage: str) -> None:
    model, expected = Toy(), Toy()
    rules = everything(storage)
    with torch.no_grad():
        for path, layer in expected.named_modules():
            for name, parameter in layer.named_parameters(recurse=False):
                form = rules.format_of(path, layer, name, tuple(parameter.shape))
                if form is not None and not (path == "tied" and name == "weight"):
                    encoded = form.encode(parameter.data)
                    parameter.copy_(form.decode(encoded.data, encoded.scale, torch.empty(parameter.shape)))
    apply_storage(model, rules, torch.float32)
    assert same(run(model), run(expected))


@pytest.mark.parametrize("storage", EIGHT_BITS)
def test_bytes_shrink(storage: str) -> None:
    model = Toy()
    output, full = run(model), stored_bytes(model)
    apply_storage(model, everything(storage), torch.float32)
    assert stored_bytes(model) < 0.4 * full
    assert not same(run(model), output)


@pytest.mark.parametrize("storage", EIGHT_BITS)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_convolution_computes_with_its_decoded_weights(name: str, storage: str) -> None:
    layer, x = convolution(name)
    expected, _ = convolution(name)
    root = nn.Sequential(layer)
    with torch.no_grad():
        full = expected(x)
        for key, parameter in expected.named_parameters():
            form = StorageRules(storage).format_of("0", expected, key, tuple(parameter.shape))
            if form is not None:
                encoded = form.encode(parameter.data)
                parameter.copy_(form.decode(encoded.data, encoded.scale, torch.empty(parameter.shape)))
        apply_storage(root, StorageRules(storage), torch.float32)
        weight = layer._parameters["weight"]
        assert weight is not None and weight.element_size() == 1
        assert torch.equal(root(x), expected(x))
        assert 0 < (root(x) - full).norm() / full.norm() < 0.2


def lay_out(model: nn.Module) -> None:
    """Put the images' channels innermost."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.mark.parametrize("storage", EIGHT_BITS)
@pytest.mark.parametrize("name", ["Conv2d", "ConvTranspose2d"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_channels_last_gives_the_same_weights(name: str, storage: str, when: str) -> None:
    layer, x = convolution(name)
    plain, _ = convolution(name)
    apply_storage(nn.Sequential(plain), StorageRules(storage), torch.float32)
    root = nn.Sequential(layer)
    if when == "before":
        lay_out(root)
    apply_storage(root, StorageRules(storage), torch.float32)
    if when == "after":
        lay_out(root)
    x = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(read_weight(layer, "weight"), read_weight(plain, "weight"))
    with torch.no_grad():
        assert torch.allclose(root(x), plain(x), atol=1e-5)


def test_the_way_back_gives_what_is_stored() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.float32)
    stored = run(model)
    for layer in model.modules():
        unmanage(layer)
    assert same(run(model), stored)
    assert type(model.first) is nn.Linear and not stored_layers(model)


def test_whoever_reads_a_weight_gets_a_usable_one() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.bfloat16)
    assert model.first.weight.dtype == torch.bfloat16
    assert model.attention.out_proj.weight.dtype == torch.bfloat16
    assert model.first._parameters["weight"] is not None
    assert model.first._parameters["weight"].dtype == torch.float8_e4m3fn
    assert torch.equal(read_part(Part(model.first, "weight", 0, 10, 20)), model.first.weight[10:20])
    assert torch.equal(read_part(Part(model.first, "weight", 1, 3, 9)), model.first.weight[:, 3:9])
    assert torch.equal(read_part(Part(model.norm, "weight", 0, 1, 3)), model.norm.weight[1:3])


def test_the_state_dict_is_what_is_stored_and_loads_again() -> None:
    model, other = Toy(), Toy()
    for each in (model, other):
        apply_storage(each, everything("fp8_e4m3fn_row"), torch.float32)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(torch.zeros_like(parameter))
    assert not same(run(model), run(other))
    other.load_state_dict(model.state_dict())
    assert same(run(model), run(other))
    assert model.state_dict()["first.weight_scale"].shape == (128,)


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn"), torch.float32)
    assert model.first._parameters["weight"] is model.tied._parameters["weight"]


def test_a_deep_copy_is_independent() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.float32)
    output = run(model)
    tied = copy.deepcopy(model)
    with torch.no_grad():
        assert tied.convolution._parameters["weight"] is not None
        tied.convolution._parameters["weight"].zero_()
    assert same(run(model), output)
    assert not same(run(tied), output)


def test_an_exception_leaves_what_is_stored() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.float32)
    output, before = run(model), state(model)
    with pytest.raises(RuntimeError):
        model.first(torch.randn(2, 3))
    assert_same_bits(before, state(model))
    assert same(run(model), output)


def test_threads_do_not_meet() -> None:
    model = Toy()
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.float32)
    expected = run(model)
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(10):
            if not same(run(model), expected):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_big_weights_in_the_reused_buffer() -> None:
    """Weights of over a megabyte take turns in one buffer; the output must not depend on that."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(600, 700), nn.Linear(700, 800), nn.Linear(800, 500))
    x = torch.randn(3, 600)
    apply_storage(model, StorageRules("fp8_e4m3fn_row"), torch.float32)
    with torch.no_grad():
        quick = model(x)
    with_gradients = model(x)  # no buffer there: autograd keeps what it needs
    assert torch.equal(quick, with_gradients.detach())


def test_inputs_are_cast_only_if_floating() -> None:
    seen: list[Any] = []

    class Picky(nn.Linear):
        def forward(self, input: Tensor, flags: Tensor | None = None) -> Tensor:
            seen.append((input.dtype, None if flags is None else flags.dtype))
            return super().forward(input)

    layer: Any = Picky(64, 64)
    apply_storage(layer, StorageRules("fp8_e4m3fn"), torch.bfloat16)
    assert layer(torch.randn(1, 64), flags=torch.tensor([True])).dtype == torch.bfloat16
    assert seen == [(torch.bfloat16, torch.bool)]


def test_autocast_leaves_inputs_to_pytorch() -> None:
    layer = nn.Linear(64, 64)
    apply_storage(layer, StorageRules("fp8_e4m3fn"), torch.bfloat16, cast_inputs=False)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert layer(torch.randn(2, 64)).dtype == torch.bfloat16


@pytest.mark.parametrize("storage", EIGHT_BITS)
def test_the_compiler_finds_no_break(storage: str) -> None:
    model = Toy()
    apply_storage(model, everything(storage), torch.float32)
    expected = run(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for ours, theirs in zip(run(compiled), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("strict", [False, True])
def test_a_stored_model_can_be_exported(strict: bool) -> None:
    model = Toy().requires_grad_(False)
    apply_storage(model, everything("fp8_e4m3fn_row"), torch.float32)
    expected = run(model)
    with torch.no_grad():
        program = torch.export.export(model, toy_inputs(), strict=strict)
    assert torch.float8_e4m3fn in {tensor.dtype for tensor in program.state_dict.values()}  # what is stored
    for ours, theirs in zip(program.module()(*toy_inputs()), expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_signature_and_name_stay() -> None:
    layer = nn.Linear(64, 64)
    before = inspect.signature(layer.forward)
    apply_storage(layer, StorageRules("fp8_e4m3fn"), torch.float32)
    assert inspect.signature(layer.forward) == before
    assert type(layer).__name__ == "Linear"
    assert isinstance(layer, nn.Linear)


def test_saturation_is_reported_by_name() -> None:
    inner = nn.Linear(64, 64)
    with torch.no_grad():
        inner.weight[0, :3] = 1e4
    saturated = apply_storage(nn.Sequential(inner), StorageRules("fp8_e4m3fn"), torch.float32)
    assert saturated == {"0.weight": 3}


@pytest.mark.parametrize(
    ("skip", "kept"),
    [
        (SkipRules(("^first$",)), "first"),
        (SkipRules(classes=(nn.Conv2d,)), "convolution"),
        (SkipRules(names=frozenset({"attention"})), "attention.out_proj"),
        (SkipRules(predicate=lambda name, layer: name == "line" and isinstance(layer, nn.Conv1d)), "line"),
        (SkipRules("^fir.t$"), "first"),
    ],
)
def test_skip_rules(skip: SkipRules, kept: str) -> None:
    model = Toy()
    apply_storage(model, StorageRules("fp8_e4m3fn", skip), torch.float32)
    assert stored_state(model.get_submodule(kept)) is None
    assert len(stored_layers(model)) == 5  # of the six Linear and convolution layers


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="regular expression"):
        SkipRules(("(",))


def test_formats_with_scales_leave_small_tensors_and_biases() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(128, 64))
    apply_storage(model, StorageRules("fp8_e4m3fn_row"), torch.float32)
    assert stored_state(model[0]) is None
    assert model[1]._parameters["bias"] is not None
    assert model[1]._parameters["bias"].dtype == torch.float32
    assert read_weight(model[1], "weight").dtype == torch.float32
    assert set(FORMATS) >= set(EIGHT_BITS)
