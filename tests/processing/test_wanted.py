"""Which checkpoint a job is made with, where the one in the settings is missing."""

from pathlib import Path

import pytest

from modules.errors import CheckpointError, UnknownNameError
from modules.models.reading.catalogue import CheckpointCatalogue, HashCache
from modules.processing.checking import check_names
from modules.processing.engine.chosen_checkpoint import Wanted, stored_checkpoint, wanted_checkpoint
from modules.processing.request import GenerationRequest
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
