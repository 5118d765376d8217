"""Which checkpoint a job is made with, where the one in the settings is missing."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError, UnknownNameError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.chosen_checkpoint import Wanted, store_first_loaded, stored_checkpoint, wanted_checkpoint
from modules.processing.request.checking import check_names
from modules.processing.request.request import GenerationRequest
from modules.settings.store import SettingsStore
from modules.settings.values import Settings

GONE = Settings().changed(sd_model_checkpoint="gone.safetensors")


@pytest.fixture
def catalogue(tmp_path: Path) -> CheckpointCatalogue:
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(b"not looked at")
    return CheckpointCatalogue((tmp_path,), HashCache(tmp_path / "hashes.json"))


def test_what_a_request_names_goes_first_there_or_not(catalogue: CheckpointCatalogue) -> None:
    for name in ("b", "gone"):
        request = GenerationRequest(prompt="a cat", checkpoint=name, settings=GONE)
        assert wanted_checkpoint(request, catalogue) == Wanted(name)
    with pytest.raises(UnknownNameError, match="Unknown checkpoint 'gone'"):
        check_names(request, catalogue)


def test_a_stored_one_that_is_gone_gives_way_to_the_first(catalogue: CheckpointCatalogue) -> None:
    request = GenerationRequest(prompt="a cat", settings=GONE)
    check_names(request, catalogue)
    wanted = wanted_checkpoint(request, catalogue)
    assert wanted.name == "a.safetensors"
    assert wanted.notice.startswith(
        "The checkpoint 'gone.safetensors' of the settings is missing; a.safetensors was used"
    )


def test_a_stored_one_that_is_there_is_taken_without_a_word(catalogue: CheckpointCatalogue) -> None:
    stored = Settings().changed(sd_model_checkpoint="b.safetensors")
    assert stored_checkpoint(stored, catalogue) == Wanted("b.safetensors")
    assert stored_checkpoint(Settings(), catalogue) == Wanted()


def test_without_any_checkpoint_it_is_said_where_they_belong(tmp_path: Path) -> None:
    empty = CheckpointCatalogue((tmp_path,), HashCache(tmp_path / "hashes.json"))
    with pytest.raises(CheckpointError, match="Put a Stable Diffusion checkpoint there"):
        empty.default(stored_checkpoint(GONE, empty).name)


def test_what_is_used_first_becomes_the_choice_and_stays_it(catalogue: CheckpointCatalogue, tmp_path: Path) -> None:
    settings = SettingsStore(tmp_path / "config.json")
    store_first_loaded(settings, catalogue, catalogue.get("b"))  # a request named it: nobody chose it
    assert settings.current.stable_diffusion.sd_model_checkpoint == ""
    store_first_loaded(settings, catalogue, catalogue.get("a"))
    (tmp_path / "0.safetensors").write_bytes(b"sorts first")
    catalogue.refresh()
    assert catalogue.default(None).name == "0.safetensors"
    assert stored_checkpoint(settings.current, catalogue) == Wanted("a.safetensors")
    store_first_loaded(settings, catalogue, catalogue.get("0"))
    assert SettingsStore(tmp_path / "config.json").current.stable_diffusion.sd_model_checkpoint == "a.safetensors"


def test_a_choice_that_is_locked_stays_open(catalogue: CheckpointCatalogue, tmp_path: Path) -> None:
    settings = SettingsStore(tmp_path / "config.json", locked=("sd_model_checkpoint",))
    store_first_loaded(settings, catalogue, catalogue.get("a"))
    assert settings.current.stable_diffusion.sd_model_checkpoint == ""


def other_files(folder: Path) -> None:
    """Adapters and embeddings in the formats that people keep, named so that they sort first."""
    row = torch.ones(2, 8)
    save_file({"lora_unet_down_blocks_0.lora_up.weight": row}, folder / "0-lora.safetensors")
    save_file({"unet.down.lora_A.weight": row}, folder / "0-peft.safetensors")
    save_file({"lycoris_blocks_0.hada_w1_a": row}, folder / "0-loha.safetensors")
    save_file({"emb_params": row}, folder / "0-embedding.safetensors")
    save_file({"clip_l": row, "clip_g": row.clone()}, folder / "0-sdxl.safetensors")
    torch.save({"string_to_param": {"*": row}, "name": "x", "step": 3}, folder / "0-embedding.pt")
    torch.save({"lora_te_x.lora_down.weight": row}, folder / "0-lora.pt")
    torch.save({"string_to_param": {"*": row}}, folder / "0-old.pt", _use_new_zipfile_serialization=False)


def test_adapters_and_embeddings_are_never_the_default(tmp_path: Path) -> None:
    other_files(tmp_path)
    catalogue = CheckpointCatalogue((tmp_path,), HashCache(tmp_path / "hashes.json"))
    assert len(catalogue.entries) == 8 and catalogue.first is None
    with pytest.raises(CheckpointError, match="There is no checkpoint"):
        catalogue.default(None)
    save_file({"model.diffusion_model.input_blocks.0.0.weight": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "model.ckpt").write_bytes(b"broken: loading will say so")
    catalogue.refresh()
    assert catalogue.default(None).name == "model.ckpt"
    (tmp_path / "model.ckpt").unlink()
    catalogue.refresh()
    assert catalogue.default(None).name == "model.safetensors"
