"""What is refused before a file is opened, and the names that results get."""

from pathlib import Path
from typing import Any

import pytest

from lib_workbench.merging.request import MergeMethod, MergeOptions, default_name, target_of
from modules.errors import InvalidValueError, UnknownNameError
from tests.models.merging.toys import Toys


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    toys = Toys(tmp_path)
    toys.add_three()
    return toys


def options(**fields: Any) -> MergeOptions:
    return MergeOptions(**{"primary": "a", "secondary": "b", "name": "merged", **fields})


def test_a_resolved_request_names_its_files(toys: Toys) -> None:
    request = toys.resolve(options(tertiary="nonsense that a weighted sum does not read"))
    assert [info.name for info in request.models] == ["a.safetensors", "b.safetensors"]
    assert request.target == toys.folder / "merged.safetensors"
    assert request.method is MergeMethod.WEIGHTED_SUM


@pytest.mark.parametrize(
    ("method", "multiplier", "expected"),
    [
        (MergeMethod.NO_INTERPOLATION, 0.3, "a"),
        (MergeMethod.WEIGHTED_SUM, 0.3, "0.7(a) + 0.3(b)"),
        (MergeMethod.ADD_DIFFERENCE, 1.0, "a + 1.0(b - c)"),
    ],
)
def test_default_names(toys: Toys, method: MergeMethod, multiplier: float, expected: str) -> None:
    models = tuple(toys.catalogue().get(name) for name in "abc")[: method.models]
    assert default_name(method, models, multiplier) == expected


def test_names_may_have_folders_and_the_ending() -> None:
    folder = Path("/models")
    assert target_of(folder, " mine/new model.v2 ") == folder / "mine" / "new model.v2.safetensors"
    assert target_of(folder, "x.safetensors") == folder / "x.safetensors"


@pytest.mark.parametrize(
    "name",
    ["/etc/x", "../x", "a/../x", "a//x", ".hidden", "x.", "a\\b", "what?", "CON", "lpt1.x", "x\n", "a/ b", "é" * 101],
)
def test_names_that_do_not_work_everywhere_are_refused(toys: Toys, name: str) -> None:
    with pytest.raises(InvalidValueError, match=r"Choose another|shorter"):
        toys.resolve(options(name=f"{name}/x" if name == "x\n" else name))


@pytest.mark.parametrize(("name", "words"), [("x.ckpt", "written as .safetensors only"), ("x.vae.pt", "only")])
def test_pickled_results_are_refused(toys: Toys, name: str, words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        toys.resolve(options(name=name))


def test_a_name_that_would_make_a_vae_is_refused(toys: Toys) -> None:
    for name in ("x.vae", "x.vae.new"):
        with pytest.raises(InvalidValueError, match="taken for a VAE"):
            toys.resolve(options(name=name))


def test_a_model_or_any_other_file_is_never_replaced(toys: Toys) -> None:
    with pytest.raises(InvalidValueError, match=r"b\.safetensors is one of the models"):
        toys.resolve(options(name="b"))
    with pytest.raises(InvalidValueError, match=r"c\.safetensors exists already"):
        toys.resolve(options(name="c"))
    (toys.folder / "link.safetensors").symlink_to(toys.folder / "a.safetensors")
    with pytest.raises(InvalidValueError, match=r"link\.safetensors is one of the models"):
        toys.resolve(options(name="link"))
    with pytest.raises(InvalidValueError, match=r"a\.safetensors is one of the models"):
        toys.resolve(options(method="No interpolation", name=""))


def test_missing_models_are_named_by_letter(toys: Toys) -> None:
    with pytest.raises(InvalidValueError, match="Weighted sum needs a model B"):
        toys.resolve(options(secondary=""))
    with pytest.raises(InvalidValueError, match="Add difference needs a model C"):
        toys.resolve(options(method="Add difference"))
    with pytest.raises(UnknownNameError, match="Unknown checkpoint 'nothing'"):
        toys.resolve(options(secondary="nothing"))


@pytest.mark.parametrize("multiplier", [-0.1, 1.01, float("nan"), float("inf")])
def test_multipliers_outside_are_refused(toys: Toys, multiplier: float) -> None:
    with pytest.raises(InvalidValueError, match="Allowed: 0 to 1"):
        toys.resolve(options(multiplier=multiplier))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("method", "Unknown interpolation method 'x'.*Weighted sum"),
        ("storage", "Unknown format 'x'.*fp8_e4m3fn_row"),
        ("vae", "Unknown VAE 'x'"),
        ("config_source", "Unknown source of the configuration 'x'.*A, B or C"),
    ],
)
def test_unknown_words_list_the_known_ones(toys: Toys, field: str, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        toys.resolve(options(**{field: "x"}))


def test_a_bad_expression_is_explained(toys: Toys) -> None:
    with pytest.raises(InvalidValueError, match=r"'\*' is not a regular expression"):
        toys.resolve(options(discard="*"))


def test_metadata_is_a_table_of_texts(toys: Toys) -> None:
    request = toys.resolve(options(metadata_json='{"author": "me", "year": 2026}'))
    assert request.metadata == {"author": "me", "year": "2026"}
    with pytest.raises(InvalidValueError, match="not JSON"):
        toys.resolve(options(metadata_json="author: me"))
    with pytest.raises(InvalidValueError, match="not a table"):
        toys.resolve(options(metadata_json="[]"))
