"""Language models as text encoders, against transformers' own class on the same random weights."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config, Qwen3Model
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLVisionConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLVisionModel

from modules.errors import CheckpointError
from modules.models.detection.parts import llm_width
from modules.models.files.tensor_file import TensorEntry
from modules.models.loading.matching import assign_tensors
from modules.models.text_encoders.llm import HiddenStates, LlmEncoder, Template, llm_component
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import tower_component
from tests.models.dit_files import HeaderOnly, full_header

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


@pytest.mark.parametrize(("depth", "deep"), [(24, (5, 11, 17)), (27, (8, 16, 24))])
def test_a_tower_of_qwen3_vl_is_known_by_its_tensors(depth: int, deep: tuple[int, ...]) -> None:
    """By the blocks of the published ones, narrower than they are."""
    config = Qwen3VLVisionConfig(
        depth=depth, hidden_size=64, intermediate_size=32, deepstack_visual_indexes=deep, out_hidden_size=64
    )
    with torch.device("meta"):
        theirs = Qwen3VLVisionModel(config)
    shapes = {f"text.visual.{key}": tensor.shape for key, tensor in theirs.state_dict().items()}
    header = {key: TensorEntry(torch.bfloat16, tuple(shape), 0, 0) for key, shape in shapes.items()}
    tower: Any = tower_component(header, "text", "Choose another.").module
    assert {key: tensor.shape for key, tensor in tower.state_dict().items()} == {
        key.removeprefix("text.visual."): shape for key, shape in shapes.items()
    }
    assert tuple(tower.config.deepstack_visual_indexes) == deep and tower.config.num_heads == 16


def test_the_full_tower_of_qwen25_vl_has_a_place_for_all_its_tensors_and_says_what_is_missing() -> None:
    prefix = "text_encoders.qwen25_7b.transformer"
    header = full_header("te-qwen2.5-vl-7b", f"{prefix}.")
    tower = tower_component(header, prefix, "Choose another.")
    found = assign_tensors(HeaderOnly(header), [tower], lambda key: not key.startswith(tower.prefixes))
    assert len(found) == sum(".visual." in key for key in header) == 390
    config: Any = tower.module.config
    assert list(config.fullatt_block_indexes) == [7, 15, 23, 31] and config.num_heads == 16
    patches = f"{prefix}.visual.patch_embed.proj.weight"
    for less, said in (
        ({key: entry for key, entry in header.items() if ".visual." not in key}, "has no vision tower"),
        ({patches: header[patches]}, "is not whole or of another type"),
    ):
        with pytest.raises(CheckpointError, match=f"{said}.* Choose another"):
            tower_component(less, prefix, "Choose another.")
