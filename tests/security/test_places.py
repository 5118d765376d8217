"""Every text that a route takes is tried as a name or path that leads elsewhere: nothing outside of the data folder is
read, written, moved or deleted, and no request is our mistake. The routes and their fields come from the app itself."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.errors import InvalidValueError
from modules.jobs.tasks import Outcome, Task
from modules.services import Services
from tests import fakes
from tests.compat.conftest import write
from tests.fakes import fake_services, mounted_page
from tests.security.test_users import routes_of
from tests.thorough import is_thorough

SECRET = "a-text-that-no-reply-may-hold"
VALUES = (
    *("..", "../outside", "../../outside/secret.png", "mine/../../../outside", "..\\..\\outside", "{outside}", "", "."),
    *("{outside}/secret.png", "link", "link/secret.png", "CON", "nul.safetensors", "MINE", "a\0b", "x\ud800"),
    *("/dev/null", "~nobody/x", "x" * 5000, "x\u202egnp.exe"),
)
TEXTS = frozenset(
    (
        *(
            "prompt",
            "negative_prompt",
            "hr_prompt",
            "hr_negative_prompt",
            "prompts",
            "infotext",
            "trigger",
            "init_text",
        ),
        *("text", "q", "search", "title", "tags", "reason"),
    )
)
"""Fields that name nothing, by their last part: all others are tried, those of new routes too."""
LEFT_OUT = ("/sdapi/v1/server-stop", "/sdapi/v1/server-kill", "/sdapi/v1/server-restart", "/sdapi/v1/plan")
"""They end the server, or take the body of txt2img and read the checkpoint each time."""
GRADIO = ("/gradio_api/", "/svelte/", "/static/", "/assets/", "/monitoring/", "/pwa_icon/")
UNKNOWN = ("/sdapi/{path:path}", "/featherweight/{path:path}", "/agent-scheduler/{path:path}", "/v1/{path:path}")
"""Routes with a part of their path to fill that the description of the API leaves out: Gradio's own, and those that
answer with 404 to whatever is no route."""

OTHER_METHODS = re.compile(
    r"/agent-scheduler/v1/((results|delete|run|requeue|bookmark|unbookmark|rename)/{id}|move/{id}/{over_id})"
)
"""Routes that are described with another method or path, and are there as clients of the original call them."""


JOB = {"prompt": "x", "steps": 1, "width": 64, "height": 64}
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg=="


def of_job(value: str) -> Iterator[dict[str, Any]]:
    """Bodies of jobs with a name in each of their parts that have no fields of their own."""
    for key in ("sd_model_checkpoint", "sd_vae", "forge_additional_modules", "samples_filename_pattern"):
        yield {**JOB, "override_settings": {key: value}}
    for key in ("directories_filename_pattern", "samples_format", "face_restoration_model", "font"):
        yield {**JOB, "override_settings": {key: value}, "save_images": True}
    yield {**JOB, "alwayson_scripts": {value: {"args": []}}}
    for key in ("module", "model", "image"):
        yield {**JOB, "alwayson_scripts": {"ControlNet": {"args": [{"enabled": True, key: value}]}}}


def of_settings(value: str) -> Iterator[dict[str, Any]]:
    """Settings that are names."""
    for key in ("sd_model_checkpoint", "sd_vae", "localization", "tac_tagFile", "samples_format", value):
        yield {key: value}


def of_training(value: str) -> Iterator[dict[str, Any]]:
    """Names of what is written, and of what is not there."""
    yield {"config": {"data": {"folders": ["/nowhere"]}, "output": {"name": value}}}
    yield {"config": {"data": {"folders": [f"/nowhere/{value}"]}, "output": {"name": "mine"}}}


def of_control(value: str) -> Iterator[dict[str, Any]]:
    """What a preprocessor is asked."""
    yield {"controlnet_module": value, "controlnet_input_images": [PNG]}
    yield {"controlnet_module": "canny", "controlnet_input_images": [value]}


def of_extras(value: str) -> Iterator[Any]:
    for name, arguments in (("Remove background", {"enable": True, "model": value}), (value, {value: value})):
        yield {"image": PNG, "operations": {name: arguments}}


FREE: Mapping[str, Callable[[str], Iterator[Any]]] = {
    "/sdapi/v1/extra-single-image": of_extras,
    "/sdapi/v1/extra-batch-images": lambda value: (
        {**body, "imageList": [{"data": PNG, "name": "a.png"}]} for body in of_extras(value)
    ),
    "/sdapi/v1/txt2img": of_job,
    "/sdapi/v1/img2img": lambda value: ({**body, "init_images": [PNG]} for body in of_job(value)),
    "/controlnet/txt2img": of_job,
    "/controlnet/img2img": lambda value: ({**body, "init_images": [PNG]} for body in of_job(value)),
    "/controlnet/detect": of_control,
    "/controlnet/render_openpose_json": lambda value: iter([[{"people": value}], [value]]),
    "/sdapi/v1/options": of_settings,
    "/internal/settings": lambda value: ({"values": values} for values in of_settings(value)),
    "/featherweight/v1/train": of_training,
    "/featherweight/v1/train/learning-rate": of_training,
    "/internal/hires-image": lambda value: iter([{"id_task": value, "index": 0, "form": {"hr_upscaler": value}}]),
    "/internal/presets": lambda value: iter([{"name": value, "preset": {value: value}}]),
    "/internal/memory-estimate": lambda value: iter([{"tab": value, "form": {}}]),
    "/internal/extra-networks/notes": lambda value: iter([{"page": "lora", "key": value, "changes": {value: value}}]),
    "/featherweight/v1/queue/change": lambda value: iter([{"task_id": value, "parameters": {value: value}}]),
    "/featherweight/v1/history/again-with": lambda value: iter([{"id": 1, "changes": [{value: value}]}]),
}
"""Bodies, or parts of bodies, that the description says nothing of, with a name in them."""
AS_THEY = {
    "/agent-scheduler/v1/queue/txt2img": "/sdapi/v1/txt2img",
    "/agent-scheduler/v1/queue/img2img": "/sdapi/v1/img2img",
    "/agent-scheduler/v1/task/{id}": "/sdapi/v1/txt2img",
    "/sdapi/v1/plan": "/sdapi/v1/txt2img",
}
"""Routes that take the body of another one."""
REFUSED = ("/sdapi/v1/create/hypernetwork", "/sdapi/v1/train/hypernetwork")


@dataclass(frozen=True)
class Field:
    """A text that a route takes. `place`: the way to it in a body; 0 is an entry of a list."""

    method: str
    path: str
    where: str  # "query", "path", "body"
    place: tuple[str | int, ...]

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.where} {'.'.join(map(str, self.place))}"


class Description:
    """What the app says of its routes."""

    def __init__(self, app: FastAPI) -> None:
        self.paths: Mapping[str, Any] = app.openapi()["paths"]
        self._schemas = app.openapi()["components"]["schemas"]

    def fields(self) -> Iterator[Field]:
        for path, operations in self.paths.items():
            for method, operation in operations.items():
                for parameter in operation.get("parameters", ()):
                    if list(self._texts(parameter["schema"])):
                        yield Field(method.upper(), path, parameter["in"], (parameter["name"],))
                body = self.body_of(operation)
                for place in dict.fromkeys(self._texts(body)) if body else ():
                    yield Field(method.upper(), path, "body", place)

    def body_of(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        content = operation.get("requestBody", {}).get("content", {})
        return dict(content.get("application/json", {}).get("schema", {}))

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            schema = self._schemas[schema["$ref"].rpartition("/")[2]]
        return schema

    def _texts(
        self, schema: Mapping[str, Any], place: tuple[str | int, ...] = (), above: tuple[str, ...] = ()
    ) -> Iterator[tuple[str | int, ...]]:
        name = schema.get("$ref")
        if name in above:
            return
        above, found = (*above, *([name] if name else [])), self.resolved(schema)
        for option in (*found.get("anyOf", ()), *found.get("allOf", ()), *found.get("oneOf", ())):
            yield from self._texts(option, place, above)
        if found.get("type") == "string":
            yield place
        if found.get("type") == "array":
            yield from self._texts(found.get("items", {}), (*place, 0), above)
        for key, below in found.get("properties", {}).items():
            yield from self._texts(below, (*place, key), above)

    def free_bodies(self) -> set[str]:
        """The paths of routes of whose body the description leaves something open."""
        return {
            path
            for path, operations in self.paths.items()
            for operation in operations.values()
            if self._is_open(self.body_of(operation))
        }

    def _is_open(self, schema: Mapping[str, Any], above: tuple[str, ...] = ()) -> bool:
        name = schema.get("$ref")
        if name in above:
            return False
        above, found = (*above, *([name] if name else [])), self.resolved(schema)
        if found.get("type") == "object" and not found.get("properties"):
            return True
        below = [*found.get("properties", {}).values(), *([found["items"]] if "items" in found else [])]
        for option in (*found.get("anyOf", ()), *found.get("allOf", ()), *found.get("oneOf", ()), *below):
            if not option or self._is_open(option, above):
                return True
        return False

    def usual(self, schema: Mapping[str, Any]) -> Any:
        """A value that a schema allows: its example, its default, or one of its type."""
        found = self.resolved(schema)
        if found.get("examples") or found.get("default") is not None:
            return found["examples"][0] if found.get("examples") else found["default"]
        for option in (*found.get("anyOf", ()), *found.get("allOf", ()), *found.get("oneOf", ())):
            return self.usual(option)
        if "properties" in found:
            return {key: self.usual(found["properties"][key]) for key in found.get("required", ())}
        kinds = {"integer": found.get("minimum", 1), "number": 1.0, "boolean": False, "array": [], "object": {}}
        return kinds.get(found.get("type", ""), "x")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data folder, and next to it what is nobody's business."""
    root = tmp_path_factory.mktemp("places")
    info = PngInfo()
    info.add_text("parameters", SECRET)
    (root / "outside" / "scripts").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(root / "outside" / "secret.png", pnginfo=info)
    files = {"outside/secret.json": json.dumps({"extensions": [{"name": SECRET, "url": "x"}]})}
    files |= {f"outside/{name}": SECRET for name in ("secret.txt", "secret.safetensors", "secret.html", "scripts/a.py")}
    files |= {"from/mine/scripts/a.py": "", "images/a.txt": "a caption", "data/outputs/keep.txt": "kept"}
    write(root, {**files, "data/extensions/mine/scripts/mine.py": "", "data/cache/extensions-before/mine/a.py": ""})
    Image.new("RGB", (64, 64)).save(root / "images" / "a.png")
    return root


class Refusing(fakes.FakeExecutor):
    """An executor that takes no task. A class of its own: that a class has a method is remembered once it was asked."""

    def run_task(self, task: Task) -> Outcome:
        raise InvalidValueError("Nothing is trained, converted or downloaded here.")


@pytest.fixture(scope="module")
def services(root: Path) -> Iterator[Services]:
    patch = pytest.MonkeyPatch()
    patch.setattr(fakes, "FakeExecutor", Refusing)
    services = fake_services(root / "data", api_server_stop=True)
    (services.paths.cache_dir / "reports").mkdir(exist_ok=True)
    for folder in [services.paths.data_dir, *services.paths.data_dir.rglob("*/")]:
        if not (folder / "link").exists():
            (folder / "link").symlink_to(root / "outside")
    yield services
    services.dispatcher.close()
    patch.undo()


@pytest.fixture(scope="module")
def app(services: Services) -> FastAPI:
    return mounted_page(services)


def usual_body(description: Description, path: str, schema: Mapping[str, Any], root: Path) -> Any:
    """A body with which a route gets as far as the name in question."""
    body = description.usual(schema)
    if not isinstance(body, dict):
        return body
    properties = description.resolved(schema).get("properties", {})
    if "agreed" in properties:
        body["agreed"] = True
    if "steps" in properties:
        body |= {"steps": 1, "width": 64, "height": 64}
    known: dict[str, dict[str, object]] = {
        "/featherweight/v1/extensions/install": {"source": str(root / "from" / "mine"), "name": "other"},
        "/featherweight/v1/train": {"preset": "style", "folder": str(root / "images"), "name": "mine"},
        "/sdapi/v1/train/embedding": {"data_root": str(root / "images"), "embedding_name": "mine"},
        "/v1/images/generations": {"steps": 1, "size": "64x64"},
        "/featherweight/v1/downloads": {"source": "owner/repository/mine.safetensors"},
        "/featherweight/v1/downloads/look": {"source": "http://127.0.0.1:1/mine.safetensors"},
    }
    return body | known.get(path, {})


def values_of(number: int) -> tuple[str, ...]:
    """All values with `--thorough`; else every sixth one, so that six fields in a row have all of them."""
    return VALUES if is_thorough() else VALUES[number % 6 :: 6]


def put(body: Any, place: tuple[str | int, ...], value: str) -> Any:
    if not place:
        return value
    if place[0] == 0:
        return [put(None, place[1:], value)]
    body = body if isinstance(body, dict) else {}
    return {**body, place[0]: put(body.get(str(place[0])), place[1:], value)}


def seen(root: Path) -> dict[str, bytes]:
    """All that lies outside of the data folder, and what must stay in it."""
    others = [path for path in root.rglob("*") if not path.is_relative_to(root / "data")]
    kept = root / "data" / "outputs" / "keep.txt"
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in (*others, kept)}


def escaped(value: str) -> str:
    return quote(value, safe="").replace(".", "%2E")


def send(
    client: TestClient, description: Description, field: Field, value: str, root: Path
) -> tuple[int, bytes] | None:
    """The status and body of the reply; None for what no client can send there."""
    if field.where != "body" and ("\ud800" in value or (field.where == "path" and not value)):
        return None
    operation = description.paths[field.path][field.method.lower()]
    address, query, body = field.path, {}, None
    for parameter in operation.get("parameters", ()):
        name, is_it = parameter["name"], (parameter["in"], (parameter["name"],)) == (field.where, field.place)
        if parameter["in"] == "path":
            address = address.replace(f"{{{name}:path}}", f"{{{name}}}")
            address = address.replace(f"{{{name}}}", escaped(value) if is_it else "1")
        elif is_it or parameter.get("required"):
            query[name] = value if is_it else description.usual(parameter["schema"])
    schema = description.body_of(operation)
    if schema:
        body = usual_body(description, field.path, schema, root)
        body = json.dumps(put(body, field.place, value) if field.where == "body" else body)
    headers = {"Content-Type": "application/json"} if body is not None else {}
    reply = client.request(field.method, address, params=query, content=body, headers=headers)
    return reply.status_code, reply.content


def test_no_name_leads_elsewhere(app: FastAPI, root: Path) -> None:
    description = Description(app)
    client = TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1:7860")
    fields = [field for field in description.fields() if next(p for p in field.place[::-1] if p) not in TEXTS]
    assert len(fields) > 100 and any("extensions/restore" in field.path for field in fields)
    before, wrong = seen(root), []
    for number, field in enumerate(fields):
        if field.path in LEFT_OUT:
            continue
        for value in values_of(number):
            value = value.format(outside=root / "outside") if "{" in value else value
            found = send(client, description, field, value, root)
            if found is not None and (found[0] >= 500 or SECRET.encode() in found[1]):
                wrong.append(f"{field} = {value[:60]!r}: {found[0]} {found[1][:200]!r}")
        if seen(root) != before:
            changed = sorted(name for name, _ in seen(root).items() ^ before.items())
            pytest.fail(f"{field} changed {changed}")
    assert not wrong, "\n".join(wrong)


def test_no_name_in_a_body_without_fields_leads_elsewhere(app: FastAPI, root: Path) -> None:
    description = Description(app)
    assert description.free_bodies() == {*FREE, *AS_THEY, *REFUSED}, "say here what a new route takes"
    client = TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1:7860")
    before, wrong = seen(root), []
    for number, (path, bodies) in enumerate(FREE.items()):
        for value in values_of(number):
            value = value.format(outside=root / "outside") if "{" in value else value
            for body in bodies(value):
                reply = client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
                if reply.status_code >= 500 or SECRET.encode() in reply.content:
                    wrong.append(f"{path} {str(body)[:150]}: {reply.status_code} {reply.text[:200]}")
        assert seen(root) == before, path
    assert not wrong, "\n".join(wrong)


def test_routes_that_are_not_described_give_nothing_else(app: FastAPI, root: Path) -> None:
    described = app.openapi()["paths"]
    routes = {(method, path) for method, path, _ in routes_of(app.routes) if "{" in path}
    found = sorted(route for route in routes if re.sub(r":\w+}", "}", route[1]) not in described)
    unknown = [path for _, path in found if not path.startswith(GRADIO) and path not in UNKNOWN]
    assert len(found) > 30 and [path for path in unknown if not OTHER_METHODS.fullmatch(path)] == []
    client, before, leaks = (
        TestClient(app, raise_server_exceptions=False, base_url="http://127.0.0.1:7860"),
        seen(root),
        [],
    )
    for method, path in found:
        if path.endswith("/"):
            continue
        for value in (str(root / "outside" / "secret.txt"), "../../outside/secret.txt", "link/secret.txt"):
            reply = client.request(method, re.sub(r"\{[^}]*\}", escaped(value), path))
            if SECRET.encode() in reply.content:
                leaks.append(f"{method} {path} {value}")
    assert leaks == [] and seen(root) == before
