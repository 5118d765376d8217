"""The tokenizers that come with the program, and what the page counts with them."""

import pytest

from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting, unread_syntax
from modules.models.text_encoders.tokenizers import QWEN_PAD, T5_TOKENS, LlmTokenizer, standard_t5
from modules.prompting.counter import longest_count
from modules.prompting.emphasis import Emphasis
from modules.prompting.encode import TextOptions

FOX = "a photo of a red fox in the snow, sharp focus"


def test_language_models_ids() -> None:
    ids = LlmTokenizer.standard().ids(f"<|im_start|>user\n{FOX}<|im_end|>\n<|im_start|>assistant\n")
    assert ids == [
        *(151644, 872, 198, 64, 6548, 315, 264, 2518, 38835, 304, 279, 11794, 11, 17232, 5244, 151645, 198),
        *(151644, 77091, 198),
    ]


def test_special_tokens_are_one_unit() -> None:
    tokenizer = LlmTokenizer.standard()
    assert tokenizer.ids("<|endoftext|>") == [QWEN_PAD] and tokenizer.ids("</think>") == [151668]
    assert len(tokenizer.ids("漢字 αβγ 12")) > 4


def test_t5s_ids_end_with_the_end_token() -> None:
    assert standard_t5().text_ids(FOX) == [3, 9, 1202, 13, 3, 9, 1131, 3, 20400, 16, 8, 2983, 6, 4816, 992, 1]
    assert standard_t5().text_ids("(fox:1.3)") == standard_t5().text_ids("fox")
    assert standard_t5().text_ids("(fox:1.3)", with_attention=False) != standard_t5().text_ids("fox")
    assert T5_TOKENS == 32100


def test_t5s_ids_with_weights() -> None:
    ids, weights = standard_t5().weighted_ids([("a red", 1.0), (" fox", 1.3)])
    assert ids[-1] == 1 and weights[-1] == 1.0 and len(ids) == len(weights) and weights.count(1.3) >= 1


@pytest.mark.parametrize(
    ("counting", "expected"),
    [(BY_CHUNKS, "12/75"), (TokenCounting("qwen3", 512), "12/512"), (TokenCounting("t5", 256), "15/256")],
)
def test_the_counter_counts_with_the_models_tokenizer(counting: TokenCounting, expected: str) -> None:
    assert str(longest_count(lambda text: counting.count(text, TextOptions()), FOX, 20)) == expected


def test_brackets_count_where_they_are_text() -> None:
    counting = TokenCounting("qwen3", 512)
    plain = counting.count("fox", TextOptions()).count
    assert counting.count("(fox:1.3)", TextOptions()).count == plain
    assert counting.count("(fox:1.3)", TextOptions(emphasis=Emphasis.NONE)).count > plain


def test_what_a_text_encoder_does_not_read_is_said() -> None:
    texts = ["a (red:1.3) fox BREAK in the snow", "blurry"]
    weights, breaks = unread_syntax(texts, Emphasis.ORIGINAL, "X", False, False)
    assert "weights" in weights and "BREAK is read as a space" in breaks
    assert unread_syntax(texts, Emphasis.ORIGINAL, "X", True, True) == []
    assert unread_syntax(texts, Emphasis.NONE, "X", False, False) == []
    assert unread_syntax(["a red fox"], Emphasis.ORIGINAL, "X", False, False) == []
