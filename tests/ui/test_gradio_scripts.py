"""Gradio's scripts are served with changes that let its page start sooner; these fit the installed version."""

import subprocess
from pathlib import Path

import gradio
import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient

from modules.ui.common.gradio_scripts import CHANGES, GradioScriptsMiddleware, changed
from tests.ui.test_scripts_in_node import NODE

ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
EVENTS = """
class Tree {
  BEFORE return e.found = n }
  AFTER return e.found = n }
}
const events = [
  { targets: [[1, "click"], [2, "change"], [1, "input"]] },
  { targets: [[2, "load"]] },
  { targets: [[3, ""], [1, "blur"]] },
];
for (const id of [1, 2, 3, 4]) {
  const tree = new Tree();
  const [one, other] = [{ id }, { id }];
  tree.before(one, events);
  tree.find_attached_events(other, events);
  if (JSON.stringify(one.found) !== JSON.stringify(other.found)) throw new Error(`${id}: ${other.found}`);
}
"""

SEARCH = """
BEFORE
AFTER
const leaf = (id) => ({ id });
const root = { id: 0, children: [leaf(1), { id: 2, children: [leaf(3), { id: 4, children: [leaf(5)] }] }, leaf(6)] };
const compare = () => {
  for (const id of [0, 1, 2, 3, 4, 5, 6, 7, 8]) if (Z(root, id) !== before(root, id)) throw new Error(id);
};
compare();
compare();
root.children[1].children = [leaf(7), { id: 4, children: [leaf(8)] }, leaf(3)];
compare();
root.children.shift();
compare();
"""


@pytest.mark.parametrize("name", CHANGES)
def test_the_changes_fit_the_installed_gradio(name: str) -> None:
    [script] = [path for path in ASSETS.glob(f"{name}-????????.js") if CHANGES[name][0][0] in path.read_bytes()]
    text = script.read_bytes()
    assert changed(text, CHANGES[name]) != text


def test_a_script_that_differs_is_served_as_it_is() -> None:
    changes = [(b"one", b"1"), (b"two", b"2")]
    assert changed(b"one two", changes) == b"1 2"
    assert changed(b"one three", changes) == b"one three"
    assert changed(b"one two two", changes) == b"one two two"


def test_replies_have_the_length_and_no_mark_of_the_changed_script() -> None:
    app = FastAPI()
    script = b"".join(found for found, _ in CHANGES["Blocks"]).decode()
    app.add_api_route("/assets/{name}", lambda name: PlainTextResponse(script, headers={"ETag": "x"}))
    app.add_middleware(GradioScriptsMiddleware)
    client = TestClient(app)
    reply = client.get("/assets/Blocks-D1GWYZdr.js")
    assert reply.text == "".join(served.decode() for _, served in CHANGES["Blocks"])
    assert int(reply.headers["content-length"]) == len(reply.content) and "etag" not in reply.headers
    other = client.get("/assets/Other-D1GWYZdr.js")
    assert other.text == script and other.headers["etag"] == "x"
    assert client.get("/missing").status_code == 404


@pytest.mark.parametrize("coding", ["br", "gzip", "identity"])
def test_a_browser_gets_the_changed_script(address: str, coding: str) -> None:
    [script] = [path for path in ASSETS.glob("Blocks-????????.js") if CHANGES["Blocks"][0][0] in path.read_bytes()]
    reply = httpx.get(f"{address}/assets/{script.name}", headers={"Accept-Encoding": coding})
    assert CHANGES["Blocks"][0][1].decode() in reply.text


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed (apt-get install nodejs)")
def test_each_component_has_the_events_that_gradio_finds_for_it() -> None:
    before, after = (text.decode() for text in CHANGES["core"][1])
    program = EVENTS.replace("BEFORE", before.replace("find_attached_events", "before")).replace("AFTER", after)
    subprocess.run([str(NODE), "-e", program], check=True, timeout=60)


@pytest.mark.skipif(NODE is None, reason="Node.js is not installed (apt-get install nodejs)")
def test_a_component_is_found_where_gradio_finds_it_also_after_the_page_has_changed() -> None:
    before, after = (text.decode() for text in CHANGES["core"][2])
    program = SEARCH.replace("BEFORE", before.replace("Z(", "before(")).replace("AFTER", after)
    subprocess.run([str(NODE), "-e", program], check=True, timeout=60)
