"""Names and paths that come from outside: what stays inside a folder, and moves that are whole or not at all."""

import errno
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from compat.store.store import ExtensionStore
from modules.errors import CheckpointError, InvalidValueError, OutputError, UnknownNameError
from modules.flags.flags import Flags
from modules.model_shelf.shelf import Shelf
from modules.models.files.catalogue import HashCache
from modules.models.files.diffusers_folder import part_folders, weight_files
from modules.setup import archive
from modules.system import atomic_files
from modules.system.atomic_files import move_together, move_whole
from modules.system.file_names import check_name, place_inside
from modules.system.paths import resolve_paths
from tests.compat.conftest import write

HOSTILE = (
    *("", ".", "..", " ", "...", "../x", "../../outputs", "a/../../x", "a/..", "a/./b", "a//b", "/x", "\\x", "..\\x"),
    *("C:\\x", "C:x", "a\0b", "a\nb", "\x1b[31m", "x\u202egnp", "\u2066x", "x\ufeff", "x\ud800", "name.", "name "),
    *("CON", "con.txt", "NUL", "aux .x", "COM1", "lpt9.safetensors", "a:b", "a|b", "a?", "a*", 'a"b', "a<b", "é" * 101),
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_or_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidValueError):
        place_inside(tmp_path, name)
    with pytest.raises(InvalidValueError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["a", "a.b", ".hidden", "A B-c_(1)", "é", "日本", "conx", "x.con", "a/b\\c", "x" * 200]
)
def test_other_names_are_taken(tmp_path: Path, name: str) -> None:
    assert place_inside(tmp_path, name) == tmp_path.joinpath(*name.replace("\\", "/").split("/"))


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir()
    other.mkdir()
    (folder / "out").symlink_to(other)
    (folder / "inner").symlink_to(folder)
    (folder / "ring").symlink_to(folder / "ring")
    for name in ("out", "out/x", "ring", "ring/x"):
        with pytest.raises(InvalidValueError, match="over a link"):
            place_inside(folder, name)
    assert place_inside(folder, "inner/x") == folder / "inner" / "x"


def test_the_index_of_a_model_names_no_folder_outside_of_it(tmp_path: Path) -> None:
    """Files in the folders that it names are no models of their own: one that names / would hide all."""
    write(tmp_path, {"other/a.safetensors": "", "model/unet/config.json": "{}", "model/extra/x": ""})
    names = ["unet", "extra", "..", "../other", str(tmp_path / "other"), "/", ".", "", "a\0b"]
    write(tmp_path, {"model/model_index.json": json.dumps(dict.fromkeys(names, 1))})
    assert {path.name for path in part_folders(tmp_path / "model")} == {"unet", "extra"}
    shards = {"weight_map": {"x": "../../other/a.safetensors"}}
    write(tmp_path, {"model/unet/model.safetensors.index.json": json.dumps(shards)})
    with pytest.raises(CheckpointError, match="is no file of weights"):
        weight_files(tmp_path / "model" / "unet")


def test_an_archive_that_cannot_be_unpacked_costs_no_folder_that_was_there(tmp_path: Path) -> None:
    write(tmp_path, {"bad.zip": "no archive", "mine/kept.txt": "x"})
    with pytest.raises(InvalidValueError):
        archive.unpack(tmp_path / "bad.zip", tmp_path / "mine")
    with zipfile.ZipFile(tmp_path / "good.zip", "w") as packed:
        for name in archive.NEEDED:
            packed.writestr(name, "x")
    with pytest.raises(InvalidValueError, match="File exists"):
        archive.unpack(tmp_path / "good.zip", tmp_path / "mine")
    assert listed(tmp_path / "mine") == ["kept.txt"]


@pytest.fixture
def store(tmp_path: Path) -> ExtensionStore:
    """An extension `mine` with an earlier state, in a data folder that holds other things too."""
    write(tmp_path, {"data/outputs/image.png": "x", "photos/a.png": "x", "from/mine/scripts/a.py": "1"})
    made = ExtensionStore(tmp_path / "data" / "extensions", tmp_path / "data" / "cache", is_open=True, git="")
    made.install(str(tmp_path / "from" / "mine"), agreed=True)
    made.update("mine")
    return made


def listed(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", [*HOSTILE, "../../outputs", "../../../photos", "{}/photos", "{}/data/outputs", "MINE"])
def test_the_store_of_extensions_touches_nothing_else(store: ExtensionStore, tmp_path: Path, name: str) -> None:
    name, before = name.format(tmp_path) if "{}" in name else name, listed(tmp_path)
    for change in (store.restore, store.update, lambda name: store.remove(name, agreed=True)):
        with pytest.raises((UnknownNameError, InvalidValueError)):
            change(name)
    if name:  # an empty one is that of the source
        with pytest.raises(InvalidValueError):
            store.install(str(tmp_path / "from" / "mine"), agreed=True, name=name)
    assert listed(tmp_path) == before


def test_a_linked_extension_is_taken_away_without_what_it_leads_to(store: ExtensionStore, tmp_path: Path) -> None:
    (store.folder / "linked").symlink_to(tmp_path / "from" / "mine")
    for _ in range(2):
        store.remove("linked", agreed=True)
        assert store.restorable == ["linked", "mine"]
        store.restore("linked")
        assert (store.folder / "linked").is_symlink()
    store.remove("linked", agreed=True)
    (store.folder / "linked").mkdir()
    store.remove("linked", agreed=True)
    assert (tmp_path / "from" / "mine" / "scripts" / "a.py").is_file()


@pytest.mark.parametrize(("change", "number"), [("remove", 0), ("remove", 1)] + [("update", n) for n in range(3)])
def test_a_change_that_fails_halfway_is_taken_back(
    store: ExtensionStore, tmp_path: Path, change: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, calls = listed(tmp_path), 0

    def failing(source: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls - 1 == number:
            raise PermissionError(errno.EACCES, "Permission denied")
        move_whole(source, target)

    monkeypatch.setattr(atomic_files, "move_whole", failing)
    write(tmp_path, {"from/mine/scripts/a.py": "2"})
    with pytest.raises(OutputError, match="not permitted"):
        store.remove("mine", agreed=True) if change == "remove" else store.update("mine")
    calls = 0
    with pytest.raises(OutputError, match="not permitted"):
        store.restore("mine")
    assert listed(tmp_path) == before
    assert (store.folder / "mine" / "scripts" / "a.py").read_text() == "1"


def test_a_model_whose_move_fails_halfway_is_whole_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model moves with what lies next to it: into another folder, into the trash, and out of it."""
    paths = resolve_paths(Flags(data_dir=str(tmp_path)), Path(__file__).parents[2])
    shelf = Shelf(paths, HashCache(tmp_path / "hashes.json"), lambda kind: {}, lambda: None)
    write(tmp_path, {f"models/Lora/a{ending}": "x" * 99 for ending in (".safetensors", ".json", ".preview.png")})
    key = next(one.key for one in shelf.files() if one.name == "a.safetensors")

    def check_taken_back(change: Callable[[], object]) -> None:
        calls, before = 0, [name for name in listed(tmp_path) if "/a." in name]

        def failing(source: Path, target: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise PermissionError(errno.EACCES, "Permission denied")
            move_whole(source, target)

        with monkeypatch.context() as patched, pytest.raises(OutputError, match="not permitted"):
            patched.setattr(atomic_files, "move_whole", failing)
            change()
        assert [name for name in listed(tmp_path) if "/a." in name] == before and len(before) == 3

    check_taken_back(lambda: shelf.move(key, "new"))
    check_taken_back(lambda: shelf.delete(key))
    trashed = shelf.delete(key)
    check_taken_back(lambda: shelf.restore(trashed.id))
    assert shelf.restore(trashed.id).is_file()


def test_moves_to_another_disk_are_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename between disks fails with EXDEV; here every rename that crosses the two folders does."""
    rename = Path.rename

    def of_disks(self: Path, target: Path) -> Path:
        if self.parent != target.parent:
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", of_disks)
    write(tmp_path, {"one/folder/a/b": "x", "one/file": "y", "two/taken": "z"})
    (tmp_path / "one" / "link").symlink_to(tmp_path / "one" / "folder")
    before = listed(tmp_path)
    pairs = [(tmp_path / "one" / name, tmp_path / "two" / name) for name in ("folder", "file", "link")]
    with pytest.raises(FileExistsError):
        move_together([*pairs, (tmp_path / "one", tmp_path / "two" / "taken")])
    assert listed(tmp_path) == before
    with monkeypatch.context() as patched:
        patched.setattr("shutil.copytree", lambda *args, **named: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(OSError, match="full"):
            move_together(pairs[::-1])
    assert listed(tmp_path) == before
    move_together(pairs)
    assert listed(tmp_path / "two") == ["file", "folder", "folder/a", "folder/a/b", "link", "taken"]
    assert (tmp_path / "two" / "link").is_symlink() and listed(tmp_path / "one") == []
