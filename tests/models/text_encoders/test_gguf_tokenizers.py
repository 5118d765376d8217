"""Tokenizers inside GGUF files of text encoders, against those that come with the program, whose vocabularies are
written into the files."""

import base64
import gzip
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest

from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer, own_t5
from modules.models.text_encoders.t5 import t5_tokenizer
from modules.models.text_encoders.tokenizers import (
    QWEN_MERGES,
    QWEN_SPECIAL,
    QWEN_VOCABULARY,
    T5_FILE,
    LlmTokenizer,
    standard_t5,
)
from modules.prompting.encode import TextOptions

NORMAL, CONTROL, DEFINED, UNUSED = 1, 3, 4, 5
UNUSED_TOKENS = 28
TEXTS = (
    "a photo of a red fox in the snow, sharp focus, 35mm f/1.4",
    "  two  spaces,\n\nlines and a tab\t; it's DON'T we'LL  ",
    "一只红色的狐狸在雪地里，高清摄影 123",
    "🦊🏔️ fox — “quotes” … ½ ﬁ ｆｕｌｌ Ａ",
    "Ünïcödé naïve café e\u0301, русский текст, العربية",
    "<|im_start|>user\na fox<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n<|endoftext|>",
    "a <extra_id_3> b</s> c <unk> <pad>",
    "",
)


def _text(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode("utf-8")


def _write(path: Path, model: str, tokens: Sequence[str], types: Sequence[int], rows: int = 0, **parts: Any) -> Path:
    """A file with this tokenizer and one tensor, a table of `rows` tokens (0: as many as there are)."""
    writer = gguf.GGUFWriter(path, "qwen3" if model == "gpt2" else "t5encoder")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(types))
    for name, value in parts.items():
        getattr(writer, f"add_{name}")(value)
    writer.add_tensor("token_embd.weight", numpy.zeros((rows or len(tokens), 1), dtype=numpy.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_qwen(path: Path, tokens: Sequence[str], **changes: Any) -> Path:
    special = set(QWEN_SPECIAL)
    types = [CONTROL if token.startswith("<|") else DEFINED if token in special else NORMAL for token in tokens]
    unused = [f"[PAD{number}]" for number in range(UNUSED_TOKENS)]
    parts: dict[str, Any] = {
        "tokenizer_pre": "qwen2",
        "token_merges": _text(QWEN_MERGES).splitlines()[1:],
        "pad_token_id": 151654,
    }
    types += [UNUSED] * UNUSED_TOKENS
    return _write(path, "gpt2", [*tokens, *unused], types, **(parts | changes))


@pytest.fixture(scope="module")
def qwen_tokens() -> list[str]:
    vocabulary: dict[str, int] = json.loads(_text(QWEN_VOCABULARY))
    return [*sorted(vocabulary, key=lambda token: vocabulary[token]), *QWEN_SPECIAL]


@pytest.fixture(scope="module")
def qwen(qwen_tokens: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_qwen(tmp_path_factory.mktemp("qwen") / "qwen3.gguf", qwen_tokens)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _write_t5(tmp_path_factory.mktemp("t5") / "t5.gguf", ("▁red", "▁photo"))


def _write_t5(path: Path, swapped: tuple[str, str]) -> Path:
    """`swapped`: two pieces in each other's place."""
    parts = json.loads(_text(T5_FILE))
    charsmap = base64.b64decode(parts["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    names = dict([swapped, swapped[::-1]])
    tokens = [names.get(piece, piece) for piece, _ in parts["model"]["vocab"]]
    single = {item["content"] for item in parts["added_tokens"]}
    return _write(
        path,
        "t5",
        tokens,
        [DEFINED if token in single else NORMAL for token in tokens],
        token_scores=[score for _, score in parts["model"]["vocab"]],
        precompiled_charsmap=charsmap,
        eos_token_id=1,
        unk_token_id=2,
        pad_token_id=0,
        add_space_prefix=True,
    )


def test_byte_pairs_are_those_of_the_program(qwen: Path) -> None:
    own, standard = llm_tokenizer([qwen]), LlmTokenizer.standard()
    assert own is not standard and llm_tokenizer([qwen]) is own  # read once
    assert [own.ids(text) for text in TEXTS] == [standard.ids(text) for text in TEXTS]
    assert own.pad_id == standard.pad_id  # what the image models were trained with, not what the file names


def test_pieces_and_scores_are_the_files(t5: Path) -> None:
    own, standard = own_t5([t5]), standard_t5()
    assert own is not None
    red, photo = standard.text_ids("red")[0], standard.text_ids("photo")[0]
    swapped = {red: photo, photo: red}
    expected = [[swapped.get(token, token) for token in standard.text_ids(text, False)] for text in TEXTS]
    assert [own.text_ids(text, False) for text in TEXTS] == expected
    assert own.ids("red", 6) == [photo, 1, 0, 0, 0, 0]
    assert t5_tokenizer(t5.parent / "model.safetensors", 32_128, files=[t5]) is own


def test_another_vocabulary_changes_ids_and_counts(qwen_tokens: list[str], tmp_path: Path) -> None:
    tokens, standard = list(qwen_tokens), LlmTokenizer.standard()
    fox, dog = tokens.index("Ġfox"), tokens.index("Ġdog")
    tokens[fox], tokens[dog] = tokens[dog], tokens[fox]
    merges = [merge for merge in _text(QWEN_MERGES).splitlines()[1:] if merge != "Ġf ox"]
    changed = _write_qwen(tmp_path / "changed.gguf", tokens, token_merges=merges)
    assert llm_tokenizer([changed]).ids("a dog") == standard.ids("a fox")
    count = TokenCounting("qwen3", 512, (changed,)).count("a fox", TextOptions())
    assert (count.count, count.limit) == (len(standard.ids("a fox")) + 1, 512)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokenizer_pre": "llama-bpe"}, ""),
        ({"rows": 2}, "its tokenizer cannot be used (it has"),
        ({"token_merges": ["Ġf nowhere"]}, "its tokenizer cannot be used"),
    ],
)
def test_a_tokenizer_of_no_use_leaves_the_programs(
    changes: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = _write_qwen(tmp_path / "odd.gguf", ["Ġf", "o", "x"], **changes)
    with caplog.at_level(logging.WARNING):
        assert llm_tokenizer([path, tmp_path / "gone.gguf", tmp_path / "x.safetensors"]) is LlmTokenizer.standard()
    assert said in caplog.text and bool(said) == bool(caplog.records)
    assert own_t5([path]) is None
