"""What extensions of the reference UI take for granted: names, element ids, lists that are asked in `ui`, packages."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path

import gradio as gr
import pytest

from compat import foreign
from compat.foreign import Foreign
from compat.habits.gradio_habits import layouts_of
from compat.loading.guards import TooLongError, within
from compat.store import packages
from compat.store.check import check_all, extensions_in
from compat.store.packages import GUARDED, ROOT, Change, NotInstalledHere, PipWords, install_checked, undo_last
from modules.errors import InvalidValueError
from modules.processing.request.parameters import Tab
from modules.scripts.library import ScriptLibrary, components_of, script_info
from modules.services import Services
from modules.ui.form.scripts_panel import build_scripts
from tests.compat.conftest import Files, write
from tests.fakes import in_loop
from tests.scripts.toys import small_request

HEAD = "import gradio as gr\nfrom modules import scripts\nfrom modules.scripts import AlwaysVisible\n"
Program = Callable[[Files], Services]


def script(title: str, body: str) -> str:
    """A script that is always on, with this body of `ui`."""
    return (
        f"{HEAD}class Mine(scripts.Script):\n"
        f"    def title(self): return {title!r}\n"
        "    def show(self, is_img2img): return AlwaysVisible\n"
        "    def ui(self, is_img2img):\n" + "".join(f"        {line}\n" for line in body.splitlines())
    )


ASKS = (
    "runner = scripts.scripts_img2img if is_img2img else scripts.scripts_txt2img\n"
    "names = [one.title() for one in runner.alwayson_scripts]\n"
    "return [gr.Textbox(','.join(names), label='names')]"
)
CALLS = (
    "for one in scripts.scripts_txt2img.alwayson_scripts:\n"
    "    if one.title() in ('One', 'Two') and one.title() != self.title(): one.ui(is_img2img)\n"
    "return [gr.Textbox(label='x')]"
)


def test_ui_that_asks_for_the_scripts_of_a_tab_ends(program: Program) -> None:
    services = program(
        {
            "asks/scripts/a.py": script("Asks", ASKS),
            "one/scripts/a.py": script("One", CALLS),
            "two/scripts/a.py": script("Two", CALLS),
            "fails/scripts/a.py": script("Fails", "raise ValueError('no')"),
        }
    )
    library = services.scripts
    found = {one.title(): script_info(one) for one in library.alwayson_of(False)}
    assert found["Asks"] is not None
    assert "One" in found["Asks"]["args"][0]["value"] and "Tiled VAE" in found["Asks"]["args"][0]["value"]
    assert found["Fails"] is None and found["One"] is None and found["Tiled VAE"] is not None
    assert "was called again from inside of itself" in library.extensions["one"].faults[0].reason
    with pytest.raises(InvalidValueError, match="Fails is left out"):
        components_of(library.find_alwayson("Fails"))
    assert [fault.where for fault in library.extensions["fails"].faults] == ["ui"]


def test_ui_runs_once_per_tab_for_page_and_api(program: Program) -> None:
    body = "with open(__file__ + '.log', 'a') as file: file.write('x')\nreturn [gr.Textbox('mine', label='x')]"
    services = program({"counts/scripts/a.py": script("Counts", body)})

    def build(tab: Tab) -> None:
        with gr.Blocks(analytics_enabled=False):
            build_scripts(services, tab)

    for tab in (Tab.TXT2IMG, Tab.IMG2IMG):
        in_loop(partial(build, tab))
    for is_img2img in (False, True):
        assert script_info(services.scripts.find_alwayson("Counts", is_img2img), is_img2img)
    assert (services.paths.extensions_dir / "counts/scripts/a.py.log").read_text() == "xx"


def test_styles_are_put_into_prompts_by_an_extension(program: Program) -> None:
    body = (
        "from modules import ui_prompt_styles as styles\n"
        "values = [one['value'] for one in styles.materialize_styles('a cat', '', ['nowhere'])]\n"
        "values += styles.select_style('nowhere')[:2]\n"
        "return [gr.Textbox(str([*values, self.tabname]), label=styles.styles_materialize_symbol)]"
    )
    services = program({"puts/scripts/a.py": script("Puts", body)})
    found = script_info(services.scripts.find_alwayson("Puts"))
    assert found is not None and found["args"][0]["value"] == "['a cat', '', [], '', '', 'txt2img']"


def test_code_that_computes_or_waits_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "LOADING_LIMIT_S", 0.2)
    write(tmp_path, {"loops/scripts/a.py": script("Loops", "while True: pass")})
    library = ScriptLibrary.load([tmp_path], foreign=Foreign())
    assert script_info(library.scripts[0]) is None
    assert "not done after 0.2 s of computing" in library.extensions["loops"].faults[0].reason
    began = time.monotonic()
    assert script_info(library.scripts[0]) is None
    assert time.monotonic() - began < 0.2
    with pytest.raises(TooLongError):
        within(0.1, lambda: time.sleep(3))
    assert within(0.1, lambda: within(0.1, lambda: 3)) == 3


def test_names_and_habits(tmp_path: Path) -> None:
    source = (
        HEAD
        + "from importlib.metadata import version\n"
        + "from modules.textual_inversion import autocrop, ui\n"
        + "from modules import patches, sd_models\n"
        + "import networks, pkg_resources\n"
        + "from basicsr.utils.download_util import load_file_from_url\n"
        + "from modules.ui_extra_networks import quote_js\n"
        + "assert __package__ == 'a', __package__\n"
        + "assert version('torchvision').startswith('0.')\n"
        + "class Held: value = 1\n"
        + "assert patches.patch('me', Held, 'value', 2) == 1 and Held.value == 2\n"
        + "patches.undo('me', Held, 'value')\nassert Held.value == 1\n"
        + "import torch\n"
        + "try: patches.patch('me', torch.nn.Linear, 'forward', None)\n"
        + "except Exception as error: assert 'not replaced' in str(error)\n"
        + "assert pkg_resources.get_distribution('gradio>=1').version\n"
        + "networks.available_networks.__class__.__setitem__\n"
        + "assert quote_js('a\"b') == '\"a\\\\\"b\"'\n"
    )
    write(
        tmp_path, {"mine/scripts/a.py": source, "lost/scripts/b.py": "import helper_of_b", "lost/helper_of_b.txt": ""}
    )
    write(tmp_path, {"lost/scripts/helper_of_b/x.txt": "", "old/scripts/c.py": "import repositories.midas"})
    library = ScriptLibrary.load([tmp_path], foreign=Foreign())
    assert library.extensions["mine"].faults == []
    assert "a file of the reference UI that is not here" in library.extensions["old"].faults[0].reason


def test_entries_that_extensions_put_into_lists_are_theirs() -> None:
    from compat.looked_up import LookedUp

    found = LookedUp(lambda: {"a": 1})
    found["b"] = 2
    del found["a"]
    assert dict(found) == {"a": 1, "b": 2} and len(found) == 2
    found.clear()
    assert dict(found) == {"a": 1}
    with pytest.raises(KeyError):
        del found["c"]


def test_rows_of_the_reference_page_are_told_by_the_controls_in_them() -> None:
    assert layouts_of("txt2img_prompt") == ["txt2img_prompt_container", "txt2img_prompt_row"]
    assert layouts_of("hires_prompt") == ["txt2img_hires_fix_row4"]
    assert layouts_of("pnginfo_image") == layouts_of(None) == []


def test_a_callback_before_saving_gets_the_name_of_the_file(program: Program) -> None:
    source = (
        "from pathlib import Path\nfrom modules import script_callbacks\n"
        "def before(params): (Path(params.filename).parent / 'said.csv').write_text(params.filename)\n"
        "script_callbacks.on_before_image_saved(before)\n"
    )
    services = program({"mine/scripts/a.py": source})
    job = services.queue.submit(small_request(steps=1, save_images=True, settings={"samples_save": True}))
    assert job.wait(600)
    path = job.result().images[0].path
    assert path is not None and (path.parent / "said.csv").read_text() == str(path)


def test_what_an_extension_does_outside_of_the_program_is_named(tmp_path: Path) -> None:
    source = (
        "import socket, subprocess, sys\nfrom modules import version\n"
        "subprocess.run([sys.executable, '--version'], capture_output=True)\n"
        "port = socket.socket()\nport.bind(('127.0.0.1', 0))\nport.close()\n"
        "open(version.__file__, 'a').close()\n"
    )
    write(tmp_path, {"acts/scripts/a.py": source})
    notices = ScriptLibrary.load([tmp_path], foreign=Foreign()).extensions["acts"].notices
    assert [notice.partition(" ")[2].split()[0] for notice in notices] == ["starts", "opens", "writes"]


PINS = {"torch": "2.13.0", "numpy": "2.4.6"}


@pytest.mark.parametrize(
    ("words", "requirements", "is_alone"),
    [
        ("install -U a b==2", ("a", "b==2"), False),
        ("install --no-deps a", ("a",), True),
        ("install -r wanted.txt --prefer-binary", ("c>=1", "d"), False),
        ("install --requirement=wanted.txt e -i https://example.org/simple", ("c>=1", "d", "e"), False),
    ],
)
def test_words_of_pip(tmp_path: Path, words: str, requirements: tuple[str, ...], is_alone: bool) -> None:
    (tmp_path / "wanted.txt").write_text("c>=1 # why\n\nd\n")
    found = PipWords.of(words.split(), tmp_path)
    assert (found.command, found.requirements, found.is_alone) == ("install", requirements, is_alone)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("uninstall -y torch", "the program runs with it"),
        ("install numpy==1.26", "would not start"),
        ("install torchvision", "another PyTorch"),
        ("install git+https://example.org/a", "an address"),
        ("install -r none.txt", "cannot be read"),
    ],
)
def test_words_of_pip_that_are_refused(tmp_path: Path, words: str, reason: str) -> None:
    with pytest.raises(NotInstalledHere, match=reason):
        PipWords.of(words.split(), tmp_path).check(PINS)


def test_each_pip_of_an_installer_is_guarded() -> None:
    environ = {"PYTHONPATH": f"{GUARDED}{os.pathsep}{ROOT}", "PATH": os.environ["PATH"]}
    words = [sys.executable, "-m", "pip", "uninstall", "-y", "torch"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the program runs with it" in done.stderr


def test_an_installation_that_replaces_a_pin_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = [{"torch": "2.13.0"}, {"torch": "1.0", "new": "1"}]
    said: list[list[str]] = []
    monkeypatch.setattr(packages, "installed", lambda: states[0])
    monkeypatch.setattr(packages, "program_pins", lambda: {"torch": "2.13.0"})
    monkeypatch.setattr(packages, "_run", lambda words, *more: said.append(words) or "done")
    record = tmp_path / "record.json"
    with pytest.raises(NotInstalledHere, match="torch"):
        install_checked(lambda: str(states.pop(0)), record)
    assert said[0][-1] == "torch==2.13.0" and said[1][-2:] == ["--yes", "new"]
    assert undo_last(record) == "done" and not record.exists()
    with pytest.raises(NotInstalledHere, match="No installation"):
        undo_last(record)
    assert Change.since(states[0]).is_empty


def test_metadata_of_packages_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages._installed.cache_clear()
    found = packages.installed()
    assert {"torch", "gradio", "numpy"} <= set(found) and packages.program_pins()["torch"] == found["torch"]
    monkeypatch.setattr(metadata, "distributions", None)
    assert packages.installed() is found
    assert packages.plan_for(tmp_path).is_empty


def test_a_look_at_an_extension_says_what_was_seen(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"all/mine/scripts/a.py": script("Mine", "return [gr.Checkbox(label='on')]"), "all/bad/scripts/b.py": "1 / 0"},
    )
    bad, good = check_all(extensions_in(tmp_path / "all"))  # in processes of their own
    assert good.loads and good.verdict == "loads" and not good.fault and "ui" in good.hooks
    assert not bad.loads and bad.line().startswith("bad: fails") and "ZeroDivisionError" in bad.line()
