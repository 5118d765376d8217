"""71 extensions that people have: every name that they use is there, or says what to use instead.

`known_extensions.toml` has a row for each. Its statements run here as code of an extension, so that "it loads" is
something that was tried; its main work is done by the stand-in that `shown` names, which several rows share.
`python -m tests.compat.test_known_extensions` writes docs/extensions-known.md.
"""

import ast
import json
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from compat.foreign import Foreign
from modules.api.program.extensions import add_extension_routes
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.scripts.acting import acting
from modules.services import Services
from tests.cases import for_each
from tests.compat.conftest import registries_kept, write
from tests.fakes import in_loop
from tests.recordings import TINY
from tests.scripts.toys import small_request

ROWS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("known_extensions.toml").read_text(encoding="utf-8")
)
CHECKED: dict[str, str] = json.loads(
    Path(__file__).with_name("known_extensions_checked.json").read_text(encoding="utf-8")
)
"""What `extensions --check` said of the newest source, each alone, with the packages of the set and its own."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "extensions-known.md"
GIVEN = ("loads", "works", "left out")
VERDICTS = ("works", "part", "built in", "no")

KNOWN = """
import modules.scripts as scripts

tried = {}

def run(code, names):
    exec(code, names)
    return names

class Known(scripts.Script):
    jobs = {}
    def title(self):
        return "Known extensions"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def process(self, p, *args):
        for name, (codes, names) in self.jobs.items():
            for code in codes:
                try:
                    run(code, {**names, "p": p})
                except Exception as error:
                    tried.setdefault(name, []).append(f"{type(p).__name__}: {type(error).__name__}: {error}")
"""
WORK = """
from pathlib import Path
from fastapi import Request
from fastapi.templating import Jinja2Templates
import modules.scripts as scripts
from modules import script_callbacks

base = scripts.basedir()
saved, steps = [], []

class Words(scripts.Script):
    def title(self):
        return "Words"
    def show(self, is_img2img):
        return scripts.AlwaysVisible
    def process(self, p, *args):
        word = (Path(base) / "words.txt").read_text()
        p.all_prompts = [f"{prompt}, {word}" for prompt in p.all_prompts]
        p.all_negative_prompts[0] += "bad"
        p.extra_generation_params["Words"] = word
        script_callbacks.on_cfg_denoiser(self.before)
        script_callbacks.on_cfg_denoised(self.after)
        self.factor = 0.9
    def before(self, params):
        steps.append((params.denoiser.step, params.sampling_step, params.total_sampling_steps, len(params.text_cond)))
        params.sigma = params.sigma * self.factor
    def after(self, params):
        steps.append(tuple(params.x.shape))
        params.x[:] *= self.factor
    def postprocess(self, p, processed, *args):
        script_callbacks.remove_callbacks_for_function(self.before)
        script_callbacks.remove_callbacks_for_function(self.after)

def started(demo, app):
    @app.get("/mine/words")
    def words():
        return {"words": (Path(base) / "words.txt").read_text()}

    templates = Jinja2Templates(directory=base)

    @app.get("/mine/page")
    def page(request: Request):
        return templates.TemplateResponse("page.html", {"request": request, "word": "blue"})

script_callbacks.on_app_started(started)
script_callbacks.on_before_image_saved(lambda params: params.pnginfo.update(score=7))
def image_saved(params):
    saved.append((params.filename, params.pnginfo["parameters"], params.p.seed))

script_callbacks.on_image_saved(image_saved)
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """A program with two extensions: one that runs the rows' statements, one that works as many of them do."""
    folder = tmp_path_factory.mktemp("data")
    path, modules = list(sys.path), set(sys.modules)
    files = {"known/scripts/known.py": KNOWN, "work/scripts/work.py": WORK, "work/words.txt": "a hat"}
    files["work/page.html"] = "<p>{{ word }} {{ request.url.path }}</p>"
    write(folder / "extensions", files)
    with registries_kept():
        built = build_services(
            Flags(data_dir=str(folder), ckpt=str(TINY), use_cpu=("all",), no_hashing=True), foreign=Foreign()
        )
        built.dispatcher.start()
        yield built
        built.dispatcher.close()
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("featherweight_scripts.known", "featherweight_scripts.work")):
            del sys.modules[name]


def module_of(extension: str) -> Any:
    return sys.modules[f"featherweight_scripts.{extension}.{extension}"]


def statements(source: str) -> list[tuple[str, Any]]:
    """Each statement of a row with its code."""
    tree = ast.parse(source)
    parts = [ast.Module([node], []) for node in tree.body]
    return [(ast.unparse(part), compile(part, "known", "exec")) for part in parts]


def author(services: Services) -> Any:
    """Whose code runs."""
    return next(one.acting for one in services.scripts.scripts if one.title() == "Known extensions")


@pytest.fixture(scope="module")
def loaded(services: Services) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """By row what failed of its statements, and the names that it has then."""
    import gradio as gr

    run: Callable[[Any, dict[str, Any]], dict[str, Any]] = module_of("known").run

    def load(row: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
        failed: list[str] = []
        names: dict[str, Any] = {"gr": gr, "PIL": Image, "__name__": "featherweight_scripts.known.known"}
        with acting(author(services)), gr.Blocks(analytics_enabled=False):
            for text, code in statements(row["load"]):
                try:
                    run(code, names)
                except Exception as error:
                    failed.append(f"{text}: {type(error).__name__}: {error}")
        return failed, names

    found = {name: in_loop(lambda row=row: load(row)) for name, row in ROWS.items()}  # type: ignore[misc]
    module_of("known").Known.jobs = {
        name: ([code for _, code in statements(row["job"])], found[name][1])
        for name, row in ROWS.items()
        if "job" in row
    }
    job = services.queue.submit(small_request(steps=1))
    assert job.wait(600)
    job.result()
    module_of("known").Known.jobs = {}
    return found


@for_each("name", ROWS)
def test_every_name_that_an_extension_uses(
    name: str, services: Services, loaded: dict[str, tuple[list[str], dict[str, Any]]]
) -> None:
    row = ROWS[name]
    failed, names = loaded[name]
    assert failed == []
    assert module_of("known").tried.get(name, []) == []
    for text, code in statements(row.get("refused", "")):
        with pytest.raises(AttributeError, match=r"here: \w.*\.$|run by the program"), acting(author(services)):
            module_of("known").run(code, dict(names))
            pytest.fail(text)


def test_each_row_says_how_it_stands() -> None:
    assert len(ROWS) == 71 and {row["verdict"] for row in ROWS.values()} == set(VERDICTS)
    for name, row in ROWS.items():
        assert row["verdict"] == "works" or row["why"].endswith("."), name
        assert row.get("seen", ".").endswith("."), name
        assert ("shown" in row) or row["verdict"] in ("built in", "no"), name
        if "shown" in row:
            module, _, test = row["shown"].partition(".")
            assert callable(getattr(import_module(f"tests.compat.{module}"), test)), name


def test_the_document_is_made_of_the_rows() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run python -m tests.compat.test_known_extensions"


def test_prompts_are_changed_before_an_image_is_made(services: Services) -> None:
    job = services.queue.submit(small_request(steps=1, batch_size=2))
    assert job.wait(600)
    texts = [image.infotext for image in job.result().images][-2:]
    assert [text.splitlines()[0] for text in texts] == ["a red cat, a hat"] * 2
    assert texts[0].splitlines()[1] == "Negative prompt: bad" and "Words: a hat" in texts[1]


def test_steps_are_seen_and_changed(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    module_of("work").steps.clear()
    job = services.queue.submit(small_request(steps=2))
    assert job.wait(600)
    assert module_of("work").steps[0][:3] == (0, 0, 2) and module_of("work").steps[1][1:] == (4, 8, 8)
    assert services.scripts.extensions["work"].faults == []


def test_images_are_seen_before_they_are_saved(services: Services) -> None:
    job = services.queue.submit(small_request(steps=1, save_images=True, settings={"samples_save": True}))
    assert job.wait(600)
    file, infotext, seed = module_of("work").saved[-1]
    assert infotext.startswith("a red cat, a hat") and seed == 5
    with Image.open(file) as image:
        assert image.info["score"] == "7"


def test_routes_and_files_of_an_extension(services: Services) -> None:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    app = FastAPI()
    add_extension_routes(app, services.scripts.callbacks, None)
    with TestClient(app) as client:
        assert client.get("/mine/page").text == "<p>blue /mine/page</p>"
        assert client.get("/mine/words").json() == {"words": "a hat"}
    assert services.scripts.extensions["work"].faults == []


def document() -> str:
    """Return the rows as a page of the documentation."""
    seen = [row for row in ROWS.values() if "seen" in row]
    worked = sum(row["verdict"] == "works" for row in seen)
    lines = [
        "# Known extensions",
        "",
        "What to expect of 71 widely used extensions of A1111, copied into `extensions/` unmodified.",
        "`tests/compat/test_known_extensions.py` tries the names that each uses. The source of those with a check mark",
        f"was run too: {worked} of {len(seen)} work. `tests/compat/known_extensions.toml` has what was seen,",
        "and the packages that each needs; the tab *Extensions* installs them.",
        "",
        "`launch.py extensions --check FOLDER` tried the newest source of each, with all packages that need no other "
        f"PyTorch: {sum(text.startswith(GIVEN) for text in CHECKED.values())} of {len(CHECKED)} load or are built in, "
        f"{sum(text.endswith('works') for text in CHECKED.values())} changed an image or showed their tab, control or "
        "route.",
    ]
    said = {"works": "Work", "part": "Work in part", "built in": "Are built in", "no": "Do not work"}
    for verdict, title in said.items():
        rows = sorted(
            (item for item in ROWS.items() if item[1]["verdict"] == verdict), key=lambda item: item[0].lower()
        )
        chosen = {name + (" ✓" if "seen" in row else ""): row.get("why", "") for name, row in rows}
        lines += ["", f"## {title} ({len(chosen)})", ""]
        plain = [name for name, why in chosen.items() if not why]
        lines += [f"- {', '.join(plain)}"] if plain else []
        lines += [f"- **{name}**: {why}" for name, why in chosen.items() if why]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
