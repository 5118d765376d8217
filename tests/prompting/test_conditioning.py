"""Prompts to conditionings: which encoding holds at which step."""

import pytest
import torch
from torch import Tensor

from modules.models.families.ldm.conditioning import ClipConditioner
from modules.models.text_encoders.clip_encoder import ClipTextEncoder
from modules.prompting.conditioning import Conditioning, PromptEncoder, Timing
from modules.prompting.encode import TextOptions, TextTower
from modules.prompting.padding import (
    CondPadding,
    fit_tokens,
    pad_conditionings,
    pad_masked,
    stack_conditionings,
    stack_encodings,
    stack_masks,
)
from tests.prompting.encoding import encode_group, encode_negative, encode_prompt


@pytest.fixture(scope="module")
def encoder(tower: TextTower) -> PromptEncoder:
    return PromptEncoder(ClipConditioner((tower,), TextOptions()))


def alone(tower: TextTower, text: str) -> Tensor:
    return encode_group(tower, [text], TextOptions()).hidden[0]


def test_edit_switches_the_conditioning(encoder: PromptEncoder, tower: TextTower) -> None:
    conditioning = encode_negative(encoder, "a [red:green:3] cat", Timing(8))
    torch.testing.assert_close(conditioning.at(3).crossattn, alone(tower, "a red cat"))
    torch.testing.assert_close(conditioning.at(4).crossattn, alone(tower, "a green cat"))
    assert conditioning.at(99) is conditioning.at(8)


def test_alternation_shares_its_conditionings(encoder: PromptEncoder) -> None:
    conditioning = encode_negative(encoder, "[day|night]", Timing(6))
    assert conditioning.at(1) is conditioning.at(3)
    assert conditioning.at(2) is conditioning.at(6)
    assert conditioning.at(1) is not conditioning.at(2)


def test_a_schedule_restores_one_mean_for_all_its_entries(encoder: PromptEncoder, tower: TextTower) -> None:
    conditioning = encode_negative(encoder, "[(day:1.5)|night]", Timing(3))
    repeated = encode_group(tower, ["(day:1.5)", "night", "(day:1.5)"], TextOptions()).hidden
    torch.testing.assert_close(conditioning.at(1).crossattn, repeated[0])
    torch.testing.assert_close(conditioning.at(2).crossattn, repeated[1])


def test_and_gives_weighted_parts(encoder: PromptEncoder, tower: TextTower) -> None:
    parts = encode_prompt(encoder, "a cat AND a dog :0.5 AND a dog", Timing(8)).at(1)
    assert [weight for _, weight in parts] == [1.0, 0.5, 1.0]
    assert parts[1][0] is parts[2][0]
    torch.testing.assert_close(parts[1][0].crossattn, alone(tower, " a dog"))


def test_and_is_a_word_in_a_negative_prompt(encoder: PromptEncoder, tower: TextTower) -> None:
    conditioning = encode_negative(encoder, "ugly AND blurry", Timing(8)).at(1)
    torch.testing.assert_close(conditioning.crossattn, alone(tower, "ugly AND blurry"))


def test_prompts_of_a_batch_equal_prompts_alone(encoder: PromptEncoder) -> None:
    prompts = ["a (cat:1.3)", "a [dog:cat:2] BREAK hat", "a (cat:1.3)"]
    batch = encoder.encode_prompts(prompts, Timing(4))
    for prompt, result in zip(prompts, batch, strict=True):
        single = encode_prompt(encoder, prompt, Timing(4))
        torch.testing.assert_close(result.at(1)[0][0].crossattn, single.at(1)[0][0].crossattn, atol=1e-5, rtol=0)
    assert batch[0].at(1)[0][0] is batch[2].at(1)[0][0]


def test_hires_timing_reaches_the_schedule(encoder: PromptEncoder, tower: TextTower) -> None:
    conditioning = encode_negative(encoder, "[cat:dog:1.5]", Timing(8, hires_steps=4))
    torch.testing.assert_close(conditioning.at(2).crossattn, alone(tower, "cat"))
    torch.testing.assert_close(conditioning.at(3).crossattn, alone(tower, "dog"))


def two_towers(tower: TextTower) -> tuple[TextTower, TextTower]:
    wrapped = tower.encoder
    assert isinstance(wrapped, ClipTextEncoder)
    pooled = ClipTextEncoder(wrapped._model, use_pooled=True)
    return tower, TextTower(tower.tokenizer, pooled, tower.embeddings, pad_id=0)


def with_sizes(tower: TextTower) -> PromptEncoder:
    sizes = torch.ones(6)
    return PromptEncoder(ClipConditioner(two_towers(tower), TextOptions(), sizes, sizes, zero_empty_negative=True))


def test_two_towers_lie_side_by_side_and_sizes_end_the_vector(tower: TextTower) -> None:
    encoder = with_sizes(tower)
    (conditioning, _), *_ = encode_prompt(encoder, "a cat", Timing(4)).at(1)
    assert conditioning.crossattn.shape == (77, 256)
    assert conditioning.vector is not None
    assert conditioning.vector.shape == (134,)
    assert conditioning.vector[-6:].tolist() == [1.0] * 6


def test_empty_negative_is_zero_where_the_model_wants_that(tower: TextTower) -> None:
    encoder = with_sizes(tower)
    empty = encode_negative(encoder, "", Timing(4)).at(1)
    assert empty.vector is not None
    assert not empty.crossattn.any()
    assert not empty.vector[:-6].any()
    assert empty.vector[-6:].all()
    assert encode_negative(encoder, "ugly", Timing(4)).at(1).crossattn.any()
    assert encode_prompt(encoder, "", Timing(4)).at(1)[0][0].crossattn.any()


def batch(conditioning: Conditioning) -> Tensor:
    return conditioning.crossattn.unsqueeze(0)


def test_padding_with_the_empty_prompt(encoder: PromptEncoder) -> None:
    long = batch(encode_negative(encoder, "a BREAK cat", Timing(1)).at(1))
    short = batch(encode_negative(encoder, "ugly", Timing(1)).at(1))
    empty = encoder.encode_empty().crossattn
    cond, uncond, changed = pad_conditionings(long, short, CondPadding.EMPTY, empty)
    assert changed
    assert cond is long
    assert torch.equal(uncond[0, 77:], empty)
    cond, uncond, changed = pad_conditionings(short, long, CondPadding.EMPTY, empty)
    assert changed
    assert uncond is long
    assert torch.equal(cond[0, 77:], empty)


def test_padding_v0_repeats_or_cuts_the_negative() -> None:
    long, short, empty = torch.rand(1, 154, 4), torch.rand(1, 77, 4), torch.zeros(77, 4)
    cond, uncond, changed = pad_conditionings(long, short, CondPadding.REPEAT, empty)
    assert changed
    assert cond is long
    assert torch.equal(uncond[:, 77:], short[:, -1:].expand(1, 77, 4))
    cond, uncond, changed = pad_conditionings(short, long, CondPadding.REPEAT, empty)
    assert changed
    assert cond is short
    assert torch.equal(uncond, long[:, :77])


@pytest.mark.parametrize("mode", list(CondPadding))
def test_equal_lengths_need_no_padding(mode: CondPadding) -> None:
    cond = torch.rand(1, 77, 4)
    assert pad_conditionings(cond, cond, mode, torch.zeros(77, 4)) == (cond, cond, False)


def test_no_padding_leaves_both_alone() -> None:
    cond, uncond = torch.rand(1, 154, 4), torch.rand(1, 77, 4)
    result = pad_conditionings(cond, uncond, CondPadding.NONE, torch.zeros(77, 4))
    assert (result[0] is cond, result[1] is uncond, result[2]) == (True, True, False)


def test_unequal_encodings_stack_by_repeating_the_last_vector() -> None:
    short, long = torch.rand(2, 3), torch.rand(4, 3)
    stacked = stack_encodings([short, long])
    assert stacked.shape == (2, 4, 3)
    assert torch.equal(stacked[0, 2:], short[-1:].expand(2, 3))
    assert torch.equal(fit_tokens(long, 2), long[:2])


def test_masked_conditionings_are_filled_up_with_zeros() -> None:
    short, long = torch.ones(2, 4), torch.full((5, 4), 2.0)
    items = [Conditioning(each, None, torch.ones(len(each), dtype=torch.bool)) for each in (short, long)]
    stacked, mask = stack_conditionings(items), stack_masks(items)
    assert torch.equal(stacked[0, :2], short) and not stacked[0, 2:].any() and torch.equal(stacked[1], long)
    assert mask is not None and mask.tolist() == [[True] * 2 + [False] * 3, [True] * 5]
    both, joined = pad_masked(stacked[:1, :2], mask[:1, :2], stacked[1:], mask[1:])
    assert torch.equal(both, stacked) and torch.equal(joined, mask)


def test_without_masks_the_last_vector_is_repeated() -> None:
    items = [Conditioning(torch.arange(8.0).view(2, 4)), Conditioning(torch.zeros(3, 4))]
    assert stack_masks(items) is None
    assert torch.equal(stack_conditionings(items)[0, 2], items[0].crossattn[1])
