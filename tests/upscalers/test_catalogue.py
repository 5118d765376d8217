"""Upscaler files: found by kind, named as the reference UI names them, found by name in any case."""

from pathlib import Path

import pytest

from modules.upscalers.catalogue import UpscalerCatalogue


def catalogue_of(root: Path, *files: str) -> UpscalerCatalogue:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return UpscalerCatalogue({kind: root / kind for kind in ("ESRGAN", "RealESRGAN", "SwinIR", "DAT")})


def test_files_of_all_folders_are_found(tmp_path: Path) -> None:
    files = ("ESRGAN/4x-Sharp.pth", "ESRGAN/sub/b.safetensors", "SwinIR/s.pt", "ESRGAN/note.txt", "Other/x.pth")
    found = catalogue_of(tmp_path, *files)
    assert found.names == ("4x-Sharp", "b", "s")
    assert [info.type.folder for info in found.entries] == ["ESRGAN", "ESRGAN", "SwinIR"]


def test_well_known_files_have_the_names_that_infotexts_use(tmp_path: Path) -> None:
    found = catalogue_of(tmp_path, "RealESRGAN/RealESRGAN_x4plus_anime_6B.pth", "DAT/DAT_x2.pth")
    assert found.names == ("R-ESRGAN 4x+ Anime6B", "DAT x2")


def test_a_name_that_is_taken_gets_its_folder(tmp_path: Path) -> None:
    found = catalogue_of(tmp_path, "ESRGAN/a.pth", "SwinIR/a.pth")
    assert found.names == ("a", "a (SwinIR)")


def test_names_are_found_in_any_case_and_after_a_refresh(tmp_path: Path) -> None:
    found = catalogue_of(tmp_path)
    assert found.find("4X-sharp") is None
    catalogue_of(tmp_path, "ESRGAN/4x-Sharp.pth")
    found.refresh()
    info = found.find("4X-sharp")
    assert info is not None and info.path.name == "4x-Sharp.pth"


@pytest.mark.parametrize(
    ("stem", "scale"),
    [
        ("4x-UltraSharp", 4),
        ("2x_Anime", 2),
        ("RealESRGAN_x2plus", 2),
        ("8x_NMKD", 8),
        ("realesr-general-x4v3", 4),
        ("net_512x512", 4),
        ("plain", 4),
    ],
)
def test_the_scale_is_read_from_the_name(tmp_path: Path, stem: str, scale: int) -> None:
    (info,) = catalogue_of(tmp_path, f"ESRGAN/{stem}.pth").entries
    assert info.scale == scale
