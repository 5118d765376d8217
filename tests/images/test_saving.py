"""Images on disk."""

import errno
import logging
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from PIL import Image

from modules.errors import OutputError
from modules.images.claims import claim_number
from modules.images.metadata import read_metadata
from modules.images.naming import NameContext
from modules.images.saving import grids_folder, samples_folder, save_image
from modules.settings.values import Settings

CONTEXT = NameContext(seed=42, prompt="a cat", now=datetime(2024, 5, 6, tzinfo=UTC))
IMAGE = Image.new("RGB", (16, 8), "red")
INFOTEXT = "a cat\nSteps: 1, Sampler: Euler, Seed: 42"


def names(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_default_name_and_the_infotext_inside(tmp_path: Path) -> None:
    path = save_image(IMAGE, tmp_path, Settings(), CONTEXT, INFOTEXT)
    assert path == tmp_path / "2024-05-06" / "00000-42.png"
    assert read_metadata(path) == (INFOTEXT, {})
    assert names(tmp_path) == ["2024-05-06/00000-42.png"]


def test_numbers_continue_the_largest_present(tmp_path: Path) -> None:
    (tmp_path / "2024-05-06").mkdir()
    (tmp_path / "2024-05-06" / "00041-x.jpg").touch()
    paths = [save_image(IMAGE, tmp_path, Settings(), CONTEXT) for _ in range(2)]
    assert [path.name for path in paths] == ["00042-42.png", "00043-42.png"]


def test_a_placeholder_of_a_killed_program_only_costs_its_number(tmp_path: Path) -> None:
    (tmp_path / ".00000.saving").touch()
    settings = Settings().changed(save_to_dirs=False)
    assert save_image(IMAGE, tmp_path, settings, CONTEXT).name == "00001-42-a cat.png"


def test_a_suffix_ends_the_name(tmp_path: Path) -> None:
    path = save_image(IMAGE, tmp_path, Settings(), CONTEXT, suffix="-before-highres-fix")
    assert path.name == "00000-42-before-highres-fix.png"


def test_grids_have_their_own_names_and_numbers(tmp_path: Path) -> None:
    settings = Settings().changed(grid_save_to_dirs=False, grid_format="jpg")
    (tmp_path / "00007-1.png").touch()
    assert save_image(IMAGE, tmp_path, settings, CONTEXT, is_grid=True).name == "grid-0000.jpg"
    settings = settings.changed(grid_extended_filename=True, samples_filename_pattern="[seed]")
    assert save_image(IMAGE, tmp_path, settings, CONTEXT, is_grid=True).name == "grid-0001-42.jpg"


@pytest.mark.parametrize("extension", ["png", "jpg", "jpeg", "webp", "avif"])
def test_every_format_carries_the_infotext(tmp_path: Path, extension: str) -> None:
    path = save_image(IMAGE, tmp_path, Settings().changed(samples_format=extension), CONTEXT, INFOTEXT)
    assert path.suffix == f".{extension}"
    assert read_metadata(path)[0] == INFOTEXT


def test_the_infotext_can_be_kept_out_and_put_beside(tmp_path: Path) -> None:
    settings = Settings().changed(enable_pnginfo=False, save_txt=True)
    path = save_image(IMAGE, tmp_path, settings, CONTEXT, INFOTEXT)
    assert read_metadata(path) == (None, {})
    assert path.with_suffix(".txt").read_text(encoding="utf-8") == f"{INFOTEXT}\n"


@pytest.mark.parametrize(
    ("extension", "size", "infotext"),
    [("jpg", (65_536, 1), None), ("webp", (16_384, 1), None), ("jpg", (8, 8), "x" * 100_000)],
)
def test_what_does_not_fit_is_saved_as_png(
    tmp_path: Path, extension: str, size: tuple[int, int], infotext: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings().changed(samples_format=extension, export_for_4chan=False)
    path = save_image(Image.new("RGB", size), tmp_path, settings, CONTEXT, infotext)
    assert path.suffix == ".png"
    assert read_metadata(path)[0] == infotext
    assert "saved as PNG" in caplog.text


def test_without_numbers_a_file_is_replaced_or_gets_a_suffix(tmp_path: Path) -> None:
    settings = Settings().changed(save_images_add_number=False)
    for color in ("red", "blue"):
        path = save_image(Image.new("RGB", (1, 1), color), tmp_path, settings, CONTEXT)
    assert names(tmp_path) == ["2024-05-06/42.png"]
    with Image.open(path) as image:
        assert image.getpixel((0, 0)) == (0, 0, 255)
    settings = settings.changed(save_images_replace_action="Add number suffix")
    kept = [save_image(IMAGE, tmp_path, settings, CONTEXT).name for _ in range(2)]
    assert kept == ["42-1.png", "42-2.png"]
    assert save_image(IMAGE, tmp_path, settings.changed(samples_filename_pattern="[none]"), CONTEXT).stem == "00000"


def test_a_large_image_gets_a_jpg_copy(tmp_path: Path) -> None:
    settings = Settings().changed(target_side_length=100)
    path = save_image(Image.new("RGB", (400, 200)), tmp_path, settings, CONTEXT, INFOTEXT)
    with Image.open(path.with_suffix(".jpg")) as copy:
        assert copy.size == (100, 50)
    assert read_metadata(path.with_suffix(".jpg"))[0] == INFOTEXT
    heavy = settings.changed(target_side_length=4000, img_downscale_threshold=0.0)
    with Image.open(save_image(IMAGE, tmp_path, heavy, CONTEXT).with_suffix(".jpg")) as copy:
        assert copy.size == IMAGE.size
    for off in ({"export_for_4chan": False}, {"samples_format": "jpg"}):
        folder = tmp_path / str(off)[2:10]
        save_image(Image.new("RGB", (400, 200)), folder, settings.with_changes(off), CONTEXT)
        assert len(names(folder)) == 1


def test_threads_never_collide(tmp_path: Path) -> None:
    def save(seed: int) -> None:
        for _ in range(10):
            save_image(IMAGE, tmp_path, Settings(), NameContext(seed=seed, now=CONTEXT.now))

    threads = [threading.Thread(target=save, args=(seed % 2,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(int(name.split("/")[1][:5]) for name in names(tmp_path)) == list(range(40))


def test_a_published_claim_leaves_the_next_claim_of_its_number_alone(tmp_path: Path) -> None:
    """Another thread that looked before the publication may claim the same placeholder right after it."""
    with claim_number(tmp_path) as claim:
        claim.publish("00000.png", b"image")
        claim.placeholder.touch()
    assert claim.placeholder.exists()


_CHILD = """
import sys
from pathlib import Path
from PIL import Image
from modules.images.naming import NameContext
from modules.images.saving import save_image
from modules.settings.values import Settings
for _ in range(15):
    save_image(Image.new("RGB", (4, 4)), Path(sys.argv[1]), Settings().changed(save_to_dirs=False), NameContext())
"""


def test_processes_never_collide(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    children = [subprocess.Popen([sys.executable, "-c", _CHILD, str(tmp_path)], cwd=root) for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    assert sorted(int(name[:5]) for name in names(tmp_path)) == list(range(30))


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOSPC, r"disk is full\. Free some space"),
        (errno.EROFS, r"disk is read-only\. Choose another folder"),
        (errno.EIO, r"Input/output error\. Check the folder"),
    ],
)
def test_a_disk_that_does_not_take_it_is_an_error_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    for settings in (Settings(), Settings().changed(save_images_add_number=False)):
        with pytest.raises(OutputError, match=rf"The image could not be saved in .*2024-05-06: .*{reason}"):
            save_image(IMAGE, tmp_path, settings, CONTEXT)
    assert names(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error_that_helps(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="not permitted"):
        save_image(IMAGE, tmp_path, Settings(), CONTEXT)


def test_a_file_in_place_of_the_folder_is_an_error_that_helps(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="part of the path is a file"):
        save_image(IMAGE, tmp_path / "out", Settings(), CONTEXT)


def test_a_failing_companion_does_not_lose_the_image(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "00000-42-a cat.txt").mkdir()
    (tmp_path / "00000-42-a cat.txt" / "x").touch()
    settings = Settings().changed(save_to_dirs=False, save_txt=True, save_images_add_number=False)
    settings = settings.changed(samples_filename_pattern="00000-42-a cat")
    with caplog.at_level(logging.ERROR):
        path = save_image(IMAGE, tmp_path, settings, CONTEXT, INFOTEXT)
    assert path.exists()
    assert "companion of 00000-42-a cat.png could not be saved" in caplog.text


def test_where_hard_links_are_unknown_names_are_still_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", no_links)
    settings = Settings().changed(save_images_add_number=False, save_images_replace_action="Add number suffix")
    assert [save_image(IMAGE, tmp_path, settings, CONTEXT).name for _ in range(2)] == ["42.png", "42-1.png"]
    assert save_image(IMAGE, tmp_path, Settings(), CONTEXT).name == "00000-42.png"
    assert len(names(tmp_path)) == 3


def test_folders_follow_the_settings(tmp_path: Path) -> None:
    assert samples_folder(Settings(), tmp_path) == tmp_path / "outputs" / "txt2img-images"
    assert samples_folder(Settings(), tmp_path, "img2img") == tmp_path / "outputs" / "img2img-images"
    assert samples_folder(Settings().changed(outdir_samples="/all"), tmp_path) == Path("/all")
    assert grids_folder(Settings(), tmp_path) == tmp_path / "outputs" / "txt2img-grids"
    assert grids_folder(Settings().changed(outdir_grids="g"), tmp_path) == tmp_path / "g"


@pytest.mark.parametrize("place", ["Alpha", "RGB"])
def test_the_infotext_is_written_into_pixels_too_where_a_setting_wants_it(tmp_path: Path, place: str) -> None:
    image = Image.new("RGB", (64, 64), "teal")
    path = save_image(image, tmp_path, Settings().changed(stealth_pnginfo=place), CONTEXT, INFOTEXT)
    with Image.open(path) as saved:
        saved.load()
        saved.info.clear()
        assert read_metadata(saved)[0] == INFOTEXT
        assert saved.mode == ("RGBA" if place == "Alpha" else "RGB")
    plain = save_image(image, tmp_path, Settings(), CONTEXT, INFOTEXT)
    with Image.open(plain) as saved:
        saved.info.clear()
        assert read_metadata(saved)[0] is None
