"""What a first visit loads of Gradio's files is asked for at once, and nothing else is."""

import json
import re

import httpx
from playwright import sync_api

from modules.ui.page.first_files import FRONTEND, first_files
from tests.ui.browser import needs_browser, open_page

pytestmark = needs_browser


def test_of_the_components_only_those_of_the_page() -> None:
    few, more = first_files({"html"}), first_files({"html", "dataframe"})
    assert any(name.startswith("Blocks-") for name in few) and any(name.startswith("HTML-") for name in few)
    assert set(few) < set(more)
    assert all((FRONTEND / "assets" / name).is_file() for name in more)


def test_all_that_a_page_loads_is_asked_for_in_its_head(context: sync_api.BrowserContext, address: str) -> None:
    head = httpx.get(f"{address}/").text
    found = re.search(r"<script>for \(const name of (\[[^\]]*\])", head)
    assert found is not None and head.index("gradio_config") > found.start()
    asked = json.loads(found[1])
    loaded: list[str] = []
    page = context.new_page()
    page.on("request", lambda request: loaded.append(request.url.rpartition("/assets/")[2]))
    open_page(page, address)
    page.close()
    assert {
        name for name in loaded if name.endswith((".js", ".css")) and not name.startswith(("index-", "http"))
    } == set(asked)
