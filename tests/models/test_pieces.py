"""Models whose files come in several pieces, as the Hub lays them out, are joined when they are chosen or found."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.images.infotext import parse_infotext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.models.files.pieces import first_piece, pieces_of, without_later_pieces
from modules.models.names.view import open_whole
from modules.models.opening.checkpoint import open_checkpoint
from modules.settings.values import Settings
from tests.models.split_models import save, split_model
from tests.processing.test_z_image import engine_of, made, pixels

NAMES = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def in_pieces(folder: Path, tensors: Mapping[str, Tensor]) -> list[Path]:
    """Three files, each with a third of the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        save_file({key: tensors[key].contiguous() for key in list(tensors)[number::3]}, folder / name)
    return [folder / name for name in NAMES]


def test_names_of_pieces(tmp_path: Path) -> None:
    for name in (*NAMES, "a.safetensors"):
        (tmp_path / name).touch()
    pieces = [tmp_path / name for name in NAMES]
    assert list(pieces_of(pieces[1])) == pieces and pieces_of(tmp_path / "a.safetensors") == (
        tmp_path / "a.safetensors",
    )
    assert first_piece(pieces[2]) == pieces[0]
    assert without_later_pieces([pieces[2], tmp_path / "a.safetensors", pieces[1]]) == [
        tmp_path / "a.safetensors",
        pieces[1],
    ]


def test_a_missing_piece_is_named_with_its_place(tmp_path: Path) -> None:
    pieces = in_pieces(tmp_path / "Stable-diffusion", split_model("z_image").denoiser)
    pieces[1].unlink()
    with pytest.raises(CheckpointError, match=rf"{NAMES[0]}: is one of 3 pieces.*{NAMES[1]} cannot be found\. Put all"):
        open_checkpoint(pieces[0])


def test_pieces_of_different_models_are_refused(tmp_path: Path) -> None:
    pieces = in_pieces(tmp_path, split_model("z_image").denoiser)
    pieces[1].write_bytes(pieces[0].read_bytes())
    with pytest.raises(CheckpointError, match=rf"is in {NAMES[0]} and in {NAMES[1]}, which are no pieces of one model"):
        open_whole(pieces[2])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    root = tmp_path_factory.mktemp("whole")
    split_model("z_image").write(root)
    return pixels(made(engine_of(root), root))


def test_denoiser_and_encoder_in_pieces_make_the_image_of_whole_files(
    whole: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", tmp_path: Path
) -> None:
    model = split_model("z_image")
    in_pieces(tmp_path / "Stable-diffusion", model.denoiser)
    in_pieces(tmp_path / "text_encoder" / "qwen3", model.texts["qwen3_4b_tiny"][1])
    save(tmp_path / "VAE" / "vae.safetensors", model.vae)
    engine = engine_of(tmp_path)
    assert [info.name for info in engine.catalogue.entries] == NAMES[:1]
    assert [info.name for info in ModuleCatalogue([tmp_path / "text_encoder"]).entries] == NAMES[:1]
    for settings in (Settings(), Settings().with_changes({"stream_weights": "Layers"})):
        result = made(engine, tmp_path, settings)
        assert np.array_equal(pixels(result), whole)
        fields = parse_infotext(result.images[0].infotext)
        assert sorted(value for key, value in fields.items() if key.startswith("Module ")) == [NAMES[0][:-12], "vae"]


def test_the_hash_of_pieces_is_that_of_the_list_of_their_hashes(tmp_path: Path) -> None:
    pieces = in_pieces(tmp_path / "models", split_model("z_image").denoiser)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in pieces]
    catalogue = CheckpointCatalogue([tmp_path / "models"], HashCache(tmp_path / "hashes.json"))
    (info,) = catalogue.entries
    assert info.size_bytes == sum(path.stat().st_size for path in pieces)
    assert catalogue.with_hash(info).sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()
    assert catalogue.refresh()[0].sha256 is not None
