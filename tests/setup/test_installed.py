"""Reading installed packages and pins without importing anything."""

from pathlib import Path

import pytest

from modules.setup.installed import installed_versions, read_pins, unsatisfied


def test_versions_come_from_complete_dist_infos(tmp_path: Path) -> None:
    for name in ("torch-2.13.0+cpu", "huggingface_hub-2.4.0", "ruamel.yaml-1.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info" / "RECORD").touch()
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "~orch-2.13.0.dist-info").mkdir()
    expected = {"torch": "2.13.0+cpu", "huggingface-hub": "2.4.0", "ruamel-yaml": "1.0"}
    assert installed_versions([tmp_path]) == expected


def test_pins_skip_comments_and_normalize_names() -> None:
    assert read_pins("# why\n\nHugging_Face.hub==1.0  # here\na==2.0+cpu\n") == {
        "hugging-face-hub": "1.0",
        "a": "2.0+cpu",
    }


@pytest.mark.parametrize(
    "line",
    [
        "torch",
        "torch>=2",
        "-r other.txt",
        "a==1.0; python_version > '3'",
        'a==1; sys_platform == "x" or sys_platform == "y"',
        "a==",
    ],
)
def test_other_lines_are_our_mistake(line: str) -> None:
    with pytest.raises(ValueError, match="not a name==version line"):
        read_pins(line)


def test_a_marker_says_where_a_pin_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'a==1\nb==2; sys_platform == "linux" and platform_machine == "x86_64"  # why\n'
    monkeypatch.setattr("sys.platform", "linux")
    for machine, pins in (("x86_64", {"a": "1", "b": "2"}), ("aarch64", {"a": "1"})):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        assert read_pins(text) == pins


def test_unsatisfied_lists_missing_and_other_versions() -> None:
    pins = {"a": "1.0", "b": "2.0", "torch": "2.13.0"}
    assert unsatisfied(pins, {"a": "1.0", "b": "2.1", "torch": "2.13.0+cpu"}) == ["b==2.0"]
    assert unsatisfied(pins, {}) == ["a==1.0", "b==2.0", "torch==2.13.0"]


@pytest.mark.parametrize(
    "name", ["requirements.txt", "requirements-nodeps.txt", "requirements-kernels.txt", "requirements-test.txt"]
)
def test_our_requirements_are_exact_pins_and_never_name_torch(name: str) -> None:
    pins = read_pins((Path(__file__).parents[2] / name).read_text(encoding="utf-8"))
    assert pins and not {"torch", "torchvision", "k-diffusion", "xformers"} & set(pins)
