"""`launch.py merge`: names and paths, methods by the number of models, refusals with exit codes."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from lib_workbench.merge_command import main
from modules.models.files.tensor_file import TensorFile
from tests.models.merging.toys import UNET, Toys, toy

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    folder = tmp_path / "models" / "Stable-diffusion"
    folder.mkdir(parents=True)
    toys = Toys(folder)
    toys.add_three()
    return toys


@pytest.fixture
def run(tmp_path: Path, toys: Toys, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--data-dir", str(tmp_path)])
        captured = capsys.readouterr()
        return code, captured.out.strip(), captured.err

    return run


def test_the_number_of_models_gives_the_method(run: Run, toys: Toys) -> None:
    code, path, _ = run("a", "b", "c", "--multiplier", "1", "--format", "fp32")
    assert code == 0
    assert Path(path) == toys.folder / "a + 1.0(b - c).safetensors"
    a, b, c = (toy(seed)[UNET].float() for seed in range(3))
    assert torch.equal(load_file(path)[UNET], a + (b - c))
    assert run("a", "--output", "copy")[1] == str(toys.folder / "copy.safetensors")


def test_models_and_the_result_may_be_paths(run: Run, tmp_path: Path) -> None:
    elsewhere = Toys(tmp_path)
    source, target = elsewhere.add("far.safetensors", toy(7)), tmp_path / "new" / "out.safetensors"
    code, path, err = run(str(source), "b", "--output", str(target), "--no-recipe", "--discard", "alphas")
    assert (code, path) == (0, str(target))
    assert "5 tensors" in err
    with TensorFile(target) as file:
        assert file.metadata == {"format": "pt"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("a", "b", "c", "d"), "4 models were given"),
        (("a", "b", "c", "--method", "weighted-sum"), "takes 2 models, but 3 were given"),
        (("a", "--method", "add-difference"), "needs a model B"),
        (("a", "nothing"), "Unknown checkpoint 'nothing'"),
        (("a", "b", "--output", "./x.ckpt"), "must end in .safetensors"),
        (("a", "b", "--output", "b"), "one of the models"),
        (("a", "b", "--multiplier", "2"), "Allowed: 0 to 1"),
    ],
)
def test_refusals_are_one_sentence_and_exit_code_1(run: Run, words: tuple[str, ...], message: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert err.startswith("Error: ")
    assert message in err
