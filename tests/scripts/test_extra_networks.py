"""A stranger's extension with its own kind of tags, page of cards, setting and route: on the page, over HTTP, and in
the image."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from modules.assembly import build_services
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.model_cards.cards import CardPage
from modules.processing.engine.adapters import AdapterJob, Adapters
from modules.processing.engine.engine import Engine
from modules.processing.request.result import Result
from modules.prompting.extra_networks import extract_tags
from modules.scripts import extra_networks
from modules.scripts.library import ScriptLibrary
from modules.scripts.program import Program
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings
from tests.extensions import built_in
from tests.fakes import mounted_page
from tests.recordings import TINY
from tests.scripts.toys import extension, run, small_request

SOURCE = """
from pathlib import Path
import modules.scripts as scripts
from modules import extra_networks, script_callbacks
from modules.errors import InvalidValueError

PROGRAM = scripts.program_now()
SEEN = []

class Tint(extra_networks.ExtraNetwork):
    hook = None

    def activate(self, job, tags):
        SEEN.append([tag.items for tag in tags])
        self.deactivate(job)
        if not tags:
            return
        if not job.settings.flag("tint_on"):
            job.notices.append("Tints are off.")
            return
        name = tags[0].positional[0]
        if name == "broken":
            raise KeyError(name)
        if name not in found():
            raise InvalidValueError(f"There is no tint {name!r}.")
        strength = float(tags[0].named.get("by", "1"))
        self.hook = job.model.unet.conv_out.register_forward_hook(lambda layer, inputs, out: out * (1 - strength / 2))
        job.fields["Tint"] = f"{name} {strength}"

    def deactivate(self, job):
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
            SEEN.append("taken off")

def found():
    return [path.stem for folder in PROGRAM.folders("Tints") for path in sorted(folder.glob("*.tint"))]

def page(program):
    return extra_networks.CardPage(
        id="tints", title="Tints & more", folders=program.folders("Tints"), suffixes=(".tint",), tag="tint",
        tag_aliases=("dye",), notes=("description",),
        list_files=lambda listing, settings: [
            extra_networks.ModelFile(Path(entry.path), Path(entry.path).stem, Path(entry.path).stem, {"hue": "7"})
            for entry in listing.with_suffix((".tint",))
        ],
    )

def routes(page, app):
    app.add_api_route("/tints", found)

extra_networks.register_extra_network(Tint("tint", aliases=("dye",)))
extra_networks.register_page(page)
script_callbacks.on_ui_settings(lambda settings: settings.section("extra_networks").flag("tint_on", "Tints", True))
script_callbacks.on_app_started(routes)
"""


def write(folder: Path, source: str, name: str) -> Path:
    (folder / name / "scripts").mkdir(parents=True)
    (folder / name / "scripts" / "script.py").write_text(source)
    return folder


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    data = tmp_path_factory.mktemp("data")
    write(data / "extensions", SOURCE, "tints")
    (data / "models" / "Tints").mkdir(parents=True)
    (data / "models" / "Tints" / "warm.tint").write_text("anything")
    built_in()  # its settings stay
    entries, lookup = dict(SETTINGS._entries), dict(SETTINGS._lookup)
    services = build_services(Flags(data_dir=str(data), ckpt=str(TINY), use_cpu=("all",), no_hashing=True))
    services.dispatcher.start()
    yield services
    services.dispatcher.close()
    SETTINGS._entries, SETTINGS._lookup = entries, lookup


@pytest.fixture(scope="module")
def client(services: Services) -> TestClient:
    return TestClient(mounted_page(services), raise_server_exceptions=False)


def image(client: TestClient, prompt: str, **settings: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "steps": 2, "width": 64, "height": 64, "seed": 3, "save_images": False}
    reply = client.post("/sdapi/v1/txt2img", json={**body, "override_settings": settings})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def seen() -> list[Any]:
    found: list[Any] = sys.modules["featherweight_scripts.tints.script"].__dict__["SEEN"]
    return found


def test_its_tag_works_and_stands_in_the_infotext(client: TestClient) -> None:
    plain = image(client, "a cat")
    tinted = image(client, "a cat <dye:warm:by=0.5>")
    assert tinted["images"] != plain["images"]
    assert "Tint: warm 0.5" in tinted["info"] and "Tint" not in plain["info"]
    again = image(client, "a cat")
    assert again["images"] == plain["images"]  # it left nothing behind
    assert [("warm", "by=0.5")] in seen() and seen().count("taken off") == 1


def test_its_errors_end_the_job_with_its_sentence(client: TestClient) -> None:
    body = {"prompt": "a <tint:cold>", "steps": 1, "width": 64, "height": 64}
    refused = client.post("/sdapi/v1/txt2img", json=body)
    assert refused.status_code == 422 and "There is no tint 'cold'." in refused.json()["errors"]
    broken = client.post("/sdapi/v1/txt2img", json={**body, "prompt": "a <tint:broken>"})
    assert broken.status_code == 422 and "<tint:...> failed (KeyError: 'broken')" in broken.json()["errors"]


def test_its_setting_stands_in_our_section(client: TestClient, services: Services) -> None:
    assert SETTINGS.get("tint_on").section == SETTINGS.get("sd_lora").section
    assert client.get("/sdapi/v1/options").json()["tint_on"] is True
    off = image(client, "a cat <tint:warm>", tint_on=False)
    assert "Tint: " not in off["info"]


def test_its_cards_are_on_the_page_and_listed(client: TestClient) -> None:
    listed = client.get("/internal/extra-networks", params={"page": "tints"}).json()
    (card,) = listed["cards"]
    assert (card["name"], card["prompt"], card["tag_types"]) == ("warm", "<tint:warm:1>", ["tint", "dye"])
    details = client.get("/internal/extra-networks/details", params={"page": "tints", "key": card["key"]}).json()
    assert details["metadata"] == {"hue": "7"} and details["fields"] == ["description"]
    changes = {"page": "tints", "key": card["key"], "changes": {"description": "like the evening"}}
    assert client.post("/internal/extra-networks/notes", json=changes).json()["description"] == "like the evening"
    page = client.get("/").text
    tabs = re.findall(r'"(?:txt2img_(generation|checkpoints|lora|tints))"', page)
    assert set(tabs) == {"generation", "checkpoints", "lora", "tints"}
    assert re.search(r'lora.?", .?"tints.?"\]', page)  # which lists the page's script may ask for


def test_its_route_answers(client: TestClient) -> None:
    assert client.get("/tints").json() == ["warm"]


def test_without_extensions_a_tag_is_of_an_unknown_kind(engine: Engine, tmp_path: Path) -> None:
    adapters = engine.adapters
    try:
        engine.adapters = Adapters()
        result = run(small_request(prompt="a cat <lora:x:1>"), engine, tmp_path, ScriptLibrary())
        plain = run(small_request(prompt="a cat "), engine, tmp_path, ScriptLibrary())
    finally:
        engine.adapters = adapters
    assert result.notices == ("No type of adapter is called <lora:...>; it was left out.",)
    assert np.array_equal(np.asarray(result.samples[0].image), np.asarray(plain.samples[0].image))


class Failing(extra_networks.ExtraNetwork):
    """Fails whatever it is asked."""

    def activate(self, job: AdapterJob, tags: Any) -> None:
        raise RuntimeError("no")

    def deactivate(self, job: AdapterJob) -> None:
        raise RuntimeError("no")


def make(engine: Engine, folder: Path, kind: extra_networks.ExtraNetwork, prompt: str) -> Result:
    adapters = engine.adapters
    try:
        engine.adapters = Adapters(types=[kind])
        return run(small_request(prompt=prompt), engine, folder, ScriptLibrary())
    finally:
        engine.adapters = adapters


def test_a_kind_that_fails_without_being_asked_costs_a_notice(engine: Engine, tmp_path: Path) -> None:
    result = make(engine, tmp_path, Failing("bad"), "a cat")
    assert result.samples and result.notices == ("<bad:...>, which the prompt does not use, failed (no).",)
    with pytest.raises(InvalidValueError, match="Take the tag out of the prompt"):
        make(engine, tmp_path, Failing("bad"), "a cat <bad:1>")


class Nothing(extra_networks.ExtraNetwork):
    """Does nothing, and says nothing of what it depends on."""

    def activate(self, job: AdapterJob, tags: Any) -> None:
        return


def test_a_prompt_is_not_taken_from_the_cache_with_other_tags() -> None:
    adapters = Adapters(types=[Nothing("x", ["y"])])
    model: Any = None
    job = AdapterJob(model, Settings(), adapters.files)
    adapters._types = adapters._types[1:]  # hypernetworks need a model
    for prompt, names in (("a <x:1><y:2>", ["<x:1>", "<x:2>"]), ("a", [])):
        active = adapters.activate(model, extract_tags(prompt)[1], job.settings)
        assert [use.name for use in active.uses] == names


@pytest.mark.parametrize(
    ("name", "said"),
    [("tint", "by a/script.py"), ("dye", "by a/script.py"), ("hypernet", "by the program"), ("a b", "letters")],
)
def test_names_that_are_refused(name: str, said: str, tmp_path: Path) -> None:
    head = "from modules import extra_networks\nextra_networks.register_extra_network(extra_networks.ExtraNetwork("
    write(tmp_path, f"{head}'tint', ['dye']))", "a")
    library = extension(tmp_path, f"{head}{name!r}))", "b")
    assert [tag_type.name for tag_type in library.adapters.types] == ["tint"]
    (fault,) = library.faults
    assert fault.startswith("b/script.py: InvalidValueError") and said in fault


def test_only_files_that_are_loaded_can_register() -> None:
    with pytest.raises(InvalidValueError, match="register_extra_network was called while no extension is loaded"):
        extra_networks.register_extra_network(extra_networks.ExtraNetwork("late"))
    with pytest.raises(InvalidValueError, match="register_page was called while no extension is loaded"):
        extra_networks.register_page(lambda program: CardPage("late", "Late", (), lambda listing, settings: [], ()))


def test_a_page_that_cannot_be_built_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    head = "from modules import extra_networks as e\n"
    page = "e.CardPage({!r}, 'T', (), lambda listing, settings: [], ())"
    pages = [page.format(name) for name in ("good", "checkpoints", "a-b", "generation")]
    registered = [f"e.register_page(lambda program: {made})" for made in (*pages, "1 / 0")]
    library = extension(tmp_path, head + "\n".join(registered))
    ours = CardPage("checkpoints", "Checkpoints", (), lambda listing, settings: [], ())
    with caplog.at_level("ERROR"):
        found = library.adapters.pages(Program(), [ours])
    assert [page.id for page in found] == ["checkpoints", "good"]
    assert caplog.text.count("The page of cards of toy/script.py could not be built.") == 4


def test_a_file_that_fails_leaves_nothing(tmp_path: Path) -> None:
    source = "from modules import extra_networks as e\ne.register_extra_network(e.ExtraNetwork('x'))\n"
    library = extension(tmp_path, source + "e.register_page(lambda program: None)\n1 / 0")
    assert library.faults and library.adapters.types == () and library.adapters.pages(Program()) == ()
