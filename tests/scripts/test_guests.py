"""What an extension adds to the program as training does: tasks, tabs, routes; and training switched off."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from modules.access.roles import Role
from modules.api.app import build_api
from modules.assembly import task_starters
from modules.jobs.job import Job
from modules.jobs.tasks import Task, TaskSpec
from modules.jobs.work.letting_in import images_between
from modules.processing.comparison.series import SeriesReport
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from modules.ui.app import build_page
from modules.ui.common.tab_order import tab_titles, tabs_of_extensions
from tests.fakes import fake_services, in_loop, mounted_page, page_config

SOURCE = """
from modules import script_callbacks
from modules.jobs.tasks import TaskSpec

def starters(computing):
    def counting(asked):
        def work(task):
            task.progress(1, 1, "counting")
            return {"files": len(computing.catalogue.entries), "asked": asked["number"]}
        return TaskSpec("toy-count", "Counting", work, asked)
    return {"toy-count": counting, "merge": counting}

def routes(app, services):
    @app.post("/featherweight/v1/toy")
    @script_callbacks.open_to("user")
    def toy() -> int:
        return services.queue.waiting_count()
    @app.post("/sdapi/v1/txt2img")
    def stolen() -> int:
        return 1

def build(place):
    import gradio as gr
    gr.Textbox(label="Toy words", elem_id="toy_words")
    place.when_opened(lambda: place.services.version, outputs=[place.checkpoint])
    1 / 0

script_callbacks.on_tasks(starters)
script_callbacks.on_tasks(lambda computing: 1 / 0, name="broken")
script_callbacks.on_api(routes)
script_callbacks.on_api(lambda app, services: 1 / 0, name="broken")
script_callbacks.on_page_tabs(lambda: [script_callbacks.PageTab("toys", "Toys", build, after="extras", least="user")])
"""


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    folder = tmp_path_factory.mktemp("data")
    scripts = folder / "extensions" / "toybox" / "scripts"
    scripts.mkdir(parents=True)
    (scripts / "script.py").write_text(SOURCE)
    services = fake_services(folder, api_auth="ann:secret")
    yield services
    services.dispatcher.close()


def test_tasks_of_extensions_begin_from_what_was_asked_for(services: Services) -> None:
    starters = task_starters(services)
    task = services.queue.submit_spec(starters["toy-count"]({"number": 7}))
    assert task.wait(60)
    assert task.result() == {"files": len(services.catalogue.entries), "asked": 7}
    assert starters["merge"].__module__ != "featherweight_scripts.toybox.script", "the program's own stay"
    assert {"training", "learning-rate", "embedding"} <= set(starters), "the broken one costs no other"
    services.queue.repeats.add(starters)
    again = services.queue.again(task.task_id)
    assert again.wait(60) and isinstance(again, Task) and again.result()["asked"] == 7


def test_routes_of_extensions_are_guarded_and_replace_nothing(services: Services) -> None:
    app = build_api(services)
    client = TestClient(app, raise_server_exceptions=False)
    ann = ("ann", "secret")
    assert client.post("/featherweight/v1/toy").status_code == 401
    assert client.post("/featherweight/v1/toy", auth=ann).json() == 0
    assert client.get("/featherweight/v1/toy", auth=ann).status_code == 405
    assert client.post("/sdapi/v1/txt2img", json={"width": 7}, auth=ann).status_code == 422
    found = next(route for route in app.state.open_routes if route.pattern.match("/featherweight/v1/toy"))
    assert (found.methods, found.least) == ({"POST"}, Role.USER)


def test_tabs_of_extensions_stand_among_the_programs_own(services: Services) -> None:
    names = list(tab_titles(tabs_of_extensions(services.scripts.callbacks)))
    assert names[names.index("extras") + 1] == "toys" and names[names.index("modelmerger") + 1] == "train"
    built = in_loop(lambda: build_page(services))
    assert built.tab_roles == {"modelmerger": "admin", "train": "admin", "precision": "admin", "toys": "user"}
    parts = {part["props"].get("elem_id"): part for part in built.blocks.config["components"]}
    assert {"tab_toys", "toy_words", "tab_train", "train_start", "tab_settings"} <= set(parts)
    faults = services.scripts.extensions["toybox"].faults
    assert [fault.where for fault in faults].count("page_tabs") == 1 and "ZeroDivisionError" in faults[-1].reason


@pytest.mark.parametrize(
    ("name", "tabs", "route", "tag", "task"),
    [
        ("training", ("train",), "train", "training", "training"),
        ("workbench", ("modelmerger", "precision"), "convert", "precision", "merge"),
    ],
)
def test_a_part_of_the_program_can_be_switched_off(
    tmp_path: Path, name: str, tabs: tuple[str, ...], route: str, tag: str, task: str
) -> None:
    (tmp_path / "config.json").write_text(f'{{"disabled_extensions": ["{name}"]}}')
    services = fake_services(tmp_path)
    client = TestClient(mounted_page(services), raise_server_exceptions=False)
    assert client.post(f"/featherweight/v1/{route}", json={}).status_code == 404
    assert tag not in {found["name"] for found in client.get("/openapi.json").json()["tags"]}
    assert task not in task_starters(services) and {"extension", "interrogation"} & set(task_starters(services))
    titles = list(tab_titles(tabs_of_extensions(services.scripts.callbacks)))
    left = [one for one in ("pnginfo", "modelmerger", "train", "precision", "getmodels") if one not in tabs]
    assert [one for one in titles if one in (*left, *tabs)] == left
    ids = {part["props"].get("elem_id") for part in page_config(services)["components"]}
    assert not ids & {f"tab_{one}" for one in tabs} and "tab_settings" in ids
    assert name != "workbench" or services.scripts.program.report(SeriesReport((), (), "")) == ""
    services.dispatcher.close()


def test_a_task_lets_images_in_between_two_of_its_steps(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def fits_beside(request: GenerationRequest) -> bool:
        asked.append(request.prompt)
        return request.prompt == "small"

    monkeypatch.setattr(services.estimator, "fits_beside", fits_beside)
    made: list[bool] = []

    def work(task: Task) -> dict[str, Any]:
        let_images_in = images_between(task, services)
        made.append(let_images_in())
        jobs: list[Job] = [services.queue.submit(GenerationRequest(prompt=prompt)) for prompt in ("large", "small")]
        made.append(let_images_in())
        made.append(let_images_in())
        return {"left": [job.request.prompt for job in jobs if not job.is_let_in]}

    task = services.queue.submit_spec(TaskSpec("toy-steps", "Steps", work, {}))
    assert task.wait(60)
    assert task.result() == {"left": ["large"]} and made == [False, True, False]
    assert asked == ["large", "small"], "one that had no room is not looked at again at once"
