"""Users of --auth-file: what each role may, on every route of the real app; logins, keys, and whose work is whose."""

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from gradio.routes import App as GradioApp
from PIL import Image
from starlette.routing import Mount

from modules.access.auth_file import read_accounts, write_accounts
from modules.access.passwords import hash_password
from modules.access.roles import Role, Sees, open_to, role_of_function
from modules.api.access.auth import session_cookie
from modules.api.access.permissions import CALLS, OPEN, ROUTES, is_listed, rule_for
from modules.api.app import NearRoute
from modules.api.program.extensions import add_extension_routes
from modules.history.store import ImageFile
from modules.scripts.callbacks import Callbacks, Moment, Registered
from modules.services import Services
from modules.ui.common.callers import least_role
from tests.security.conftest import BASE, CHEAP, PASSWORDS, ROLES, account

SMALL = {"prompt": "a", "steps": 1, "width": 64, "height": 64}


# -- the table ---------------------------------------------------------------------------------------------------------


def routes_of(routes: Any, prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every route below an app: method, path as declared, route."""
    for route in routes:
        if hasattr(route, "original_router"):
            yield from routes_of(route.original_router.routes, prefix + (route.include_context.prefix or ""))
        elif isinstance(route, Mount):
            yield from routes_of(route.routes, prefix + route.path)
        elif not isinstance(route, NearRoute):  # answers for other routes
            for method in getattr(route, "methods", None) or ("WEBSOCKET",):
                yield method, prefix + route.path, route


def test_every_route_of_the_app_stands_in_the_table(app: FastAPI) -> None:
    rows = [(f"{'GET' if method == 'HEAD' else method} {path}", route) for method, path, route in routes_of(app.routes)]
    assert len(rows) > 170
    unlisted = {
        row for row, route in rows if not is_listed(row) and role_of_function(getattr(route, "endpoint", None)) is None
    }
    assert unlisted == set()
    # Nothing in the table is only a memory; the stop routes, the API's catch-alls and Gradio's login are there.
    declared = {row for row, _ in rows}
    assert {row for rows in (OPEN, *ROUTES.values()) for row in rows} - declared == set()


def test_every_route_asks_for_its_role(app: FastAPI, clients: dict[str, TestClient]) -> None:
    """Each route is asked by each role: whoever may not is told so, before the route does anything."""
    for method, path, route in routes_of(app.routes):
        row = f"{'GET' if method == 'HEAD' else method} {path}"
        least = next((role for role, listed in ROUTES.items() if row in listed), None)
        least = least or role_of_function(getattr(route, "endpoint", None))
        if least is None:
            assert row in OPEN, row
            continue
        address = re.sub(r"{[^}]*}", "x", path)
        if "{path:path}" in path and least is Role.ADMIN:
            address = address.replace("/x", "/v9/not-there")
        assert clients[""].request(method, address, follow_redirects=False).status_code == 401, row
        for name in ("vic", "ben"):
            if not ROLES[name].includes(least):
                reply = clients[name].request(method, address)
                assert reply.status_code == 403 and (method == "HEAD" or least.value in reply.text), (row, name)
            else:
                assert rule_for(method, address).least is not Role.ADMIN or role_of_function(route.endpoint), row


@pytest.mark.parametrize(
    "path", ["/nothing", "/sdapi/v1/none", "/internal/none", "/gradio_api/none", "/sdapi/v1/options//"]
)
def test_what_is_not_listed_is_for_admins(clients: dict[str, TestClient], path: str) -> None:
    assert clients[""].get(path).status_code == 401
    assert clients["ben"].get(path).status_code == 403
    assert clients["ada"].get(path).status_code in (200, 404, 405)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD"])
def test_who_may_use_a_route_is_told_its_method(clients: dict[str, TestClient], method: str) -> None:
    assert clients[""].request(method, "/sdapi/v1/txt2img").status_code == 401
    assert clients["vic"].request(method, "/sdapi/v1/txt2img").status_code == 403
    reply = clients["ben"].request(method, "/sdapi/v1/txt2img")
    assert (reply.status_code, reply.headers["Allow"]) == (405, "POST")


def test_a_slash_behind_a_route_asks_for_its_role(clients: dict[str, TestClient]) -> None:
    assert clients[""].post("/sdapi/v1/txt2img/", json=SMALL).status_code == 401
    assert clients["vic"].post("/sdapi/v1/txt2img/", json=SMALL).status_code == 403
    assert clients["ben"].post("/sdapi/v1/txt2img/", json={"steps": 0}).status_code == 422
    assert clients["ben"].post("/sdapi/v1/reload-checkpoint/").status_code == 403


def test_every_function_of_the_page_stands_in_the_table(app: FastAPI) -> None:
    page = next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))
    functions = [call.fn for call in page.get_blocks().fns.values() if call.fn is not None]
    names = {f"{function.__module__}:{function.__qualname__}" for function in functions}
    listed = {name for names in CALLS.values() for name in names}
    ours = {name for name in names if not name.startswith("featherweight_scripts.")}
    said = {f"{one.__module__}:{one.__qualname__}" for one in functions if role_of_function(one) is not None}
    assert ours - listed - said == set()
    made_when_shown = {"modules.ui.tabs.quicksettings:_storing.<locals>.store"}
    assert listed - names == made_when_shown
    assert all(least_role(function) is Role.USER for function in functions if "_scripts." in function.__module__)

    def of_an_extension() -> None: ...

    assert least_role(of_an_extension) is Role.ADMIN


def call_page(client: TestClient, app: FastAPI, name: str, *data: Any, which: int = 0) -> dict[str, Any]:
    """Call a function of the page as the page does; `which` of several with the same name."""
    page = next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))
    calls = page.get_blocks().fns
    numbers = [n for n, call in calls.items() if call.fn and f"{call.fn.__module__}:{call.fn.__qualname__}" == name]
    number = numbers[which]
    body = {"fn_index": number, "data": list(data), "session_hash": f"page{id(client)}"}
    found: dict[str, Any] = client.post("/gradio_api/run/predict", json=body).json()
    return found


def test_functions_of_the_page_ask_for_their_role(
    app: FastAPI, clients: dict[str, TestClient], services: Services
) -> None:
    store = "modules.ui.tabs.header:build_header.<locals>.<lambda>"  # changes the setting fp8_storage
    before = services.settings.current.optimizations.fp8_storage
    other = "Enable" if before == "Disable" else "Disable"
    for name in ("vic", "ben"):
        assert "needs the role admin" in call_page(clients[name], app, store, other)["error"]
        assert services.settings.current.optimizations.fp8_storage == before
    assert "error" not in call_page(clients["ada"], app, store, other)
    assert services.settings.current.optimizations.fp8_storage == other
    clear = "modules.ui.tabs.image_tab:build_top_row.<locals>.<lambda>"
    assert "needs the role user" in call_page(clients["vic"], app, clear)["error"]
    assert call_page(clients["ben"], app, clear)["data"] == ["", ""]


# -- who one is --------------------------------------------------------------------------------------------------------


def test_one_logs_in_and_out(app: FastAPI) -> None:
    with TestClient(app, base_url=BASE) as client:
        page = client.get("/", headers={"Accept": "text/html"})
        assert page.url.path == "/login" and 'name="password"' in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]
        wrong = client.post("/login", data={"username": "ben", "password": "nope"}, headers={"Accept": "text/html"})
        assert wrong.status_code == 400 and "is wrong" in wrong.text and "nope" not in wrong.text
        form = {"username": "ben", "password": PASSWORDS["ben"]}
        reply = client.post("/login", data=form, headers={"Accept": "text/html"}, follow_redirects=False)
        assert reply.status_code == 303 and reply.headers["location"] == "./"
        cookie = reply.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Max-Age" in cookie
        me = client.get("/internal/me").json()
        assert me == {"name": "ben", "role": "user", "sees": "own", "can_log_out": True}
        assert "Featherweight" in client.get("/", headers={"Accept": "text/html"}).text
        secret = client.cookies[session_cookie(7860)]
        client.post("/logout", follow_redirects=False)
        assert client.get("/internal/me").status_code == 401
        client.cookies.set(session_cookie(7860), secret)  # somebody kept the cookie
        assert client.get("/internal/me").status_code == 401


def test_a_cookie_is_only_for_https_where_the_page_is(app: FastAPI) -> None:
    with TestClient(app, base_url="https://127.0.0.1:7860") as client:
        reply = client.post("/login", data={"username": "ben", "password": PASSWORDS["ben"]})
        assert "Secure" in reply.headers["set-cookie"]


def test_another_sites_page_cannot_log_in_or_out(app: FastAPI) -> None:
    with TestClient(app, base_url=BASE, headers={"Origin": "https://evil.example"}) as client:
        form = {"username": "ben", "password": PASSWORDS["ben"]}
        assert client.post("/login", data=form).status_code == 403
        assert client.post("/logout").status_code == 403


def test_programs_use_a_password_or_a_key(app: FastAPI, keys: dict[str, str]) -> None:
    with TestClient(app, base_url=BASE) as client:
        assert client.get("/sdapi/v1/samplers", auth=("ben", PASSWORDS["ben"])).status_code == 200
        assert client.get("/sdapi/v1/cmd-flags", auth=("ben", PASSWORDS["ben"])).status_code == 403
        header = {"Authorization": f"Bearer {keys['ada']}"}
        assert client.get("/sdapi/v1/cmd-flags", headers=header).status_code == 200
        assert client.get("/internal/me", headers=header).json()["name"] == "ada"
        wrong = {"Authorization": f"Bearer {keys['ada'][:-1]}x"}
        assert client.get("/internal/me", headers=wrong).status_code == 401


def test_clients_of_openai_use_a_key(app: FastAPI, keys: dict[str, str], clients: dict[str, TestClient]) -> None:
    """What the door says comes in the shape that they read."""
    body = {"prompt": "a", "steps": 1, "size": "64x64"}
    with TestClient(app, base_url=BASE) as client:
        for key, status, code in (("x", 401, "invalid_api_key"), (keys["vic"], 403, "not_allowed")):
            reply = client.post("/v1/images/generations", json=body, headers={"Authorization": f"Bearer {key}"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)
        header = {"Authorization": f"Bearer {keys['ben']}"}
        assert client.post("/v1/images/generations", json={**body, "user": "ada"}, headers=header).status_code == 200
        secret = {"override_settings": {"outdir_samples": "/elsewhere"}}
        reply = client.post("/v1/images/generations", json={**body, **secret}, headers=header)
        assert reply.status_code == 403 and "for admins" in reply.json()["error"]["message"]
    assert clients["ben"].get("/featherweight/v1/queue").json()["ended"][0]["user"] == "ben"


def test_guesses_wait(app: FastAPI, services: Services) -> None:
    with TestClient(app, base_url=BASE, client=("10.1.1.1", 1)) as client:
        for _ in range(5):
            assert client.post("/login", data={"username": "ben", "password": "guess"}).status_code == 400
        reply = client.post("/login", data={"username": "ben", "password": PASSWORDS["ben"]})
        assert reply.status_code == 429 and int(reply.headers["Retry-After"]) >= 1
        for _ in range(5):
            assert client.get("/sdapi/v1/samplers", auth=("cleo", "guess")).status_code == 401
        assert client.get("/sdapi/v1/samplers", auth=("cleo", "guess")).status_code == 429
    with TestClient(app, base_url=BASE, client=("10.1.1.2", 1)) as client:
        assert client.post("/login", data={"username": "ben", "password": PASSWORDS["ben"]}).status_code == 200


def test_a_stream_is_its_users(clients: dict[str, TestClient], app: FastAPI) -> None:
    call_page(clients["ben"], app, "modules.ui.tabs.header:build_header.<locals>.current_choices")
    page = f"page{id(clients['ben'])}"
    assert clients["cleo"].get("/gradio_api/queue/data", params={"session_hash": page}).status_code == 403
    assert clients["cleo"].get(f"/gradio_api/heartbeat/{page}").status_code == 403
    calls = {"data": [], "fn_index": 0, "session_hash": page}
    joined = clients["cleo"].post("/gradio_api/queue/join", json=calls)  # would put its refusal into ben's stream
    assert joined.status_code == 403 and "another user's page" in joined.json()["error"]


def test_a_call_that_a_role_may_not_make_is_refused_without_a_traceback(
    clients: dict[str, TestClient], app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    page = next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))
    admins = [n for n, call in page.get_blocks().fns.items() if call.fn and least_role(call.fn) is Role.ADMIN]
    for number in admins[:10]:
        for path in ("run/predict", "queue/join", "api/predict", "call/predict"):
            for index in (number, str(number), float(number), f" {number} "):  # as Gradio reads them
                body: dict[str, Any] = {"data": [], "fn_index": index, "session_hash": "page of vic's own"}
                reply = clients["vic"].post(f"/gradio_api/{path}", json=body)
                assert reply.status_code == 403 and "needs the role admin" in reply.json()["error"], (path, reply.text)
    assert len(admins) > 10 and "Traceback" not in caplog.text


# -- whose work is whose -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(clients: dict[str, TestClient]) -> dict[str, str]:
    """A finished job of ben's and one of ada's, by user."""
    tasks = {}
    for name in ("ben", "ada"):
        tasks[name] = f"task(of-{name})"
        body = {**SMALL, "force_task_id": tasks[name], "save_images": True}
        assert clients[name].post("/sdapi/v1/txt2img", json=body).status_code == 200
    return tasks


JOB_ROUTES = [
    ("GET", "/internal/result?id_task={}", None),
    ("GET", "/internal/image?id_task={}&index=0", None),
    ("GET", "/internal/zip-images?id_task={}", None),
    ("POST", "/internal/save-image", "id_task"),
    ("POST", "/internal/delete-image", "id_task"),
    ("GET", "/featherweight/v1/queue/job?task_id={}", None),
    ("POST", "/featherweight/v1/queue/again", "task_id"),
    ("POST", "/featherweight/v1/queue/remove", "task_id"),
    ("GET", "/agent-scheduler/v1/task/{}", None),
    ("GET", "/agent-scheduler/v1/task/{}/results", None),
    ("POST", "/agent-scheduler/v1/task/{}/requeue", None),
    ("DELETE", "/agent-scheduler/v1/task/{}", None),
]


@pytest.mark.parametrize(("method", "path", "field"), JOB_ROUTES)
def test_the_jobs_of_others_are_unknown(
    clients: dict[str, TestClient], made: dict[str, str], method: str, path: str, field: str | None
) -> None:
    task = made["ben"]
    body = {field: task} if field else None
    reply = clients["cleo"].request(method, path.format(task), json=body)
    assert reply.status_code == 404, reply.text


def test_lists_of_work_hold_ones_own(clients: dict[str, TestClient], made: dict[str, str]) -> None:
    def ended(name: str) -> set[str]:
        return {job["task_id"] for job in clients[name].get("/featherweight/v1/queue").json()["ended"]}

    assert made["ben"] in ended("ben") and made["ada"] not in ended("ben")
    assert ended("cleo").isdisjoint({made["ben"], made["ada"]}) and {made["ben"], made["ada"]} <= ended("ada")
    tasks = clients["ben"].get("/agent-scheduler/v1/history").json()
    assert made["ada"] not in {task["id"] for task in tasks["tasks"]} and tasks["total"] == len(tasks["tasks"])


def test_progress_and_interrupt_reach_ones_own_job(clients: dict[str, TestClient], services: Services) -> None:
    body = {**SMALL, "prompt": "slow", "steps": 200, "force_task_id": "task(long)"}
    assert clients["ben"].post("/agent-scheduler/v1/queue/txt2img", json=body).status_code == 200
    job = services.queue.known.get("task(long)")
    while services.queue.running_job() is not job:
        time.sleep(0.01)
    question = {"id_task": "task(long)", "id_live_preview": -1, "live_preview": False}
    assert clients["cleo"].post("/internal/progress", json=question).json()["active"] is False
    assert clients["ben"].post("/internal/progress", json=question).json()["active"] is True
    assert clients["cleo"].get("/sdapi/v1/progress").json()["state"]["job"] == ""
    assert clients["ben"].get("/sdapi/v1/progress").json()["state"]["job"] == "task(long)"
    assert clients["cleo"].get("/internal/pending-tasks").json()["tasks"] == []
    clients["cleo"].post("/sdapi/v1/interrupt")
    clients["cleo"].post("/sdapi/v1/skip")
    clients["cleo"].post("/featherweight/v1/queue/cancel", json={"task_id": "task(long)"})
    assert clients["cleo"].post("/internal/clear-queue").json()["cleared"] == 0
    assert not job.is_interrupt_requested
    clients["ben"].post("/sdapi/v1/interrupt")
    assert job.wait(120) and job.is_interrupt_requested


def test_work_is_its_users_and_takes_turns(clients: dict[str, TestClient], services: Services) -> None:
    services.queue.pause()
    try:
        for name, task in (("ben", "b1"), ("ben", "b2"), ("cleo", "c1")):
            body = {**SMALL, "force_task_id": task}
            assert clients[name].post("/agent-scheduler/v1/queue/txt2img", json=body).status_code == 200
        order = [entry.task_id for entry in services.queue.first()]
        assert order.index("c1") < order.index("b2")
        refused = clients["cleo"].post("/featherweight/v1/queue/move", json={"task_id": "c1", "before": "b1"})
        assert refused.status_code == 404
        assert clients["cleo"].post("/featherweight/v1/queue/clear").json()["count"] == 1
        assert [entry.task_id for entry in services.queue.first()] == ["b1", "b2"]
        assert clients["ada"].post("/featherweight/v1/queue/clear").json()["count"] == 2
    finally:
        services.queue.pause(False)


def test_images_go_into_a_folder_of_their_user(
    clients: dict[str, TestClient], made: dict[str, str], services: Services
) -> None:
    settings = services.queue.known.get(made["ben"]).request.settings
    assert settings.saving_paths.outdir_txt2img_samples == "outputs/txt2img-images/ben"
    assert settings.saving_paths.outdir_grids == ""
    saved = clients["ben"].post("/internal/save-image", json={"id_task": made["ben"]}).json()["path"]
    assert services.paths.data_dir / "log/images/ben" in Path(saved).parents
    again = clients["ada"].post("/featherweight/v1/queue/again", json={"task_id": made["ben"]}).json()["task_id"]
    job = services.queue.known.get(again)
    assert job.wait(120) and job.request.user == "ben"


@pytest.mark.parametrize(
    ("overrides", "is_allowed"),
    [
        ({"outdir_samples": "/tmp/elsewhere"}, False),
        ({"directories_filename_pattern": "../../x"}, False),
        ({"queue_done_command": "rm"}, False),
        ({"font": "/etc/passwd"}, False),
        ({"CLIP_stop_at_last_layers": 2, "jpeg_quality": 70}, True),
    ],
)
def test_settings_of_a_job_are_no_way_around(
    clients: dict[str, TestClient], overrides: dict[str, Any], is_allowed: bool
) -> None:
    body = {**SMALL, "override_settings": overrides}
    reply = clients["ben"].post("/sdapi/v1/txt2img", json=body)
    assert reply.status_code == (200 if is_allowed else 403), reply.text
    kept = clients["ben"].post("/sdapi/v1/txt2img", json={**body, "override_settings_restore_afterwards": False})
    assert kept.status_code == 403
    reply = clients["vic"].post("/sdapi/v1/txt2img", json=SMALL)
    assert reply.status_code == 403


# -- the history -------------------------------------------------------------------------------------------------------

HISTORY = "/featherweight/v1/history"


@pytest.fixture(scope="module")
def pictures(services: Services) -> dict[str, int]:
    """An image of each user in the history, by user; "" is an imported one."""
    folder = services.paths.outputs_dir
    folder.mkdir(parents=True, exist_ok=True)
    found = {}
    for number, name in enumerate(("ben", "cleo", ""), 1):
        path = folder / f"of-{name or 'nobody'}.png"
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
        text = f"toy\nSteps: {900 + number}, Sampler: Euler, CFG scale: 7, Seed: 1, Size: 8x8"
        file = ImageFile(path, f"print{number}", 8, 8, 1, 1.0, text, 1e9 + number, user=name)
        services.history.history.add([file])
        found[name] = services.history.history.search(f"steps:{900 + number}")[0].id
    services.history.history.tag(found["cleo"], ["secret tag"])
    return found


def names_in(client: TestClient, **question: str) -> set[str]:
    return {image["name"] for image in client.get(HISTORY, params={"q": "toy", **question}).json()["images"]}


def test_the_history_shows_ones_own_images_and_admins_choose(
    clients: dict[str, TestClient], pictures: dict[str, int]
) -> None:
    everybodys = {"of-ben.png", "of-cleo.png", "of-nobody.png"}
    assert names_in(clients["ben"]) == names_in(clients["ben"], user="*") == {"of-ben.png"}
    assert clients["ben"].get(HISTORY, params={"user": "cleo"}).status_code == 403
    assert clients["ben"].get(f"{HISTORY}/count", params={"q": "toy"}).json() == 1
    assert names_in(clients["ada"]) == set() and names_in(clients["ada"], user="*") == everybodys
    assert names_in(clients["ada"], user="cleo") == {"of-cleo.png"}
    assert names_in(clients["vic"]) == everybodys
    assert {"ben", "cleo"} <= set(clients["ada"].get(f"{HISTORY}/users").json())
    assert set(clients["ben"].get(f"{HISTORY}/users").json()) <= {"ben"}
    assert clients["ben"].get(f"{HISTORY}/values", params={"key": "tag"}).json() == []
    assert clients["cleo"].get(f"{HISTORY}/values", params={"key": "tag"}).json() == ["secret tag"]


@pytest.mark.parametrize("route", ["one", "thumbnail", "image"])
def test_the_images_of_others_are_unknown(clients: dict[str, TestClient], pictures: dict[str, int], route: str) -> None:
    path = f"{HISTORY}/{route}?id={pictures['cleo']}"
    assert clients["ben"].get(path).status_code == 404
    assert clients["cleo"].get(path).status_code == clients["vic"].get(path).status_code == 200
    both = {"first": pictures["ben"], "second": pictures["cleo"]}
    assert clients["ben"].get(f"{HISTORY}/compare", params=both).status_code == 404


def test_only_one_and_admins_change_ones_images(clients: dict[str, TestClient], pictures: dict[str, int]) -> None:
    body = {"ids": [pictures["cleo"]]}
    for route in ("star", "tags", "delete", "restore"):
        assert clients["ben"].post(f"{HISTORY}/{route}", json={**body, "tags": []}).status_code == 404
        assert clients["vic"].post(f"{HISTORY}/{route}", json={**body, "tags": []}).status_code == 403
    assert clients["cleo"].post(f"{HISTORY}/delete", json=body).status_code == 200
    assert names_in(clients["ben"], q="is:trashed") == set() and names_in(clients["cleo"], q="is:trashed") != set()
    assert clients["ada"].post(f"{HISTORY}/restore", json=body).status_code == 200


def test_who_sees_all_images_changes_only_their_own(
    tmp_path: Path, app: FastAPI, services: Services, users_file: Path, pictures: dict[str, int]
) -> None:
    accounts = read_accounts(users_file)
    try:
        write_accounts(users_file, {**accounts, "ben": account("ben", Sees.ALL)})  # while the server runs
        with TestClient(app, base_url=BASE) as client:
            client.post("/login", data={"username": "ben", "password": PASSWORDS["ben"]})
            assert names_in(client, user="cleo") == {"of-cleo.png"}
            reply = client.post(f"{HISTORY}/star", json={"ids": [pictures["cleo"]]})
            assert reply.status_code == 403 and "another user's image" in reply.text
    finally:
        write_accounts(users_file, accounts)


def test_a_removed_user_and_another_password_end_logins(app: FastAPI, users_file: Path) -> None:
    accounts = read_accounts(users_file)
    with TestClient(app, base_url=BASE) as client:
        client.post("/login", data={"username": "cleo", "password": PASSWORDS["cleo"]})
        assert client.get("/internal/me").status_code == 200
        try:
            changed = replace(accounts["cleo"], password=hash_password("another password", CHEAP))
            write_accounts(users_file, {**accounts, "cleo": changed})
            assert client.get("/internal/me").status_code == 401
            write_accounts(users_file, {name: one for name, one in accounts.items() if name != "cleo"})
            assert client.get("/internal/me").status_code == 401
        finally:
            write_accounts(users_file, accounts)


def test_folders_of_the_servers_machine_are_for_admins(app: FastAPI, clients: dict[str, TestClient]) -> None:
    page = next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))
    name = "modules.ui.tabs.extras_tab:_wire.<locals>.submit"
    call = next(c for c in page.get_blocks().fns.values() if c.fn and f"{c.fn.__module__}:{c.fn.__qualname__}" == name)
    values = [getattr(field, "value", None) for field in call.inputs]
    values[1:5] = [None, None, None, "/etc"]  # the mode, which the page keeps on the server, the images, the folder
    call_page(clients["ben"], app, "modules.ui.tabs.extras_tab:_build_inputs.<locals>.<lambda>", which=2)
    reply = call_page(clients["ben"], app, name, *values)
    assert "needs the role admin" in reply["data"][0], reply


def test_what_an_extension_adds_is_for_admins_unless_it_says_less() -> None:
    app = FastAPI()
    callbacks = Callbacks()

    def add(page: object, app: FastAPI) -> None:
        @app.get("/toy/closed")
        def closed() -> int:
            return 1

        @app.get("/sdapi/v1/toy")
        def among_ours() -> int:
            return 2

        @app.get("/toy/open/{name}")
        @open_to("viewer")
        def opened(name: str) -> str:
            return name

    callbacks.add(Registered(Moment.APP_STARTED, add, "toybox"))
    add_extension_routes(app, callbacks, None)
    more = app.state.open_routes
    assert rule_for("GET", "/toy/closed", more).least is Role.ADMIN
    assert rule_for("GET", "/sdapi/v1/toy", more).least is Role.ADMIN
    assert rule_for("GET", "/toy/open/x", more).least is Role.VIEWER
    assert rule_for("POST", "/toy/open/x", more).least is Role.ADMIN
