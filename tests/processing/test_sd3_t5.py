"""T5 as SD3's third text encoder: where it is found, what it makes of prompts, and that a setting decides."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from modules.errors import CheckpointError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.memory.layer import stored_state
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.meta_model import build_meta_model
from modules.models.text_encoders.tokenizers import T5Tokenizer
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import OPTIONAL_ENCODERS, PrecisionOptions
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.models.family_files import family_tensors, write_family
from tests.models.tiny_t5 import (
    BUCKETS,
    HEAD_WIDTH,
    HEADS,
    LAYERS,
    MLP,
    PREFIX,
    VOCABULARY,
    WIDTH,
    t5_tensors,
    write_tokenizer,
)
from tests.recordings import CONFIGS, cpu_machine

PROMPT = "a red cat on a wall"
ON = {"sd3_enable_t5": True}


def engine_of(folder: Path) -> Engine:
    return Engine(
        CheckpointCatalogue([folder / "Stable-diffusion"], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine
    )


def write(
    folder: Path, t5: dict[str, Tensor] | None, inside: bool = False, tokenizer: str = "t5_tokenizer.json"
) -> Engine:
    """A checkpoint, T5 inside of it or beside it, and its tokenizer."""
    (folder / "Stable-diffusion").mkdir()
    (folder / "text_encoder").mkdir()
    if inside and t5 is not None:
        whole = {**family_tensors("sd3"), **{PREFIX + key: tensor for key, tensor in t5.items()}}
        save_file(whole, folder / "Stable-diffusion" / "sd3.safetensors")
    else:
        write_family(folder / "Stable-diffusion", "sd3")
        if t5 is not None:
            save_file(t5, folder / "text_encoder" / "t5xxl_fp16.safetensors")
    if tokenizer:
        write_tokenizer(folder / "text_encoder" / tokenizer)
    return engine_of(folder)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return write(tmp_path_factory.mktemp("t5"), t5_tensors())


def following(engine: Engine, prompt: str, **changes: Any) -> Tensor:
    """What follows the tokens of CLIP."""
    settings = Settings().with_changes({**ON, **changes})
    conditioner = engine.conditioner(None, PrecisionOptions.of(settings))
    ((cond, _),) = conditioner.encode([prompt], [""], 4, settings, (64, 64)).prompts[0].at(0)
    return cond.crossattn[cond.crossattn.shape[0] // 2 :]


def reference(tensors: dict[str, Tensor], ids: list[int]) -> Tensor:
    """The encoding of transformers itself, without anything of ours between."""
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=HEAD_WIDTH,
        d_ff=MLP,
        num_layers=LAYERS,
        num_heads=HEADS,
        relative_attention_num_buckets=BUCKETS,
        feed_forward_proj="gated-gelu",
    )
    model: Any = T5EncoderModel(config).eval()
    model.load_state_dict({**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"]})
    with torch.inference_mode():
        states: Tensor = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    return states


def reference_ids(folder: Path, text: str, length: int = 77) -> list[int]:
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_file=str(write_tokenizer(folder / "reference.json")), eos_token="</s>", pad_token="<pad>"
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False, truncation=False, padding=False)["input_ids"]
    return [*ids, 1, *[0] * (length - 1 - len(ids))]


@pytest.mark.parametrize(("inside", "tokenizer"), [(True, "t5_tokenizer.json"), (False, "t5xxl/tokenizer.json")])
def test_encodings_are_those_of_transformers(inside: bool, tokenizer: str, tmp_path: Path) -> None:
    engine = write(tmp_path, t5_tensors(), inside, tokenizer)
    expected = reference(t5_tensors(), reference_ids(tmp_path, PROMPT))
    assert expected.std() > 0.1
    torch.testing.assert_close(following(engine, PROMPT), expected, atol=1e-4, rtol=1e-4)


def test_a_second_name_for_the_table_of_tokens_is_left_out(tmp_path: Path) -> None:
    tensors = t5_tensors()
    twice = {**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"].clone()}
    expected = reference(tensors, reference_ids(tmp_path, PROMPT))
    torch.testing.assert_close(following(write(tmp_path, twice), PROMPT), expected, atol=1e-4, rtol=1e-4)


def test_weights_have_no_effect_and_their_brackets_are_left_out(engine: Engine) -> None:
    plain = following(engine, "a red cat")
    assert torch.equal(following(engine, "a (red:1.7) cat"), plain)
    assert torch.equal(following(engine, "a ((red)) [cat]"), plain)
    assert not torch.equal(following(engine, "a (red:1.7) cat", emphasis="None"), plain)


def test_it_has_as_many_tokens_as_the_others(engine: Engine, tmp_path: Path) -> None:
    assert following(engine, "cat " * 100).shape == (154, WIDTH)
    tokenizer = T5Tokenizer.from_file(write_tokenizer(tmp_path / "t.json"), VOCABULARY)
    assert tokenizer.ids("cat", 4) == [5, 1, 0, 0]
    assert tokenizer.ids("cat " * 9, 4) == [5, 5, 5, 5]
    assert tokenizer.ids("", 3) == [1, 0, 0]


def image(engine: Engine, **changes: Any) -> Result:
    settings = Settings().with_changes(
        {"samples_save": False, "grid_save": False, "return_grid": False, "live_previews_enable": False, **changes}
    )
    request = GenerationRequest(
        prompt=PROMPT, width=64, height=64, steps=2, seed=5, subseed=0, sampler="Euler", settings=settings
    )
    return generate(request, engine, Output(Path()), Silent())


def pixels(result: Result) -> np.ndarray[Any, Any]:
    return np.asarray(result.images[0].image)


def test_the_setting_decides(engine: Engine, tmp_path: Path) -> None:
    """Off it is not even read; the image says that it was on, and pasting that switches it on."""
    without = image(write(tmp_path, None))
    off = image(engine)
    assert not engine.model(None).has_optional
    on = image(engine, **ON)
    assert engine.model(None, PrecisionOptions(optional=OPTIONAL_ENCODERS)).has_optional
    assert (pixels(off) == pixels(without)).all() and (pixels(on) != pixels(off)).any()
    assert "T5" not in parse_infotext(off.images[0].infotext)
    assert override_settings_from(parse_infotext(on.images[0].infotext), Settings())["sd3_enable_t5"] is True
    assert (pixels(image(engine)) == pixels(off)).all()


def test_on_without_a_file_zeros_follow_and_a_notice_says_so(tmp_path: Path) -> None:
    engine = write(tmp_path, None)
    assert not following(engine, PROMPT).any()
    result = image(engine, **ON)
    assert any("t5xxl.safetensors" in notice for notice in result.notices)
    assert "T5" not in parse_infotext(result.images[0].infotext)


@pytest.mark.parametrize("storage", ["fp8_e4m3fn_row", "fp8_e4m3fn", "int8_row"])
def test_it_is_stored_in_8_bits_as_the_others(storage: str, engine: Engine) -> None:
    whole = following(engine, PROMPT)
    stored = following(engine, PROMPT, fp8_storage="Enable", fp8_format=storage)
    options = PrecisionOptions(optional=OPTIONAL_ENCODERS, fp8_storage="Enable", fp8_format=storage)
    module = engine.model(None, options).text_encoders["text_encoder_3"]
    layer = module.encoder.block[0].layer[1].DenseReluDense.wo
    assert stored_state(layer) is not None and layer._parameters["weight"].element_size() == 1
    assert 0 < (stored - whole).norm() / whole.norm() < 0.2


def test_streamed_weights_give_the_same_numbers(engine: Engine) -> None:
    assert torch.equal(following(engine, PROMPT, stream_weights="Blocks"), following(engine, PROMPT))


def test_a_file_in_8_bits_is_used_as_it_is(tmp_path: Path) -> None:
    narrow = {key: tensor.to(torch.float8_e4m3fn) for key, tensor in t5_tensors().items()}
    expected = reference({key: tensor.float() for key, tensor in narrow.items()}, reference_ids(tmp_path, PROMPT))
    torch.testing.assert_close(following(write(tmp_path, narrow), PROMPT), expected, atol=1e-4, rtol=1e-4)


def test_the_meta_model_counts_it_only_when_it_is_on(engine: Engine) -> None:
    info = engine.catalogue.default(None)
    names = [
        {item.name for item in build_meta_model(info, CONFIGS, optional=on).components}
        for on in ((), OPTIONAL_ENCODERS)
    ]
    assert names[1] - names[0] == {"text_encoder_3"}


def test_a_missing_tokenizer_is_named_with_its_place(tmp_path: Path) -> None:
    engine = write(tmp_path, t5_tensors(), tokenizer="")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json.*models/text_encoder/t5_tokenizer\.json"):
        following(engine, PROMPT)
    assert not following(engine, PROMPT, sd3_enable_t5=False).any()


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    engine = write(tmp_path, t5_tensors())
    (tmp_path / "text_encoder" / "t5_tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"t5_tokenizer\.json is no tokenizer"):
        following(engine, PROMPT)


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    engine = write(tmp_path, t5_tensors())
    write_tokenizer(tmp_path / "text_encoder" / "t5_tokenizer.json", tuple(f"word{n}" for n in range(9)))
    with pytest.raises(CheckpointError, match="not the tokenizer of this T5"):
        following(engine, PROMPT)


def test_a_t5_of_another_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="128 wide, and the model takes tokens of 256"):
        following(write(tmp_path, t5_tensors(128)), PROMPT)


@pytest.mark.parametrize(("hole", "message"), [("wi_0", "not whole"), ("block.1.layer.1.DenseReluDense.wo", "missing")])
def test_a_t5_with_a_hole_is_refused(hole: str, message: str, tmp_path: Path) -> None:
    tensors = {key: tensor for key, tensor in t5_tensors().items() if hole not in key}
    with pytest.raises(CheckpointError, match=message):
        following(write(tmp_path, tensors), PROMPT)
