"""`launch.py precision-report`, `convert` and `precision-compare` with the tiny model."""

import json
from pathlib import Path

import pytest

from lib_workbench.comparison_command import main as compare
from lib_workbench.precision_command import convert, report
from tests.recordings import TINY


def test_a_report_as_text_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(TINY), "--data-dir", str(tmp_path), "--format", "int8_row"]
    assert report(common) == 0
    text = capsys.readouterr().out
    assert "tiny-sd1.safetensors (SD 1.x) as int8_row" in text
    assert "mean relative error of the stored weights: 0." in text
    assert report([*common, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["storage"] == "int8_row"


def test_a_conversion_writes_the_file(tmp_path: Path) -> None:
    target = tmp_path / "smaller.safetensors"
    assert convert([str(TINY), "--data-dir", str(tmp_path), "--output", str(target)]) == 0
    assert target.stat().st_size < TINY.stat().st_size


def test_a_budget_is_explained_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = [str(TINY), "--data-dir", str(tmp_path), "--budget-gb", f"{TINY.stat().st_size * 0.8 / 1e9}"]
    assert report(common) == 0
    text = capsys.readouterr().out
    assert "tiny-sd1.safetensors (SD 1.x) as mixed formats within" in text and "Layers: " in text
    target = tmp_path / "mixed.safetensors"
    assert convert([*common, "--output", str(target)]) == 0
    assert target.stat().st_size < TINY.stat().st_size


def test_a_comparison_says_its_verdict_and_writes_page_and_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "out" / "c.html"
    sizes = ["--width", "64", "--height", "64", "--steps", "2", "--format", "16 bit", "--format", "int8_row"]
    flags = ["--ckpt", str(TINY), "--data-dir", str(tmp_path), "--use-cpu", "all", "--no-half"]
    assert compare(["--prompt", "a red cat", "--output", str(page), *sizes, *flags]) == 0
    shown = capsys.readouterr().out
    assert "int8 row comes closest to fp32" in shown
    assert "2 steps of DPM++ 2M, 64×64 pixels, CFG scale 7, seed 1" in page.read_text(encoding="utf-8")
    assert json.loads(page.with_suffix(".json").read_text())["prompts"] == ["a red cat"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prompt", "a", "--output", "c.txt"], "must end in .html"),
        (["--prompt", "a", "--output", "c.html", "--format", "fp7"], "Unknown storage format 'fp7'"),
    ],
)
def test_errors_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    flags = ["--ckpt", str(TINY), "--data-dir", str(tmp_path), "--use-cpu", "all", "--no-half"]
    assert compare([*arguments, *flags]) == 1
    assert said in capsys.readouterr().err
