"""`launch.py img2img` with the tiny model."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from modules.cli.img2img import main
from modules.images.metadata import read_metadata
from tests.cli.test_txt2img import arguments as common


def image_file(path: Path, color: str = "red", size: tuple[int, int] = (64, 72)) -> str:
    Image.new("RGB", size, color).save(path)
    return str(path)


def arguments(folder: Path, *more: str) -> list[str]:
    words = common(folder)
    kept = [
        word
        for at, word in enumerate(words)
        if word not in ("--width", "--height") and words[at - 1] not in ("--width", "--height")
    ]
    return [*kept, *more]


def test_each_file_has_its_image_in_its_own_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    red, blue = image_file(tmp_path / "red.png"), image_file(tmp_path / "blue.png", "blue", (83, 64))
    output = tmp_path / "made" / "out.png"
    more = ("--denoising-strength", "0.5", "--resize-mode", "crop and resize", "--output", str(output))
    assert main(arguments(tmp_path, "--init", red, blue, *more)) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert names == ["out-red.png", "out-blue.png"]
    with Image.open(output.with_name("out-blue.png")) as image:
        assert image.size == (80, 64)
    infotext, _ = read_metadata(output.with_name("out-red.png"))
    assert infotext is not None and "Denoising strength: 0.5" in infotext and "Resize mode: Crop and resize" in infotext


def test_a_mask_keeps_what_it_does_not_mark(tmp_path: Path) -> None:
    red, mask = image_file(tmp_path / "red.png", size=(64, 64)), Image.new("L", (64, 64))
    mask.paste(255, (0, 0, 32, 64))
    mask.save(tmp_path / "mask.png")
    more = ("--mask", str(tmp_path / "mask.png"), "--mask-blur", "0", "--masked-content", "latent noise")
    output = tmp_path / "out.png"
    assert main(arguments(tmp_path, "--init", red, *more, "--output", str(output))) == 0
    pixels = np.asarray(Image.open(output))
    assert (pixels[:, 32:] == (255, 0, 0)).all() and not (pixels[:, :32] == (255, 0, 0)).all()
    infotext, _ = read_metadata(output)
    assert infotext is not None and "Masked content: latent noise" in infotext and "Inpaint area" not in infotext


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--init", "MISSING"), "MISSING"),
        (("--init", "TEXT"), "is no image file"),
        (("--init", "RED", "--mask", "RED", "RED", "RED"), "--mask names 3 files and --init 1"),
        (("--init", "RED", "--mask-invert"), "give one with --mask"),
        (("--init", "RED", "--resize-mode", "stretch"), "allowed are Just resize, Crop and resize"),
        (("--init", "RED", "--denoising-strength", "2"), "denoising strength is 2; allowed is 0 to 1"),
        (("--init", "RED", "--reference", "RED", "TEXT"), "is no image file"),
        (("--init", "RED", "--reference", *["RED"] * 10), "There are 10 reference images; give at most 9"),
        (("--init", "RED", "--reference", "RED", "RED", "--steps", "1"), "no reference images, and 2 are given"),
    ],
)
def test_what_cannot_be_is_said_before_the_first_image(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.png").write_text("no image")
    files = {"RED": image_file(tmp_path / "red.png"), "TEXT": str(tmp_path / "text.png")}
    files["MISSING"] = str(tmp_path / "MISSING.png")
    assert main(arguments(tmp_path, *(files.get(word, word) for word in words))) == 1
    assert sentence in capsys.readouterr().err
