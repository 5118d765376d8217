"""An extension that fails costs itself only, and what failed is said by name."""

import sys
from pathlib import Path

import pytest

from compat import foreign
from compat.foreign import Foreign
from compat.loading import guards
from modules.flags.flags import UsageError, parse_flags
from modules.scripts import library
from modules.scripts.acting import Acting, acting
from modules.scripts.callbacks import Moment
from modules.scripts.extension import Extension, Fault, missing_of, reason_of
from modules.scripts.library import ScriptLibrary
from tests.compat.conftest import write

GOOD = "from modules import scripts\nclass Good(scripts.Script):\n    def title(self): return 'Good'\n"
SCRIPT = "from modules import scripts\nclass Bad(scripts.Script):\n    def title(self): return 'Bad'\n"
ALWAYS = SCRIPT + "    def show(self, is_img2img): return scripts.AlwaysVisible\n"


def loaded(folder: Path, bad: str, **more: str) -> ScriptLibrary:
    """A library with an extension "good" and one "bad"."""
    write(folder, {"good/scripts/good.py": GOOD, "bad/scripts/bad.py": bad, **{f"bad/{k}": v for k, v in more.items()}})
    return ScriptLibrary.load([folder], foreign=Foreign())


FORMER = """
from modules.api.auth import identity_of, user_of
from modules.api.documentation import documented
from modules.api.schemas import Img2ImgBody, Tolerant, Txt2ImgBody
from modules.bounded import joined, read_json, read_json_file
from modules.decoding import decode_text
from modules.extra_networks import CardPage, ExtraNetwork, PromptTag, register_page
from modules.model_folders import Listing, files_below
from modules.paths import Paths
from modules.script_callbacks import PageTab, on_app_started, on_cfg_denoiser, open_to
from modules.scripts_postprocessing import Field, PostprocessedImage, ScriptPostprocessing
"""


def test_names_that_moved_are_still_answered(tmp_path: Path) -> None:
    assert loaded(tmp_path, FORMER).extensions["bad"].faults == []


@pytest.mark.parametrize(
    ("source", "reason", "missing"),
    [
        ("raise RuntimeError('oops')", "RuntimeError: oops.", ""),
        ("import sys; sys.exit(3)", "It called sys.exit", ""),
        ("import no_such_package", "It needs the package no_such_package, which is not installed.", "no_such_package"),
        ("from modules.shared import no_name", "", "modules.shared.no_name"),
        ("from modules import sd_hijack_unet as a\na.th.cat = 3", "on_cfg_denoiser", "modules.sd_hijack_unet.th"),
        ("from modules.processing import decode_first_stage as d\nd(1)", "", "modules.processing.decode_first_stage"),
        ("import modules.shared as shared\nshared.reload_gradio_theme()", "style.css", "modules.shared"),
        (SCRIPT + "    def show(self, is_img2img): raise ValueError('show')\n", "ValueError: show.", ""),
        (SCRIPT + "    def __init__(self): raise ValueError('init')\n", "ValueError: init.", ""),
        ("def broken(:", "SyntaxError", ""),
    ],
)
def test_a_file_that_fails_is_named_with_its_reason(tmp_path: Path, source: str, reason: str, missing: str) -> None:
    found = loaded(tmp_path, source, **{"javascript/a.js": "x", "style.css": "a {}"})
    assert {script.title() for script in found.scripts} == {"Good"}
    (fault,) = found.extensions["bad"].faults
    assert reason in fault.reason and fault.missing.startswith(missing) and fault.where == "scripts/bad.py"
    assert found.page_scripts == [] and found.page_styles == []
    assert not found.extensions["good"].faults


def test_a_file_that_blocks_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LOADING_LIMIT_S", 0.3)
    source = "import threading\nfrom modules import script_callbacks\nthreading.Event().wait(600)\n"
    found = loaded(tmp_path, source)
    (fault,) = found.extensions["bad"].faults
    assert "not done after 0.3 s of computing or 1.2 s of waiting" in fault.reason


def test_what_an_extension_prints_is_limited(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    owner = Extension("loud", tmp_path)
    stream = guards.LimitedStream(sys.stdout, limit=100)
    with acting(Acting("loud/a.py", owner=owner)):
        for _ in range(1000):
            stream.write("x" * 50)
    stream.write("ours")
    text = capsys.readouterr().out
    assert len(text) < 400 and text.endswith("ours") and "the rest is not shown" in text
    assert [fault.where for fault in owner.faults] == ["print"]


def test_patched_torch_is_put_back(tmp_path: Path) -> None:
    import torch

    before = torch.nn.Module.__call__, torch.nn.Linear.forward
    source = (
        "import torch\ntorch.nn.Module.__call__ = lambda self, *a: None\n"
        "torch.nn.Linear.forward = lambda self, x: x\ntorch.nn.Module.mine = 3\n"
    )
    found = loaded(tmp_path, source)
    assert (torch.nn.Module.__call__, torch.nn.Linear.forward) == before and not hasattr(torch.nn.Module, "mine")
    assert {fault.missing for fault in found.extensions["bad"].faults} == {
        *("torch.nn.Module.__call__", "torch.nn.Module.mine", "torch.nn.Linear.forward"),
    }


def test_threads_circular_imports_and_two_of_one_name(tmp_path: Path) -> None:
    files = {
        "bad/a_part.py": "import b_part\nvalue = b_part.other\n",
        "bad/b_part.py": "import a_part\nother = a_part.value\n",
        "bad/scripts/bad.py": "import a_part\n",
        "thread/scripts/t.py": "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(30,), daemon=True).start()\n" + GOOD.replace("Good", "Thread"),
    }
    write(tmp_path / "one", files)
    write(tmp_path / "two", {"bad/scripts/bad.py": GOOD})
    found = ScriptLibrary.load([tmp_path / "one", tmp_path / "two"], foreign=Foreign())
    assert "circular import" in found.extensions["bad"].faults[0].reason
    assert {script.title() for script in found.scripts} == {"Thread"}
    assert "has the same name" in found.extensions["bad"].notices[0]


def test_ui_and_callbacks_that_fail_are_faults(tmp_path: Path) -> None:
    source = (
        ALWAYS
        + "    def ui(self, is_img2img): raise SystemExit(2)\n"
        + "from modules import script_callbacks\n"
        + "def tab(): raise KeyError('tab')\n"
        + "script_callbacks.on_ui_tabs(tab)\nscript_callbacks.on_before_ui(lambda: 1 / 0)\n"
    )
    found = loaded(tmp_path, source)
    assert found.callbacks.call(Moment.BEFORE_UI) == []
    assert found.callbacks.call(Moment.UI_TABS) == []
    where = [fault.where for fault in found.extensions["bad"].faults]
    assert where == ["before_ui", "ui_tabs"]


def test_reasons() -> None:
    assert reason_of(ValueError("a\nb")) == "ValueError: a b."
    assert reason_of(ValueError("x" * 900)).endswith("...")
    assert missing_of(ImportError("cannot import name 'a' from 'modules.b' (x.py)")) == "modules.b.a"
    extension = Extension("a", Path("a"))
    for _ in range(3):
        extension.note("process", ValueError("same"))
    assert extension.faults == [Fault("process", "ValueError: same.")]


def test_flags_of_preload_are_read_and_unknown_ones_stay_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preload = "def preload(parser):\n    parser.add_argument('--mine-words', type=int, default=2)\n"
    write(tmp_path / "extensions", {"mine/preload.py": preload, "bad/preload.py": "raise SystemExit(1)"})
    words = ["--data-dir", str(tmp_path), "--mine-words", "5"]
    assert parse_flags(words).data_dir == str(tmp_path)
    with pytest.raises(UsageError, match="--other-words"):
        parse_flags([*words, "--other-words"])
    monkeypatch.setattr(sys, "argv", ["launch.py", *words])
    found = ScriptLibrary.load([tmp_path / "extensions"], foreign=Foreign())
    assert found.flags == {"mine_words": 5}
    assert found.extensions["bad"].faults[0].where == "preload.py"


def test_what_the_program_does_itself_is_left_out_unless_that_is_switched_off(tmp_path: Path) -> None:
    write(tmp_path, {"sd-webui-freeu/scripts/a.py": GOOD, "b/scripts/a.py": GOOD.replace("'Good'", "'Prompt matrix'")})
    found = ScriptLibrary.load([library.BUILT_IN, tmp_path], foreign=Foreign())
    extension = found.extensions["sd-webui-freeu"]
    assert extension.replaced_by == "freeu" and extension.files == [] and "freeu" in extension.notices[0]
    same = [script for script in found.scripts if script.title().lower() == "prompt matrix"]
    assert [script.is_foreign for script in same] == [True, True]  # one for each tab
    assert "steps aside" in found.extensions["b"].notices[0]
    alone = ScriptLibrary.load([library.BUILT_IN, tmp_path], disabled=["freeu"], foreign=Foreign())
    assert alone.extensions["sd-webui-freeu"].files == ["scripts/a.py"]
