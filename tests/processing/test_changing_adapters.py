"""Network files that change between two jobs: what is used, cached and recorded is what the file holds now."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.adapters.adapter_facts import digests_of
from modules.images.infotext import parse_infotext
from modules.models.files.header import read_metadata
from modules.processing.engine.engine import Engine
from tests.extensions import adapters_of
from tests.processing.test_fp8_images import SHORT, make, pixels
from tests.recordings import REFERENCE, tiny_adapters

SOURCE = REFERENCE / "models" / "Lora" / "tiny-lora-a.safetensors"
RECORDED = digests_of(SOURCE).tensors
METADATA = {**read_metadata(SOURCE), "sshs_model_hash": RECORDED}
PROMPT = {**SHORT, "prompt": "a red cat <lora:mine:1>"}


def scaled(factor: float) -> dict[str, Tensor]:
    """The tensors of a network of which every change is so many times as large."""
    return {key: tensor * factor if "lora_up" in key else tensor for key, tensor in load_file(SOURCE).items()}


def test_a_file_that_is_rewritten_is_read_again_whatever_hash_it_records(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "Lora"
    folder.mkdir()
    engine.adapters = adapters_of(folder)
    save_file(scaled(1), folder / "mine.safetensors", METADATA)
    first = make(engine, tmp_path, PROMPT, {})
    save_file(scaled(2), folder / "mine.safetensors", METADATA)
    second = make(engine, tmp_path, PROMPT, {})
    save_file(scaled(1), folder / "mine.safetensors", METADATA)
    third = make(engine, tmp_path, PROMPT, {})
    assert (pixels(first) != pixels(second)).any()
    assert (pixels(first) == pixels(third)).all()
    hashes = [parse_infotext(result.samples[0].infotext)["Lora hashes"] for result in (first, second)]
    assert hashes[0] == f"mine: {RECORDED[:12]}"
    assert hashes[1] == f"mine: {adapter_hash_of(scaled(2), tmp_path)}"


def adapter_hash_of(tensors: dict[str, Tensor], folder: Path) -> str:
    save_file(tensors, folder / "other.safetensors")
    return digests_of(folder / "other.safetensors").tensors[:12]


def test_another_file_with_the_same_recorded_hash_is_another_adapter(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "Lora"
    folder.mkdir()
    engine.adapters = adapters_of(folder)
    save_file(scaled(1), folder / "mine.safetensors", METADATA)
    save_file(scaled(2), folder / "copy.safetensors", {**METADATA, "ss_output_name": "copy"})
    one = make(engine, tmp_path, PROMPT, {})
    two = make(engine, tmp_path, {**PROMPT, "prompt": "a red cat <lora:copy:1>"}, {})
    assert (pixels(one) != pixels(two)).any()


def test_the_same_bytes_under_other_names_are_another_content(tmp_path: Path) -> None:
    save_file({"a.diff": torch.ones(4, 4)}, tmp_path / "a.safetensors")
    save_file({"b.diff": torch.ones(4, 4)}, tmp_path / "b.safetensors")
    a, b = digests_of(tmp_path / "a.safetensors"), digests_of(tmp_path / "b.safetensors")
    assert a.tensors == b.tensors
    assert a.content != b.content


@pytest.mark.parametrize("content", [b"ab", b"\xff" * 12])
def test_a_file_that_is_too_short_is_said_to_be(content: bytes, engine: Engine, tmp_path: Path) -> None:
    from modules.adapters.adapter_facts import AdapterError

    folder = tmp_path / "Lora"
    folder.mkdir()
    engine.adapters = adapters_of(folder)
    (folder / "mine.safetensors").write_bytes(content)
    with pytest.raises(AdapterError, match=r"mine\.safetensors: cannot be read .it is"):
        make(engine, tmp_path, PROMPT, {})


def test_a_hypernetwork_that_is_rewritten_is_read_again(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "hypernetworks"
    folder.mkdir()
    engine.adapters = adapters_of(hypernetworks=folder)
    images = []
    for size in (0.0, 0.5):
        torch.save({width: (state(width, size), state(width, size)) for width in (32, 64)}, folder / "hyper.pt")
        images.append(pixels(make(engine, tmp_path, {**PROMPT, "prompt": "a cat <hypernet:hyper:1>"}, {})))
    assert (images[0] != images[1]).any()


def state(width: int, size: float) -> dict[str, Tensor]:
    weight = torch.randn(width, width, generator=torch.Generator().manual_seed(width)) * size
    return {"linear.0.weight": weight, "linear.0.bias": torch.zeros(width)}


def test_an_embedding_inside_of_an_adapter_is_recorded_by_the_adapters_name(engine: Engine, tmp_path: Path) -> None:
    engine.adapters = adapters_of(SOURCE.parent)
    payload = {**PROMPT, "prompt": "a tinybundled cat <lora:tiny-bundle:1>"}
    written = [
        parse_infotext(make(engine, tmp_path, payload, {"lora_bundled_ti_to_infotext": on}).samples[0].infotext)
        for on in (True, False)
    ]
    assert [fields.get("TI hashes") for fields in written] == ["tinybundled: tiny-bundle", None]


def test_names_with_colons_are_found_applied_and_recorded(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "Lora"
    folder.mkdir()
    save_file(scaled(1), folder / "col:on, [x].safetensors")
    engine.adapters = adapters_of(folder)
    plain = make(engine, tmp_path, {**PROMPT, "prompt": "a red cat "}, {})
    result = make(engine, tmp_path, {**PROMPT, "prompt": "a red cat <lora:col:on, [x]:0.8>"}, {})
    assert not result.notices
    assert (pixels(plain) != pixels(result)).any()
    assert parse_infotext(result.samples[0].infotext)["Lora hashes"] == f"colon [x]: {RECORDED[:12]}"
    added = {"sd_lora": "col:on, [x]"}
    again = make(engine, tmp_path, {**PROMPT, "prompt": "a red cat <lora:col:on, [x]:0.8>"}, added)
    assert (pixels(again) == pixels(result)).all()


@pytest.mark.parametrize(
    ("setting", "tag"), [("sd_lora", "<lora:tiny-lora-a:1.0>"), ("sd_hypernetwork", "<hypernet:tiny-hyper:1.0>")]
)
def test_a_network_from_the_settings_is_recorded_as_its_tag(
    engine: Engine, tmp_path: Path, setting: str, tag: str
) -> None:
    engine.adapters = tiny_adapters()
    name = tag.split(":")[1]
    made = make(engine, tmp_path, SHORT, {setting: name})
    recorded = str(parse_infotext(made.samples[0].infotext)["Prompt"])
    assert recorded == f"{SHORT['prompt']}{tag}" == made.info.prompts[0]
    again = make(engine, tmp_path, {**SHORT, "prompt": recorded}, {})
    assert (pixels(again) == pixels(made)).all()
    assert again.samples[0].infotext == made.samples[0].infotext
    twice = make(engine, tmp_path, {**SHORT, "prompt": recorded}, {setting: name})
    assert twice.samples[0].infotext == made.samples[0].infotext


def test_a_network_from_the_settings_that_is_missing_is_not_recorded(engine: Engine, tmp_path: Path) -> None:
    made = make(engine, tmp_path, SHORT, {"sd_lora": "gone"})
    assert parse_infotext(made.samples[0].infotext)["Prompt"] == SHORT["prompt"]
    assert any("'gone' was not found" in notice for notice in made.notices)
