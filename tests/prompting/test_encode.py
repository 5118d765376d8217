"""Encoded prompts against the recordings: four emphasis modes, clip skip, embeddings, several chunks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.models.text_encoders.clip_encoder import ClipTextEncoder, inject
from modules.prompting.emphasis import Emphasis, apply_emphasis
from modules.prompting.encode import (
    Encoded,
    Injection,
    TextOptions,
    TextTower,
    encode_groups,
)
from modules.prompting.tokens import ClipTokenizer
from tests.cases import for_each
from tests.prompting.encoding import encode_group
from tests.prompting.recordings import PARTS, REFERENCE

with np.load(REFERENCE / "parts.npz") as _archive:
    RECORDED = sorted(name for name in _archive.files if name.startswith("cond/"))


class CountingEncoder:
    """Encodes a token as its id, and remembers how much it was given."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = []

    def encode(self, tokens: Tensor, clip_skip: int, injections: Sequence[Injection]) -> Encoded:
        del clip_skip, injections
        self.batches.append(tokens)
        hidden = tokens.float().unsqueeze(-1).repeat(1, 1, 2)
        return Encoded(hidden, hidden[:, -1])


@for_each("name", RECORDED)
def test_encoding_as_recorded(tower: TextTower, recorded_arrays: dict[str, NDArray[np.float32]], name: str) -> None:
    _, emphasis, skip, index = name.split("/")
    options = TextOptions(Emphasis(emphasis), clip_skip=int(skip.removeprefix("skip")))
    result = encode_group(tower, [PARTS["cond_prompts"][int(index)]], options).hidden
    torch.testing.assert_close(result, torch.from_numpy(recorded_arrays[name]), atol=1e-4, rtol=0)


def test_shorter_texts_of_a_schedule_are_filled_up_with_empty_chunks(tower: TextTower) -> None:
    result = encode_group(tower, ["a cat", "a BREAK cat"], TextOptions()).hidden
    empty = encode_group(tower, [""], TextOptions()).hidden[0]
    assert result.shape == (2, 154, 128)
    torch.testing.assert_close(result[0, 77:], empty)


def test_each_group_restores_its_own_mean(tower: TextTower) -> None:
    alone = encode_group(tower, ["a (cat:1.5)"], TextOptions()).hidden
    both = encode_groups(tower, [["a (cat:1.5)"], ["a (dog:0.1)"]], TextOptions())
    together = encode_group(tower, ["a (cat:1.5)", "a (dog:0.1)"], TextOptions()).hidden
    torch.testing.assert_close(both[0].hidden, alone)
    assert not torch.allclose(together[:1], alone)


def test_counts_weigh_like_repeated_texts(tower: TextTower) -> None:
    repeated = encode_group(tower, ["(cat:1.5)", "dog", "(cat:1.5)"], TextOptions()).hidden
    counted = encode_group(tower, ["(cat:1.5)", "dog"], TextOptions(), counts=[2, 1]).hidden
    torch.testing.assert_close(counted, repeated[:2])


def test_equal_chunks_are_encoded_once_and_in_bounded_batches(tokenizer: ClipTokenizer) -> None:
    encoder = CountingEncoder()
    tower = TextTower(tokenizer, encoder)
    texts = ["(cat:1.2)", "cat", "cat BREAK cat", *(f"cat {number}" for number in range(60))]
    result = encode_groups(tower, [texts, texts], TextOptions())
    assert sum(len(batch) for batch in encoder.batches) == 62  # "cat", the empty chunk, and the numbered ones
    assert max(len(batch) for batch in encoder.batches) <= 32
    assert result[0].pooled is not None
    assert result[0].pooled.shape == (63, 2)


def test_multipliers_reach_their_tokens() -> None:
    hidden, weights = torch.ones(1, 3, 2), torch.tensor([[1.0, 2.0, 3.0]])
    assert torch.equal(apply_emphasis(hidden, weights, Emphasis.IGNORE), hidden)
    assert apply_emphasis(hidden, weights, Emphasis.NO_NORM)[0, :, 0].tolist() == [1.0, 2.0, 3.0]
    assert apply_emphasis(hidden, weights, Emphasis.ORIGINAL)[0, :, 0].tolist() == [0.5, 1.0, 1.5]


def test_emphasis_keeps_the_dtype() -> None:
    hidden = torch.randn(1, 77, 4, generator=torch.Generator().manual_seed(0)).half()
    assert apply_emphasis(hidden, torch.full((1, 77), 1.5), Emphasis.ORIGINAL).dtype == torch.float16


def test_clip_skip_beyond_the_layers_is_refused(text_model: nn.Module) -> None:
    tokens = torch.full((1, 77), 49407)
    encoder = ClipTextEncoder(text_model)
    assert encoder.encode(tokens, 4, ()).hidden.shape == (1, 77, 128)
    for skip in (0, 5):
        with pytest.raises(InvalidValueError, match=f"Clip skip {skip} .* 3 layers"):
            encoder.encode(tokens, skip, ())


def test_pooled_output_is_projected_on_demand(text_model: nn.Module) -> None:
    tokens = torch.full((1, 77), 49407)
    plain = ClipTextEncoder(text_model, use_pooled=True).encode(tokens, 1, ()).pooled
    doubled = ClipTextEncoder(text_model, use_pooled=True, project=lambda pooled: 2 * pooled)
    assert plain is not None
    torch.testing.assert_close(doubled.encode(tokens, 1, ()).pooled, 2 * plain)
    assert ClipTextEncoder(text_model).encode(tokens, 1, ()).pooled is None


def test_injected_vectors_leave_no_trace() -> None:
    embedding = nn.Embedding(5, 2)
    ids = torch.zeros(2, 4, dtype=torch.long)
    before = embedding(ids)
    with inject(embedding, [Injection(1, 2, torch.tensor([[7.0, 8.0]]))]):
        changed = embedding(ids)
    assert changed[1, 2].tolist() == [7.0, 8.0]
    assert torch.equal(changed[0], before[0])
    assert torch.equal(embedding(ids), before)
    assert not embedding._forward_hooks
