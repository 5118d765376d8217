"""Imports without garbage collection, and packages that are imported by their first use."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from modules.lean_imports import import_when_used, without_garbage_collection


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
    (tmp_path / "seldom_used").mkdir()
    (tmp_path / "seldom_used" / "__init__.py").write_text("import sys\nsys.was_used = True\nNUMBER = 7\n")
    (tmp_path / "seldom_used" / "inner.py").write_text("OTHER = 8\n")
    monkeypatch.syspath_prepend(str(tmp_path))


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("seldom_used", "seldom_used.inner"):
        monkeypatch.delitem(sys.modules, name)


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


def test_a_package_that_is_missing_or_there_already_is_left_alone() -> None:
    import_when_used("there_is_no_such_package")
    assert "there_is_no_such_package" not in sys.modules
    module = sys.modules["json"]
    import_when_used("json")
    assert sys.modules["json"] is module


def test_an_image_without_a_server_needs_no_packages_of_one(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from modules.assembly import build_services\n"
        "from modules.flags.flags import parse_flags\n"
        "build_services(parse_flags(['--data-dir', sys.argv[1]]))\n"
        "print([name for name in ('fastapi', 'gradio', 'pandas', 'torch') if name in sys.modules])"
    )
    root = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=root, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-1:] == ["[]"], ran.stderr
