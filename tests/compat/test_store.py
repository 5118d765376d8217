"""Installing, updating, taking back and removing extensions; their packages; who may."""

import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from compat.store import packages
from compat.store.origin import Origin, origin_of
from compat.store.packages import NotInstalledHere, install_now, missing_of, plan_for, why_not
from compat.store.store import ExtensionStore, NotAgreed, NotAllowedHere, name_of, read_index, unpack
from modules.errors import InvalidValueError, UnknownNameError
from tests.compat.conftest import write

PINS = {"torch": "2.13.0+cpu", "pydantic": "2.14.3", "numpy": "2.4.6"}


def store(folder: Path, is_open: bool = True, git: str | None = None) -> ExtensionStore:
    return ExtensionStore(folder / "extensions", folder / "cache", is_open, git)


def source(folder: Path, text: str = "one") -> Path:
    write(folder, {"mine/scripts/mine.py": f"value = {text!r}\n", "mine/style.css": ""})
    return folder / "mine"


def test_a_folder_is_installed_updated_taken_back_and_removed(tmp_path: Path) -> None:
    mine, extensions = source(tmp_path / "from"), store(tmp_path)
    with pytest.raises(NotAgreed, match="runs code of strangers"):
        extensions.install(str(mine), agreed=False)
    place = extensions.install(str(mine), agreed=True)
    script = place / "scripts" / "mine.py"
    assert "one" in script.read_text() and origin_of(place).address == str(mine)
    with pytest.raises(InvalidValueError, match="already"):
        extensions.install(str(mine), agreed=True)
    source(tmp_path / "from", "two")
    extensions.update("mine")
    assert "two" in script.read_text()
    extensions.restore("mine")
    assert "one" in script.read_text()
    extensions.restore("mine")
    assert "two" in script.read_text()
    with pytest.raises(NotAgreed, match="Remove mine"):
        extensions.remove("mine", agreed=False)
    extensions.remove("mine", agreed=True)
    assert not place.exists() and extensions.restorable == ["mine"]
    extensions.restore("mine")
    assert place.is_dir()
    with pytest.raises(UnknownNameError, match="mine"):
        extensions.update("other")
    assert not [one for one in (tmp_path / "extensions").iterdir() if one.name.startswith(".")]


def test_git_and_archives(tmp_path: Path) -> None:
    mine = source(tmp_path / "from")
    git = ["git", "-C", str(mine), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert origin_of(mine) == Origin("", "main", commit)
    packed = tmp_path / "mine-1.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(mine / "scripts" / "mine.py", "mine-main/scripts/mine.py")
    extensions = store(tmp_path)
    place = extensions.install(str(packed), agreed=True, name="zipped")
    assert (place / "scripts" / "mine.py").is_file()
    tape = tmp_path / "mine.tar.gz"
    with tarfile.open(tape, "w:gz") as opened:
        opened.add(mine / "scripts", "scripts")
    assert (extensions.install(str(tape), agreed=True) / "scripts" / "mine.py").is_file()


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "a/../../evil.py", "C:\\evil.py"])
def test_members_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    packed = tmp_path / "a.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(InvalidValueError, match=r"is refused: .*leads out of its folder"):
        unpack(packed, tmp_path / "out")
    tape = tmp_path / "a.tar"
    with tarfile.open(tape, "w") as opened:
        entry = tarfile.TarInfo(name)
        opened.addfile(entry, io.BytesIO())
    with pytest.raises(InvalidValueError, match=r"is refused: .*leads out of its folder"):
        unpack(tape, tmp_path / "out2")


def test_what_is_no_extension_and_no_address(tmp_path: Path) -> None:
    extensions = store(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValueError, match="holds no extension"):
        extensions.install(str(tmp_path / "empty"), agreed=True)
    for bad in ("http://example.org/a", "git@example.org:a/b", "file:///etc", "ext::sh -c true", "-oProxyCommand=x"):
        with pytest.raises(InvalidValueError, match="begin with https"):
            extensions.install(bad, agreed=True)
    with pytest.raises(InvalidValueError, match="is no extension"):
        extensions.install(str(tmp_path / "nothing"), agreed=True)
    assert name_of("https://example.org/a/sd-webui-mine.git") == "sd-webui-mine"
    assert not list((tmp_path / "extensions").iterdir())


def test_a_server_for_others_changes_nothing(tmp_path: Path) -> None:
    closed = store(tmp_path, is_open=False)
    for change in (
        lambda: closed.install("https://example.org/a", agreed=True),
        lambda: closed.update("a"),
        lambda: closed.remove("a", agreed=True),
        lambda: closed.restore("a"),
    ):
        with pytest.raises(NotAllowedHere, match="--enable-insecure-extension-access"):
            change()


def test_an_index_is_searched(tmp_path: Path) -> None:
    entries: list[object] = [
        {"name": "Face Thing", "url": "https://e/f", "tags": ["editing"]},
        {"name": "B", "url": "https://e/b"},
        3,
    ]
    (tmp_path / "index.json").write_text(json.dumps({"extensions": entries}))
    assert [one.name for one in read_index(str(tmp_path / "index.json"), "face EDIT")] == ["Face Thing"]
    assert len(read_index(str(tmp_path / "index.json"))) == 2
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InvalidValueError, match="no JSON"):
        read_index(str(tmp_path / "bad.json"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("torchvision", "another PyTorch"),
        ("torch<2.1", "runs with torch 2.13.0"),
        ("pydantic==1.10.2", "runs with pydantic 2.14.3"),
        ("numpy<2", "runs with numpy 2.4.6"),
        ("git+https://example.org/x", "address"),
        ("thing @ https://example.org/x.whl", "address"),
        ("pydantic>=2", ""),
        ("opencv-python", ""),
    ],
)
def test_packages_that_cannot_be_had_are_refused_by_name(line: str, reason: str) -> None:
    found = why_not(line, PINS)
    assert reason in found and bool(found) == bool(reason)


def test_what_an_extension_wants_is_read_and_nothing_is_run(tmp_path: Path) -> None:
    lines = "# a comment\nno-such-package>=2\nnumpy\ntorchvision\n-r other.txt\nwin-only; sys_platform == 'win32'\n"
    write(tmp_path, {"mine/requirements.txt": lines, "mine/install.py": "raise SystemExit(5)"})
    plan = plan_for(tmp_path / "mine", PINS)
    assert plan.missing == ("no-such-package>=2",) and plan.installer == "raise SystemExit(5)"
    assert plan.refused is not None and list(plan.refused) == ["torchvision"]
    assert missing_of(["pytest>1", "pytest>999"]) == ["pytest>999"]


def test_pip_runs_under_our_versions_and_only_when_agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotInstalledHere, match="after a question"):
        install_now("install wheel", "wheel")
    calls: list[list[str]] = []

    def run(words: list[str], extension: str, folder: Path | None = None) -> str:
        constraints = Path(words[words.index("--constraint") + 1]).read_text()
        calls.append([*words[-1:], *[line for line in constraints.splitlines() if line.startswith("pydantic==")]])
        return "done"

    monkeypatch.setattr(packages, "_run", run)
    monkeypatch.setenv(packages.AGREED, "mine")
    assert install_now("install opencv-python>=4", "opencv") == "done"
    assert calls == [["opencv-python-headless>=4", f"pydantic=={packages.program_pins()['pydantic']}"]]
    with pytest.raises(NotInstalledHere, match="torchvision"):
        install_now("install torchvision", "it")


def test_an_installer_finds_launch_and_its_failure_is_said(tmp_path: Path) -> None:
    text = "import launch\nassert launch.is_installed('numpy')\nassert not launch.is_installed('nothing_here')\n"
    text += "assert launch.run('git -C x submodule update --init') == ''\nprint('fine')\n"
    write(tmp_path, {"mine/install.py": text, "bad/install.py": "raise RuntimeError('oops')"})
    assert packages.run_installer(tmp_path / "mine").endswith("fine")
    with pytest.raises(NotInstalledHere, match="RuntimeError: oops"):
        packages.run_installer(tmp_path / "bad")
    assert sys.executable


def test_an_installer_finds_the_names_of_the_reference_ui(tmp_path: Path) -> None:
    """Its process has no program, and its folder is where it looks for its own files."""
    (tmp_path / "own.py").write_text("word = 'own'\n")
    (tmp_path / "install.py").write_text(
        "import launch, sys\nfrom modules import launch_utils, paths_internal\nimport own\n"
        "print(own.word, launch.is_installed('numpy'), paths_internal.modules_path, sys.argv)\n"
    )
    said = packages.run_installer(tmp_path)
    assert said == f"own True {Path(__file__).parents[2] / 'modules'} ['{tmp_path / 'install.py'}']"
