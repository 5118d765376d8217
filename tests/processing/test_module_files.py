"""Images with a model whose denoiser, text encoder and VAE are files of their own."""

from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError, UnknownNameError
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from modules.ui.form.form import parse_overrides, show_override
from tests.models.files import tiny_tensors, write_checkpoint
from tests.models.gguf_files import denoiser_only, write_gguf
from tests.processing.test_vae_files import make, pixels
from tests.recordings import CONFIGS, cpu_machine

KEY = "forge_additional_modules"
BEGINNINGS = {"text": "cond_stage_model.transformer.", "ae": "first_stage_model."}


def part(name: str) -> dict[str, Tensor]:
    begin = BEGINNINGS[name]
    return {key.removeprefix(begin): value for key, value in tiny_tensors().items() if key.startswith(begin)}


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    for name in ("models", "modules"):
        (tmp_path / name).mkdir()
    write_checkpoint(tmp_path / "models" / "tiny.safetensors", tiny_tensors())
    write_checkpoint(tmp_path / "models" / "unet.safetensors", denoiser_only(tiny_tensors()))
    for name in BEGINNINGS:
        save_file(part(name), tmp_path / "modules" / f"{name}.safetensors")
    hashes = HashCache(tmp_path / "hashes.json")
    modules = ModuleCatalogue([tmp_path / "modules"])
    return Engine(
        CheckpointCatalogue([tmp_path / "models"], hashes), CONFIGS, cpu_machine, models=ExtraModels(modules=modules)
    )


def test_a_split_model_makes_the_image_of_the_whole_one_and_says_its_parts(engine: Engine, tmp_path: Path) -> None:
    whole = make(engine, tmp_path)
    split = make(engine, tmp_path, "unet", forge_additional_modules=("ae.safetensors", "text"))
    assert pixels(split) == pixels(whole)
    parsed = parse_infotext(split.images[0].infotext)
    assert (parsed["Module 1"], parsed["Module 2"]) == ("ae", "text")
    restored = override_settings_from(parsed, Settings())
    assert restored[KEY] == ("ae", "text")
    shown = show_override(SETTINGS.get(KEY), restored[KEY])
    assert parse_overrides([shown]) == {KEY: ("ae", "text")}
    assert "Module 1" not in whole.images[0].infotext


def test_a_part_takes_the_place_of_what_the_checkpoint_has(engine: Engine, tmp_path: Path) -> None:
    whole = make(engine, tmp_path)
    darker = part("ae")
    darker["decoder.conv_out.bias"] = darker["decoder.conv_out.bias"] - 0.5
    save_file(darker, tmp_path / "modules" / "dark.safetensors")
    other = make(engine, tmp_path, forge_additional_modules=("dark",))
    assert pixels(other) != pixels(whole)
    assert pixels(make(engine, tmp_path)) == pixels(whole)


def test_a_quantized_denoiser_makes_nearly_the_same_image(engine: Engine, tmp_path: Path) -> None:
    whole = make(engine, tmp_path)
    path = write_gguf(tmp_path / "models" / "small.gguf", denoiser_only(tiny_tensors()), "Q8_0", "sd1")
    path.with_suffix(".yaml").write_bytes((tmp_path / "models" / "tiny.yaml").read_bytes())
    engine.catalogue.refresh()
    small = make(engine, tmp_path, "small", forge_additional_modules=("ae", "text"))
    differences = [abs(a - b) for a, b in zip(pixels(small), pixels(whole), strict=True)]
    assert 0 < max(differences) <= 24 and sum(differences) / len(differences) < 4
    assert any("gguf_q8_0; no further error" in notice for notice in small.notices)


def test_what_is_missing_or_has_no_place_is_refused_by_name(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"text encoder or VAE file.*nope.*ae\.safetensors"):
        make(engine, tmp_path, "unet", forge_additional_modules=("nope",))
    with pytest.raises(CheckpointError, match=r"unet\.safetensors: no vae found"):
        make(engine, tmp_path, "unet", forge_additional_modules=("text",))
    save_file({"some.weight": part("ae")["decoder.conv_out.bias"]}, tmp_path / "modules" / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"other\.safetensors: is no VAE, and no text encoder.*Take it out"):
        make(engine, tmp_path, "unet", forge_additional_modules=("other",))
