"""Recognizing, making and repairing the virtual environment."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from modules.setup.environment import LOCK_NAME, Environment, command_of
from modules.setup.process import Outcome, SetupError
from tests.setup.fakes import FakeRun, add_package, make_environment


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / ".venv")


def test_nothing_is_not_usable(environment: Environment) -> None:
    assert not environment.is_usable
    assert (environment.python_version, environment.site_packages, environment.installed()) == ("", [], {})
    assert not environment.is_active()


def test_made_it_is_usable_and_knows_its_version(environment: Environment) -> None:
    environment.create(FakeRun(environment))
    assert environment.is_usable
    assert environment.python_version == "3.11.7"
    add_package(environment, "alpha", "1.0")
    assert environment.installed() == {"pip": "23.2.1", "alpha": "1.0"}


def test_a_dangling_python_is_made_anew_and_the_lock_stays(environment: Environment) -> None:
    make_environment(environment)
    add_package(environment, "old", "1.0")
    environment.python.unlink()
    environment.python.symlink_to("/gone/python3.11")
    (environment.folder / LOCK_NAME).touch()
    usable_before = environment.is_usable
    environment.create(FakeRun(environment))
    assert (usable_before, environment.is_usable) == (False, True)
    assert "old" not in environment.installed()
    assert (environment.folder / LOCK_NAME).exists()


def test_a_folder_of_something_else_is_left_alone(environment: Environment) -> None:
    environment.folder.mkdir()
    (environment.folder / "thesis.tex").touch()
    with pytest.raises(SetupError, match="is no virtual environment; move it away"):
        environment.create(FakeRun(environment))
    assert (environment.folder / "thesis.tex").exists()


def test_a_python_without_ensurepip_is_explained(environment: Environment) -> None:
    def run(command: Sequence[str]) -> Outcome:
        return Outcome(1, "The virtual environment was not created successfully because ensurepip is not available.")

    with pytest.raises(SetupError, match=r"ensurepip is not available[\s\S]*python3\.\d+-venv"):
        environment.create(run)


def test_it_lies_elsewhere_where_a_variable_says_so(tmp_path: Path) -> None:
    """The installed command keeps it in the user's home; doctor and update look there too."""
    root = tmp_path / "site-packages" / "featherweight"
    assert Environment.of(root, {}).folder == root / ".venv"
    assert Environment.of(root, {"FEATHERWEIGHT_VENV": str(tmp_path / "v")}).folder == tmp_path / "v"
    assert (command_of(root), command_of(tmp_path)) == ("featherweight", "python launch.py")
