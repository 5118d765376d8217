"""The line of jobs as the routes of Agent Scheduler use it: each call acts for the user who sent the request."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.testclient import TestClient

from lib_agent_scheduler.line_access import FIRST, LAST, LineAccess
from modules.access.auth_file import new_key, write_accounts
from modules.access.roles import open_to
from modules.api.app import build_api
from modules.api.schema.schemas import Txt2ImgBody
from modules.scripts.callbacks import Moment, Registered
from modules.services import Services
from tests.fakes import fake_services
from tests.security.conftest import account

SMALL = {"steps": 1, "width": 64, "height": 64}
Clients = dict[str, TestClient]


def scheduler(app: FastAPI, services: Services) -> None:
    """What an extension adds when the API is built."""
    line = LineAccess(services)

    @app.post("/mine/submit")
    @open_to("user")
    def submit(body: Txt2ImgBody, request: Request) -> str:
        return line.submit(request, body)

    @app.get("/mine/waiting")
    @open_to("user")
    def waiting(request: Request) -> list[Any]:
        found = [[entry.title, entry.type, entry.parameters["width"]] for entry in line.waiting(request, 10)]
        assert line.waiting_count(request) == len(found) and line.running(request) is None
        return found

    @app.post("/mine/act")
    @open_to("user")
    def act(do: str, task_id: str, request: Request) -> Any:
        acts: dict[str, Any] = {
            "entry": lambda: line.entry(request, task_id).status,
            "place": lambda: line.place(request, task_id),
            "rename": lambda: line.change(request, task_id, {"steps": 2}, "renamed"),
            "first": lambda: line.move(request, task_id, FIRST),
            "last": lambda: line.move(request, task_id, LAST),
            "next": lambda: line.run_next(request, task_id),
            "bookmark": lambda: line.bookmark(request, task_id),
            "again": lambda: line.again(request, task_id),
            "remove": lambda: line.remove(request, task_id),
            "copy": lambda: line.imported(request, [wanted for _, wanted in line.exported(request, 10)]),
            "clear": lambda: line.clear(request),
        }
        return acts[do]()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Services, Clients]]:
    """A program that begins nothing, and a client of each of three users."""
    folder = tmp_path_factory.mktemp("line")
    made = {name: new_key(account(name), "test") for name in ("ada", "ben", "cleo")}
    write_accounts(folder / "users.json", {name: found for name, (found, _) in made.items()})
    services = fake_services(folder / "data", auth_file=str(folder / "users.json"))
    services.queue.pause()
    services.scripts.callbacks.add(Registered(Moment.API, scheduler, "mine"))
    app = build_api(services)
    headers = {name: {"Authorization": f"Bearer {key}"} for name, (_, key) in made.items()}
    yield services, {name: TestClient(app, headers=header) for name, header in headers.items()}
    services.dispatcher.close()


def act(client: TestClient, do: str, task_id: str = "-") -> Any:
    return client.post("/mine/act", params={"do": do, "task_id": task_id})


def test_each_call_acts_for_the_user_who_sent_the_request(program: tuple[Services, Clients]) -> None:
    services, clients = program
    ada, ben, cleo = (clients[name] for name in ("ada", "ben", "cleo"))
    first, second = (ben.post("/mine/submit", json={**SMALL, "prompt": prompt}).json() for prompt in ("one", "two"))
    other = cleo.post("/mine/submit", json={**SMALL, "prompt": "three"}).json()
    assert ben.get("/mine/waiting").json() == [["one", "txt2img", 64], ["two", "txt2img", 64]]
    assert len(cleo.get("/mine/waiting").json()) == 1 and len(ada.get("/mine/waiting").json()) == 3
    for do in ("entry", "place", "rename", "first", "last", "next", "bookmark", "again", "remove"):
        assert act(cleo, do, first).status_code == 404, do
    assert act(ben, "entry", first).json() == "queued" and act(ada, "entry", other).json() == "queued"
    assert act(ben, "first", second).status_code == 200 and act(ben, "place", second).json() == 0
    assert act(ben, "rename", first).status_code == 200
    assert services.queue.record(first).title == "renamed"
    assert act(cleo, "copy").json() and len(cleo.get("/mine/waiting").json()) == 2
    assert act(cleo, "clear").json() == 2 and len(ada.get("/mine/waiting").json()) == 2
    assert act(ben, "remove", first).status_code == 200 and act(ben, "entry", first).json() == "interrupted"
    assert act(ada, "next", first).json() != first, "an ended one is put in line again"
    assert act(ben, "remove", first).status_code == 200 and act(ben, "entry", first).status_code == 404
