"""`launch.py txt2img` with the tiny model, in this process and, for Ctrl+C, in one of its own."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from modules.cli.txt2img import main
from modules.images.metadata import read_metadata
from tests.recordings import TINY

ROOT = Path(__file__).parent.parent.parent


def arguments(folder: Path, *more: str) -> list[str]:
    common = ["--prompt", "a cat", "--ckpt", str(TINY), "--data-dir", str(folder), "--no-half", "--use-cpu", "all"]
    return [*common, "--width", "64", "--height", "64", "--steps", "2", "--seed", "5", *more]


def test_an_image_is_written_with_its_infotext(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "made" / "cat.png"
    assert main(arguments(tmp_path, "--output", str(target))) == 0
    with Image.open(target) as image:
        assert image.size == (64, 64)
    infotext, _ = read_metadata(target)
    assert infotext is not None and "Seed: 5" in infotext and "Model: tiny-sd1" in infotext
    shown = capsys.readouterr()
    assert str(target) in shown.out
    assert "100%" in shown.err and "2/2" in shown.err
    assert "\r" not in shown.err and "█" not in shown.err, "what is no terminal gets plain lines"


def test_several_images_are_numbered(tmp_path: Path) -> None:
    assert main(arguments(tmp_path, "--batch-size", "2", "--output", str(tmp_path / "cat.webp"))) == 0
    assert sorted(path.name for path in tmp_path.glob("cat*")) == ["cat-0.webp", "cat-1.webp"]


def test_settings_and_fp8_hold_for_one_run(tmp_path: Path) -> None:
    target = tmp_path / "cat.png"
    more = ("--set", "CLIP_stop_at_last_layers=2", "--set", "randn_source=CPU", "--set", "s_noise=1.05")
    wanted = arguments(tmp_path, "--sampler", "Euler", "--output", str(target), *more)
    assert main([*wanted, "--fp8", "fp8_e4m3fn"]) == 0
    infotext, _ = read_metadata(target)
    assert infotext is not None
    for field in ("Clip skip: 2", "RNG: CPU", "Sigma noise: 1.05", "FP8 weight: Enable", "FP8 format: fp8_e4m3fn,"):
        assert field in infotext
    assert main([*wanted, "--fp8"]) == 0
    infotext, _ = read_metadata(target)
    assert infotext is not None and "FP8 format: fp8_e4m3fn_row" in infotext
    stored = tmp_path / "config.json"
    assert not stored.exists() or "fp8" not in stored.read_text(encoding="utf-8")


def test_hires_fix_and_a_refiner_have_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "cat.png"
    models = tmp_path / "models" / "Stable-diffusion"
    models.mkdir(parents=True)
    for suffix in (".safetensors", ".yaml"):
        shutil.copy(TINY.with_suffix(suffix), models / f"second{suffix}")
    words = ("--hires-scale", "1.5", "--hires-steps", "1", "--denoising-strength", "0.5", "--hires-upscaler", "Lanczos")
    more = ("--refiner", "second", "--refiner-switch-at", "0.5", "--output", str(target))
    assert main(arguments(tmp_path, *words, *more)) == 0
    with Image.open(target) as image:
        assert image.size == (96, 96)
    infotext, _ = read_metadata(target)
    assert infotext is not None
    for field in ("Hires upscale: 1.5", "Hires upscaler: Lanczos", "Denoising strength: 0.5", "Refiner switch at: 0.5"):
        assert field in infotext
    assert "Refiner: second" in infotext
    assert main(arguments(tmp_path, "--hires-scale", "99")) == 1
    assert "hires scale" in capsys.readouterr().err


def test_without_output_it_goes_to_the_usual_folder(tmp_path: Path) -> None:
    assert main(arguments(tmp_path)) == 0
    (path,) = (tmp_path / "outputs" / "txt2img-images").rglob("*.png")
    assert path.name == "00000-5.png"


def test_a_script_makes_its_grid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = '{"x type": "Seed", "X values": "5, 6", "Y type": "Steps", "Y values": "1-2", "Include Sub Images": true}'
    target = tmp_path / "grid.png"
    assert main(arguments(tmp_path, "--script", "x/y/z plot", "--script-args", args, "--output", str(target))) == 0
    names = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert names == ["grid.png", *(f"grid-{number}.png" for number in range(1, 5))]
    infotext, _ = read_metadata(target)
    assert infotext is not None and 'X Type: Seed, X Values: "5, 6"' in infotext
    with Image.open(target) as grid:
        assert grid.width > 2 * 64 and grid.height > 2 * 64
    listed = '["Steps", "1-2"]'
    assert main(arguments(tmp_path, "--script", "x/y/z plot", "--script-args", listed)) == 0
    assert list((tmp_path / "outputs" / "txt2img-grids").rglob("*.png"))


def test_a_stored_checkpoint_that_is_gone_costs_a_notice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = '{"sd_model_checkpoint": "gone.safetensors [0123456789]"}'
    (tmp_path / "config.json").write_text(stored, encoding="utf-8")
    models = tmp_path / "models" / "Stable-diffusion"
    models.mkdir(parents=True)
    shutil.copy(TINY, models / "there.safetensors")
    target = tmp_path / "cat.png"
    words = arguments(tmp_path, "--output", str(target))
    words = [word for word in words if word not in ("--ckpt", str(TINY))]
    assert main(words) == 0
    infotext, _ = read_metadata(target)
    assert infotext is not None and "Model: there" in infotext
    error = capsys.readouterr().err
    assert "The checkpoint 'gone.safetensors [0123456789]' of the settings is missing; there.safetensors" in error
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == stored
    for more in (["--checkpoint", "lost"], ["--set", "sd_model_checkpoint=lost"]):
        assert main([*words, *more]) == 1
        assert "Unknown checkpoint 'lost'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--output", "cat.bmp"], "must end in .png"),
        (["--sampler", "Oiler"], "Did you mean 'Euler'"),
        (["--checkpoint", "gone"], "Unknown checkpoint 'gone'"),
        (["--steps", "0"], "steps is 0"),
        (["--script", "gone"], "Known: Prompt matrix, Prompts from file or textbox, X/Y/Z plot"),
        (["--script-args", "{}"], "name the script with --script"),
        (["--script", "x/y/z plot", "--script-args", "{"], "--script-args is no JSON"),
        (["--script", "x/y/z plot", "--script-args", "1"], "must be an object or a list"),
        (["--script", "x/y/z plot", "--script-args", '{"W type": "Seed"}'], "Unknown argument of X/Y/Z plot 'W type'"),
        (["--fp8", "fp8_e4m3"], "did you mean 'fp8_e4m3fn'?"),
        (["--set", "fp8_storages=Enable"], "did you mean fp8_storage"),
        (["--set", "fp8_storage"], "write KEY=VALUE"),
        (["--set", "CLIP_stop_at_last_layers=few"], "--set CLIP_stop_at_last_layers: "),
        (["--set", "CLIP_stop_at_last_layers=99"], "takes a whole number"),
        (["--set", "tiling=perhaps"], "takes True or False"),
        (["--ckpt", "/no/such.safetensors"], "no such checkpoint file"),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(arguments(tmp_path, *more)) == 1
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(arguments(tmp_path, "--output", str(tmp_path / "file" / "cat.png"))) == 1
    assert "The image could not be saved" in capsys.readouterr().err


def test_control_c_stops_within_a_step_and_says_so(tmp_path: Path) -> None:
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # tests may run in the background
    command = f"{heard}; import sys; from modules.cli.txt2img import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments(tmp_path, "--steps", "1000", "--sampler", "Euler")],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stderr is not None
    seen = b""
    while b"/1000" not in seen:
        chunk = os.read(process.stderr.fileno(), 4096)
        assert chunk, f"it ended before sampling began: {seen.decode()}"
        seen += chunk
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, rest = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Interrupting" in rest.decode() and "0 images were finished" in rest.decode()
    assert time.monotonic() - began < 60
