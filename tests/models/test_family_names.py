"""What one family knows is in its own folder: no other code names a family or its encoders."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.models.families.family import ModelFamily
from modules.models.families.registry import FAMILIES

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "modules"
FAMILY_FOLDERS = [path for path in (MODULES / "models" / "families").iterdir() if path.is_dir()]
NAME = re.compile(
    r"(?<![a-z])(?:sd ?[123](?:\.[0-9x])?|sdxl|mmdit|t5(?:xxl)?|flux|clip_[lg])(?![a-z])|is_sdxl|is_xl", re.IGNORECASE
)
SETTINGS_AND_FLAGS = re.compile(
    r"sdxl_clip_l_skip|sdxl_crop_(?:top|left)|sdxl_refiner_(?:low|high)_aesthetic_score|sd3_enable_t5"
    r"|Enable for SDXL|medvram[-_]sdxl"
)
"""Names of settings, of their values and of flags, which are the user's words."""
EXCEPT = {
    "models/text_encoders": "text encoders are called by their names here, and families name those that they use",
    "models/families/registry.py": "lists the families",
    "models/detection": "lists the families, and the names of architectures and encoders in files",
    "model_cards/few_steps.py": "words in the names that people give their files",
    "downloads/about.py": "words of base models in what the sources of files say of them",
    "models/files/other_files.py": "names of tensors in embedding files, which other programs write",
    "settings/sections": "settings' own names, labels and hints",
    "settings/definitions.py": "the groups of these settings",
    "flags/flags.py": "the flags' own help",
    "ui/routes/card_replies.py": "examples of replies",
    "ui/routes/preset_routes.py": "an example of a request",
    "ui/page/texts.py": "words of code that are no texts",
    "api/schema/reply_models.py": "examples of replies",
}


def named_in(path: Path) -> Iterator[str]:
    """The lines of a file that name a family."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if NAME.search(SETTINGS_AND_FLAGS.sub("", line)):
            yield f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def sources() -> list[Path]:
    return [
        path
        for path in sorted(MODULES.rglob("*"))
        if path.suffix in (".py", ".js", ".css") and not any(folder in path.parents for folder in FAMILY_FOLDERS)
    ]


def is_excepted(path: Path) -> bool:
    name = path.relative_to(MODULES).as_posix()
    return any(name == known or name.startswith(f"{known}/") for known in EXCEPT)


def test_no_file_outside_a_familys_folder_names_one() -> None:
    assert [line for path in sources() if not is_excepted(path) for line in named_in(path)] == []


@pytest.mark.parametrize("known", EXCEPT)
def test_an_exception_is_needed(known: str) -> None:
    place = MODULES / known
    assert any(line for path in ([place] if place.is_file() else place.rglob("*.py")) for line in named_in(path))


def test_every_family_is_in_a_folder_of_its_own() -> None:
    files = [path for folder in FAMILY_FOLDERS for path in folder.glob("family.py")]
    texts = {path.parent: path.read_text(encoding="utf-8") for path in files}
    for name, _ in FAMILIES.items():
        (folder,) = (folder for folder, text in texts.items() if re.search(rf"import .*\b{name.upper()}\b", text))
        assert (folder / "__init__.py").read_text() == ""


def test_a_family_is_data() -> None:
    """A family has few facts, and no code but functions that are given to it."""
    public = {name for name in {*dir(ModelFamily), *ModelFamily.__annotations__} if not name.startswith("_")}
    assert len(public) < 20 and len(ModelFamily.__annotations__) <= 15
    assert all(type(family) is ModelFamily for _, family in FAMILIES.items())
    files = [path for folder in FAMILY_FOLDERS for path in folder.glob("family.py")]
    assert [path.parent.name for path in files if "\nclass " in path.read_text(encoding="utf-8")] == []


def test_no_class_of_diffusers_is_asked_for_by_name_where_memory_is_estimated_or_saved() -> None:
    names = re.compile(r"UNet2DConditionModel|Transformer2DModel|BasicTransformerBlock|ResnetBlock2D|TimestepEmbedding")
    files = [*(MODULES / "memory").rglob("*.py"), *(MODULES / "processing").rglob("*.py")]
    files += (MODULES / "models" / "loading").rglob("*.py")
    assert [path.name for path in files if names.search(path.read_text(encoding="utf-8"))] == []
