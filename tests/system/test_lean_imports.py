"""Imports without garbage collection, and packages that are imported by their first use."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from modules.system.lean_imports import import_when_used, unchanged_until_used, without_garbage_collection


def test_garbage_is_collected_again_afterwards_also_after_an_error() -> None:
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()  # the inner one leaves it to the outer one
    assert gc.isenabled()
    with pytest.raises(ImportError), without_garbage_collection():
        import_missing()
    assert gc.isenabled()


def import_missing() -> None:
    raise ImportError


def is_looked_through(one: object) -> bool:
    """Whether the search for garbage comes by it. (The count of what is frozen also falls, as such objects go.)"""
    return any(one is other for other in gc.get_objects())


def test_what_was_imported_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_once.py").write_text("KEPT = [[]]\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with without_garbage_collection():
        module = __import__("imported_once")
    assert not is_looked_through(module.KEPT)


def test_what_a_job_has_made_is_collected_where_all_was_imported_before() -> None:
    with without_garbage_collection():
        import json  # noqa: F401 - there already

        made: list[object] = []
    assert is_looked_through(made)


def test_collection_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def write_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vars(sys).pop("was_used", None)
    forget(monkeypatch)
    (tmp_path / "seldom_used").mkdir()
    (tmp_path / "seldom_used" / "__init__.py").write_text("import sys\nsys.was_used = True\nNUMBER = 7\n")
    (tmp_path / "seldom_used" / "inner.py").write_text("OTHER = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seldom_used", "seldom_used.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_package_is_imported_by_its_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, monkeypatch)
    import_when_used("seldom_used")
    import seldom_used  # type: ignore[import-not-found]

    for module in list(sys.modules.values()):  # as `inspect.getmodule` does
        getattr(module, "__file__", None)
    assert seldom_used.__name__ == "seldom_used" and not hasattr(sys, "was_used")
    assert seldom_used.NUMBER == 7 and sys.was_used  # type: ignore[attr-defined]
    from seldom_used import inner

    assert inner.OTHER == 8
    monkeypatch.delattr(sys, "was_used")
    forget(monkeypatch)


def test_a_part_of_it_imports_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path, monkeypatch)
    import_when_used("seldom_used")
    from seldom_used.inner import OTHER  # type: ignore[import-not-found]

    assert OTHER == 8 and sys.was_used  # type: ignore[attr-defined]
    monkeypatch.delattr(sys, "was_used")
    forget(monkeypatch)


def test_a_package_that_cannot_be_imported_says_so_at_its_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_right.py").write_text("raise ImportError('no such thing')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import_when_used("never_right")
    import never_right  # type: ignore[import-not-found]

    for _ in range(2):  # and again at the next
        with pytest.raises(ImportError, match="no such thing"):
            never_right.anything()
    monkeypatch.delitem(sys.modules, "never_right")


def write_math(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    write_package(tmp_path, monkeypatch)
    (tmp_path / "seldom_used" / "__init__.py").write_text(f"import sys\nsys.was_used = True\n{text}")


def test_a_function_imported_by_name_imports_its_package_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_math(tmp_path, monkeypatch, "def double(x):\n    return 2 * x\n")
    import_when_used("seldom_used", "double")
    from seldom_used import double

    assert not hasattr(sys, "was_used")
    assert double(4) == 8 and sys.was_used  # type: ignore[attr-defined]
    assert double(5) == 10 and sys.modules["seldom_used"].double(6) == 12
    monkeypatch.delattr(sys, "was_used")
    del sys.modules["seldom_used"]


def test_other_names_and_parts_of_such_a_package_import_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_math(tmp_path, monkeypatch, "NUMBER = 7\ndef double(x):\n    return 2 * x\n")
    for statement in (
        "from seldom_used import NUMBER",
        "from seldom_used.inner import OTHER",
        "import seldom_used.inner",
    ):
        import_when_used("seldom_used", "double")
        exec(statement, {})
        assert sys.modules["seldom_used"].NUMBER == 7 and sys.was_used  # type: ignore[attr-defined]
        monkeypatch.delattr(sys, "was_used")
        for name in ("seldom_used", "seldom_used.inner"):
            sys.modules.pop(name, None)


def test_a_function_that_the_package_lacks_says_so_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_math(tmp_path, monkeypatch, "")
    import_when_used("seldom_used", "double")
    from seldom_used import double

    for _ in range(2):
        with pytest.raises(AttributeError, match="double"):
            double(4)
    monkeypatch.delattr(sys, "was_used")
    del sys.modules["seldom_used"]


def test_parts_of_a_package_are_imported_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_math(tmp_path, monkeypatch, "NUMBER = 7\n")
    import_when_used("seldom_used", parts_alone=True)
    from seldom_used.inner import OTHER

    assert OTHER == 8 and not hasattr(sys, "was_used")
    assert sys.modules["seldom_used"].NUMBER == 7 and sys.was_used  # type: ignore[attr-defined]
    monkeypatch.delattr(sys, "was_used")
    forget(monkeypatch)


def test_functions_return_what_they_are_given_until_something_else_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_math(tmp_path, monkeypatch, "NUMBER = 7\ndef mark(f, *words):\n    return NUMBER\n")
    import_when_used("seldom_used")
    unchanged_until_used("seldom_used", "mark", parts=["inner"])
    import seldom_used
    from seldom_used.inner import OTHER

    assert seldom_used.mark(forget, 1) is forget and seldom_used.mark()(forget) is forget and OTHER == 8
    assert not hasattr(sys, "was_used")
    assert seldom_used.NUMBER == 7 and seldom_used.mark(forget) == 7
    monkeypatch.delattr(sys, "was_used")
    forget(monkeypatch)


def test_a_package_that_is_missing_or_there_already_is_left_alone() -> None:
    import_when_used("there_is_no_such_package")
    assert "there_is_no_such_package" not in sys.modules
    module = sys.modules["json"]
    import_when_used("json")
    assert sys.modules["json"] is module


def imported_by(code: str, packages: tuple[str, ...], *words: str) -> list[str]:
    """Those of the packages that a new process imports which runs some lines."""
    code = f"import sys\n{code}\nprint(*(name for name in {packages} if name in sys.modules))"
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", code, *words], cwd=root, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1].split()


def test_an_image_without_a_server_needs_no_packages_of_one(tmp_path: Path) -> None:
    code = (
        "from modules.assembly import build_services\n"
        "from modules.flags.flags import parse_flags\n"
        "build_services(parse_flags(['--data-dir', sys.argv[1]]))"
    )
    assert imported_by(code, ("fastapi", "gradio", "pandas", "torch"), str(tmp_path)) == []


def test_doctor_imports_no_large_package() -> None:
    code = "from modules.cli.commands import load_command\nload_command('doctor')"
    assert imported_by(code, ("fastapi", "gradio", "numpy", "pandas", "PIL", "torch")) == []


def test_the_families_are_known_without_the_libraries_that_build_them() -> None:
    """What reads a header, names tensors or plans needs no class of them."""
    code = "import modules.models.loading.load_model, modules.processing.pipeline.generate"
    assert imported_by(code, ("diffusers", "transformers", "torch._dynamo", "scipy", "torch")) == ["torch"]


def test_a_model_and_its_dry_run_import_what_they_are_made_of_and_no_other_family() -> None:
    code = (
        "from modules.models.libraries import library_name\n"
        "for name in ('diffusers.UNet2DConditionModel', 'diffusers.AutoencoderKL', 'transformers.CLIPTextModel'):\n"
        "    library_name(name)\n"
        "from modules.memory.dry_run import DryRun\n"
        "DryRun()"
    )
    others = (
        "transformers.generation.utils",
        "transformers.models.t5.modeling_t5",
        "transformers.models.qwen3.modeling_qwen3",
    )
    seldom = ("scipy.sparse", "scipy.integrate._quadpack_py", "scipy.stats._stats_py", "pandas", "sympy")
    tools = ("torch._dynamo.utils", "torch.distributed.tensor", "diffusers.models.transformers.transformer_flux")
    assert imported_by(code, ("diffusers", "transformers", *others, *seldom, *tools)) == ["diffusers", "transformers"]
