"""`about.toml` of an extension: a sentence about it, and the group of its folds."""

from pathlib import Path

from modules.scripts.extension import Extension
from modules.ui.form.scripts_panel import GROUPS

BUILT_IN = Path(__file__).parents[2] / "extensions-builtin"


def test_every_part_of_the_program_has_a_sentence_and_a_known_group() -> None:
    for folder in sorted(path for path in BUILT_IN.iterdir() if path.is_dir()):
        extension = Extension(folder.name, folder, is_built_in=True)
        assert extension.about.get("about", "").endswith("."), folder.name
        assert extension.about.get("group", "more") in GROUPS, folder.name


def test_an_extension_needs_no_file_and_a_broken_one_is_a_fault(tmp_path: Path) -> None:
    extension = Extension("mine", tmp_path)
    assert extension.about == {} and extension.faults == []
    (tmp_path / "about.toml").write_text("group = ", encoding="utf-8")
    broken = Extension("mine", tmp_path)
    assert broken.about == {} and broken.faults[0].where == "about.toml"
