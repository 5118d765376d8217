"""Language models as text encoders, against transformers' own class on the same random weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model

from modules.errors import CheckpointError
from modules.models.detection.parts import llm_width
from modules.models.files.tensor_file import TensorEntry
from modules.models.text_encoders.llm import HiddenStates, LlmEncoder, Template, llm_component
from modules.models.text_encoders.tokenizers import LlmTokenizer

PREFIX, HINT = "text_encoders.language.transformer", "Choose another one."
LAYERS, WIDTH, HEAD = 5, 48, 16
TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
TEXTS = ("a red fox", "blurry, lowres, a long list of words")


@pytest.fixture(scope="module")
def reference() -> Any:
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=WIDTH,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=HEAD,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    )
    model = Qwen3Model(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    return model


def header_of(tensors: dict[str, Tensor]) -> dict[str, TensorEntry]:
    return {f"{PREFIX}.model.{key}": TensorEntry(t.dtype, tuple(t.shape), 0, 0) for key, t in tensors.items()}


def built(reference: Any, states: HiddenStates, **options: Any) -> LlmEncoder:
    tensors = reference.state_dict()
    component = llm_component("text_encoder", header_of(tensors), PREFIX, states, HINT)
    module = component.module.to_empty(device="cpu").eval()
    wanted = {component.keymap.to_ours(f"{PREFIX}.model.{key}"): t for key, t in tensors.items()}
    module.load_state_dict({key: t for key, t in wanted.items() if key in module.state_dict()})
    unused = [key for key in tensors if f"{PREFIX}.model.{key}".startswith(component.unused or ("-",))]
    assert len(module.state_dict()) + len(unused) == len(tensors)
    return LlmEncoder(module, LlmTokenizer.standard(), "cpu", states, template=Template(TEMPLATE), **options)


@pytest.mark.parametrize("numbers", [(-1,), (-2,), (1, 3), (1, 2, 4)])
def test_hidden_states_are_those_of_transformers(reference: Any, numbers: tuple[int, ...]) -> None:
    found = built(reference, HiddenStates(numbers)).encode(TEXTS)
    for row, text in enumerate(TEXTS):
        ids = LlmTokenizer.standard().ids(TEMPLATE.format(text))
        with torch.no_grad():
            output = reference(input_ids=torch.tensor([ids]), output_hidden_states=True)
        expected = torch.cat([output.hidden_states[number][0] for number in numbers], dim=-1)
        torch.testing.assert_close(found.real_tokens(row), expected, rtol=1e-4, atol=1e-4)


def test_layers_behind_the_last_used_one_are_not_built(reference: Any) -> None:
    header = header_of(reference.state_dict())
    module: Any = llm_component("text_encoder", header, PREFIX, HiddenStates((1, 3)), HINT).module
    assert len(module.layers) == 3
    module = llm_component("text_encoder", header, PREFIX, HiddenStates((-2,)), HINT).module
    assert len(module.layers) == LAYERS - 1


def test_padding_has_a_mask_and_a_length(reference: Any) -> None:
    found = built(reference, HiddenStates((-2,)), tokens=24, most=24).encode(TEXTS)
    assert found.tokens.shape == (2, 24, WIDTH) and found.mask is not None
    assert found.mask.sum(dim=1).tolist() == [len(LlmTokenizer.standard().ids(TEMPLATE.format(t))) for t in TEXTS]
    conditioning = found.masked(0)
    assert conditioning.mask is not None and conditioning.mask.all()
    assert len(conditioning.crossattn) == int(found.mask[0].sum())


def test_what_is_beyond_the_limit_is_cut_off(reference: Any) -> None:
    assert built(reference, HiddenStates((-2,)), most=5).encode(TEXTS).tokens.shape[1] == 5


def test_a_model_that_is_not_whole_is_refused(reference: Any) -> None:
    header = header_of(reference.state_dict())
    del header[f"{PREFIX}.model.layers.0.self_attn.k_proj.weight"]
    with pytest.raises(CheckpointError, match=r"k_proj\.weight.* is missing.*Choose another one"):
        llm_component("text_encoder", header, PREFIX, HiddenStates((-2,)), HINT)


def test_a_model_of_too_few_layers_is_refused(reference: Any) -> None:
    with pytest.raises(CheckpointError, match="has 5 layers, and the model needs 27"):
        llm_component("text_encoder", header_of(reference.state_dict()), PREFIX, HiddenStates((9, 18, 27)), HINT)


def test_width_of_files_with_and_without_the_level(reference: Any) -> None:
    bare = {key: TensorEntry(t.dtype, tuple(t.shape), 0, 0) for key, t in reference.state_dict().items()}
    assert llm_width(bare) == llm_width({f"model.{key}": entry for key, entry in bare.items()}) == WIDTH
    assert llm_width({"shared.weight": TensorEntry(torch.float16, (4, 4), 0, 0)}) is None
