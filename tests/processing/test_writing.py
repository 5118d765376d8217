"""What the text encoder of a checkpoint writes, against `generate` of transformers on the same tiny random weights."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3ForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.errors import CheckpointError, Interrupted, InvalidValueError
from modules.models.families.qwen_image import family as qwen_image_family
from modules.models.families.registry import FAMILIES
from modules.models.loading import encoder_parts
from modules.models.loading.encoder_parts import Tower
from modules.models.text_encoders.llm import head_component
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import for_describing, look
from modules.models.text_encoders.writing import ENDS
from modules.processing.engine import writing
from modules.processing.engine.writing import describe_image, write_prompt
from modules.prompting.writing import WriteOptions
from modules.settings.values import Settings
from tests.models.dit_files import full_header, write_split
from tests.models.dit_models import tiny_qwen
from tests.processing import test_krea2 as krea2
from tests.processing import test_qwen_image as qwen_image
from tests.processing.test_krea2 import write
from tests.processing.test_qwen_image_edit import IMAGE, picture, randomised
from tests.processing.test_z_image import engine_of

WORDS = "a fox in the snow"
GREEDY = WriteOptions(max_tokens=12, temperature=0.0)
DRAWN = WriteOptions(max_tokens=12, temperature=1.3, top_p=0.95, top_k=50, seed=7)


class Writer:
    """A tiny model of transformers with its head, and the files with the same weights."""

    def __init__(self, root: Path, model: Any, family: str, patch: int = 14, **normed: Any) -> None:
        self.root, self.model, self.family, self.patch, self.normed = root, model, FAMILIES.get(family), patch, normed

    def wanted(self, system: str, words: str, options: WriteOptions, image: Image.Image | None = None) -> list[int]:
        writing_ = self.family.texts.writing
        assert writing_ is not None
        text = f"<|im_start|>system\n{system.format(writing_.style)}<|im_end|>\n<|im_start|>user\n"
        text += "<|vision_start|><|image_pad|><|vision_end|>" if image is not None else ""
        ids = LlmTokenizer.standard().ids(f"{text}{words}<|im_end|>\n{writing_.answer}")
        inputs: dict[str, Any] = {}
        if image is not None:
            processor = Qwen2VLImageProcessorPil(patch_size=self.patch, max_pixels=28 * 28 * 1280, **self.normed)
            inputs = dict(processor(for_describing(image), return_tensors="pt"))
            count = int(inputs["image_grid_thw"].prod()) // 4
            ids = [token for each in ids for token in ([each] * count if each == IMAGE else [each])]
        given = torch.tensor([ids])
        if image is not None:
            inputs["mm_token_type_ids"] = (given == IMAGE).int()
        if options.temperature:
            torch.manual_seed(options.seed)
            inputs |= {"temperature": options.temperature, "top_p": options.top_p, "top_k": options.top_k}
        found = self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            max_new_tokens=options.max_tokens,
            do_sample=options.temperature > 0,
            eos_token_id=list(ENDS),
            pad_token_id=ENDS[0],
            **inputs,
        )
        return [token for token in found[0, given.shape[1] :].tolist() if token not in ENDS]


@pytest.fixture(scope="module")
def qwen25(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    root, parts = tmp_path_factory.mktemp("qwen25"), qwen_image.modules()
    text = parts["text"].config.text_config.to_dict()
    vision = {"depth": 2, "hidden_size": 80, "intermediate_size": 32, "num_heads": 1, "out_hidden_size": 256}
    torch.manual_seed(21)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False)
    model: Any = randomised(Qwen2_5_VLForConditionalGeneration(config))
    qwen_image.write_qwen_image(root, {**parts, "text": model.model})
    head = {"lm_head.weight": model.lm_head.weight}
    write(root / "text_encoder" / "a_vision_model.safetensors", {**qwen_image.seeing({"text": model.model}), **head})
    return Writer(root, model, "qwen_image")


@pytest.fixture(scope="module")
def qwen3_vl(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    root, parts = tmp_path_factory.mktemp("qwen3_vl"), krea2.modules()
    config = parts["text"].config
    vision = {
        **config.vision_config.to_dict(),
        **{"depth": 18, "hidden_size": 64, "num_heads": 16, "deepstack_visual_indexes": [5, 11, 17]},
    }
    torch.manual_seed(22)
    made = Qwen3VLConfig(text_config=config.text_config.to_dict(), vision_config=vision, tie_word_embeddings=True)
    model: Any = randomised(Qwen3VLForConditionalGeneration(made))
    krea2.write_krea2(root, {**parts, "text": model.model})
    return Writer(root, model, "krea2", patch=16, image_mean=[0.5] * 3, image_std=[0.5] * 3)


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """One whose last layer and norm reading does without."""
    root, config = tmp_path_factory.mktemp("qwen3"), tiny_qwen().config
    write_split(root, "zimage-turbo-cfg1")
    config.tie_word_embeddings = True
    torch.manual_seed(23)
    model: Any = randomised(Qwen3ForCausalLM(config))
    write(root / "text_encoder" / "qwen3_4b_tiny.safetensors", model.model.state_dict())
    return Writer(root, model, "z_image")


def text_of(ids: list[int]) -> str:
    return LlmTokenizer.standard().text(ids).strip()


@pytest.fixture(params=["qwen25", "qwen3_vl", "qwen3"])
def writer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("options", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_prompt_is_written_as_transformers_writes_it(writer: Writer, options: WriteOptions) -> None:
    wanted = writer.wanted(writing.WRITE, WORDS, options)
    told: list[tuple[int, int]] = []
    found = write_prompt(engine_of(writer.root), WORDS, Settings(), options, lambda *now: told.append(now))
    assert found.text == text_of(wanted) and found.is_whole == (len(wanted) < options.max_tokens)
    assert told == [(number + 1, options.max_tokens) for number in range(len(wanted))]


@pytest.mark.parametrize("name", ["qwen25", "qwen3_vl"])
def test_an_image_is_described_as_transformers_describes_it(name: str, request: pytest.FixtureRequest) -> None:
    writer: Writer = request.getfixturevalue(name)
    image = picture((150, 90))
    wanted = writer.wanted(writing.DESCRIBE, writing.ASKED, GREEDY, image)
    found = describe_image(engine_of(writer.root), image, Settings(), options=GREEDY)
    assert found.text == text_of(wanted)
    assert found.text != describe_image(engine_of(writer.root), picture((150, 90), 1), Settings(), options=GREEDY).text


@pytest.mark.parametrize(
    "changes",
    [
        {"stream_weights": "Layers"},
        {"stream_weights": "Blocks", "fp8_storage": "Enable", "fp8_format": "int8_row"},
        {"fp8_storage": "Enable"},
    ],
)
def test_a_streamed_or_stored_model_writes_too(qwen3: Writer, changes: dict[str, Any]) -> None:
    plain = write_prompt(engine_of(qwen3.root), WORDS, Settings(), GREEDY).text
    settings = Settings().with_changes(changes)
    engine = engine_of(qwen3.root)
    found = write_prompt(engine, WORDS, settings, GREEDY).text
    assert found == write_prompt(engine, WORDS, settings, GREEDY).text
    assert found == plain or "fp8_storage" in changes
    assert not engine.auxiliaries.here  # what only writing needs is gone again


def test_writing_is_seeded_bounded_and_stops(qwen3: Writer) -> None:
    engine = engine_of(qwen3.root)
    wild = WriteOptions(max_tokens=8, temperature=2.0, top_k=0, top_p=1.0)
    first, again, other = (write_prompt(engine, WORDS, Settings(), replace(wild, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other and not first.is_whole

    def stop(done: int, most: int) -> None:
        if done == 3:
            raise Interrupted

    with pytest.raises(Interrupted):
        write_prompt(engine, WORDS, Settings(), GREEDY, stop)
    assert write_prompt(engine, WORDS, Settings(), GREEDY).text  # and goes on afterwards


def test_what_cannot_be_written_says_why(qwen3: Writer) -> None:
    engine = engine_of(qwen3.root)
    with pytest.raises(InvalidValueError, match="There are no words to write a prompt from"):
        write_prompt(engine, "  ", Settings(), GREEDY)
    with pytest.raises(InvalidValueError, match="at most 20000 can be rewritten"):
        write_prompt(engine, "x" * 20_001, Settings(), GREEDY)
    with pytest.raises(CheckpointError, match=r"\(Z-Image.*\) has no text encoder that sees images and writes. Choose"):
        describe_image(engine, picture((8, 8)), Settings())
    with pytest.raises(InvalidValueError, match="max_tokens is 5000; it must be 1 to 1024"):
        WriteOptions(max_tokens=5000)


def test_an_encoder_without_its_head_or_last_layers_says_what_is_missing() -> None:
    prefix = "text_encoders.qwen25_7b.transformer"
    header = full_header("te-qwen2.5-vl-7b", f"{prefix}.")
    states = qwen_image_family.TEXTS.states
    head: Any = head_component(header, prefix, states).module
    assert head.lm_head.weight.shape == (152_064, 3584)
    for missing in ("lm_head.weight", "model.norm.weight"):
        less = {key: entry for key, entry in header.items() if key != f"{prefix}.{missing}"}
        with pytest.raises(CheckpointError, match=f"cannot write: it has no {prefix}.{missing}. Use an encoder file"):
            head_component(less, prefix, states)


def test_an_image_that_is_described_again_is_not_looked_at_again(
    qwen25: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(encoder_parts, "look", lambda *given: looked.append(given[1]) or look(*given))
    engine, options = engine_of(qwen25.root), WriteOptions(max_tokens=4, temperature=0.0)

    def describe(seed: int) -> str:
        return describe_image(engine, picture((150, 90), seed), Settings(), options=options).text

    first = describe(0)
    assert describe(0) == first and len(looked) == 1
    describe(1)
    assert describe(0) == first and len(looked) == 2
    engine.unload()
    assert describe(0) == first and len(looked) == 3
    kept = Tower(engine.model(None))
    monkeypatch.setattr(encoder_parts, "MAX_SIGHTS_BYTES", kept.see([picture((56, 56))])[0].size_bytes)
    for seed in (0, 1, 0, 0):  # one has room
        kept.see([picture((56, 56), seed)])
    assert len(looked) == 6


@pytest.mark.parametrize("size", [(1, 1), (20_000, 2)])
def test_images_of_any_size_are_described(qwen25: Writer, size: tuple[int, int]) -> None:
    options = WriteOptions(max_tokens=2, temperature=0.0)
    assert not describe_image(
        engine_of(qwen25.root), Image.new("RGB", size, "teal"), Settings(), options=options
    ).is_whole
