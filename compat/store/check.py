"""A look at extensions that a user has: each alone in a process of its own, with a program around it whose data lie in
a folder for the time being. What is said of one is what was seen."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from http import HTTPStatus
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from compat.store.known_work import WORK, Work

LIMIT_S = 600  # for one extension, on a slow machine
SIZE_PX, STEPS, SEED = 128, 2, 1
BUNDLED = Path(__file__).parents[2] / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"


@dataclass
class Seen:
    """Facts seen of an extension. `works`: "yes" or why not, "" where no check of its main work is known."""

    name: str
    loads: bool = False
    replaced_by: str = ""
    hooks: list[str] = field(default_factory=list)
    tabs: list[str] = field(default_factory=list)
    routes: int = 0
    fault: str = ""
    works: str = ""
    notices: list[str] = field(default_factory=list)
    start_ms: float = 0.0
    image_ms: float = 0.0

    @property
    def verdict(self) -> str:
        """One word."""
        return "built in" if self.replaced_by else "loads" if self.loads else "fails"

    def line(self) -> str:
        """One line of a report to paste."""
        said = [self.verdict]
        said += [f"works: {self.works}"] if self.works else []
        said += [f"does {', '.join(self.hooks[:8])}"] if self.hooks else []
        said += [f"instead: {self.replaced_by}"] if self.replaced_by else []
        said += [self.fault] if self.fault else []
        return f"{self.name}: {'; '.join([*said, *self.notices])}"


def extensions_in(folder: Path) -> list[Path]:
    """Return the folder itself where it is an extension, else those in it."""
    if any((folder / part).exists() for part in ("scripts", "javascript", "install.py", "preload.py", "style.css")):
        return [folder]
    return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith("."))


def check_all(folders: Sequence[Path], limit_s: float = LIMIT_S) -> Iterator[Seen]:
    """Look at one after the other; one that ends its process, or takes too long, costs itself only."""
    is_forked = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if is_forked else "spawn")
    if is_forked:
        context.set_forkserver_preload(["compat.store.check_preload"])
    for folder in folders:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_look, args=(folder, sender), daemon=False)
        process.start()
        sender.close()
        try:
            found = receiver.recv() if receiver.poll(limit_s) else None
            reason = f"It was not done after {limit_s:g} s."
        except EOFError:
            found, reason = None, "It ended the process."
        yield found or Seen(folder.name, fault=reason)
        process.kill()
        process.join()


def _look(folder: Path, answer: Connection) -> None:
    place = Path(tempfile.mkdtemp(prefix="extension-check-"))
    os.chdir(place)  # some look for their files in "extensions" of the current folder
    try:
        answer.send(look_at(folder, place))
    except BaseException as error:
        answer.send(Seen(folder.name, fault=f"{type(error).__name__}: {error}"[:400]))
        raise
    finally:
        shutil.rmtree(place, ignore_errors=True)


def look_at(folder: Path, place: Path) -> Seen:
    """Load a copy of an extension into a program whose data lie in `place`, build the page, make an image, and try its
    main work where a check is known."""
    import gradio as gr
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from compat.foreign import Foreign
    from compat.store.routes import hooks_of
    from modules.api.app import build_api
    from modules.api.program.extensions import add_extension_routes
    from modules.assembly import build_services
    from modules.flags.flags import Flags
    from modules.scripts.library import script_info
    from modules.ui.app import build_page

    shutil.copytree(folder, place / "extensions" / folder.name, ignore=shutil.ignore_patterns(".git"))
    (checkpoints := place / "models" / "Stable-diffusion").mkdir(parents=True)
    if BUNDLED.is_file():
        (checkpoints / BUNDLED.name).symlink_to(BUNDLED)  # some take a file in the folder for granted
    seen = Seen(folder.name)
    began = time.monotonic()
    flags = Flags(data_dir=str(place), use_cpu=("all",), no_hashing=True, workers=0, api=True)
    services = build_services(flags, foreign=Foreign())
    seen.start_ms = 1000 * (time.monotonic() - began)
    library = services.scripts
    extension = library.extensions[folder.name]
    page = build_page(services).blocks
    page.config = page.get_config_file()  # which a page that is mounted has
    for script in [one for one in library.scripts if one.acting is not None and one.acting.owner is extension]:
        script_info(script, not script.is_on(False))
    foreign = [
        one for one in page.blocks.values() if isinstance(one, gr.Tab) and "fw-foreign" in (one.elem_classes or ())
    ]
    seen.tabs = [str(one.label) for one in foreign]
    services.dispatcher.start()
    app: FastAPI = build_api(services)
    before = len(app.router.routes)
    add_extension_routes(app, library.callbacks, page)
    seen.routes = len(app.router.routes) - before
    seen.replaced_by = extension.replaced_by
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        if not seen.replaced_by:
            seen.fault = _image_of(client, {})[1] or seen.fault
            seen.image_ms = 1000 * extension.image_s
        seen.loads = not extension.faults
        work = WORK.get(folder.name.lower())
        if work is not None and (seen.replaced_by or not extension.faults):
            seen.works = _tried(work, client, seen, {one.elem_id for one in page.blocks.values()})
    seen.hooks = hooks_of(library, extension)
    seen.notices = [*extension.notices]
    seen.fault = extension.faults[0].reason if extension.faults else seen.fault
    services.dispatcher.close()
    return seen


def _tried(work: Work, client: Any, seen: Seen, elements: Set[str | None]) -> str:
    """Return "yes", or what was missing."""
    if work.tab and work.tab not in seen.tabs:
        return f"its tab {work.tab!r} is missing"
    if work.element and work.element not in elements:
        return f"its component {work.element!r} is missing"
    if work.route and (status := client.get(work.route).status_code) >= 400 and status != HTTPStatus.METHOD_NOT_ALLOWED:
        return f"{work.route} answers {status}"
    if work.script:
        plain, problem = _image_of(client, work.more)
        changed, refused = _image_of(client, {**work.more, "alwayson_scripts": {work.script: {"args": [*work.args]}}})
        if problem or refused:
            return problem or refused
        if plain == changed:
            return "its image is the one without it"
    return "yes"


def _image_of(client: Any, more: Mapping[str, Any]) -> tuple[str, str]:
    """Return an image in base64, and why there is none."""
    body = {"prompt": "a red circle", "steps": STEPS, "width": SIZE_PX, "height": SIZE_PX, "seed": SEED, **more}
    reply = client.post("/sdapi/v1/txt2img", json={**body, "save_images": False})
    if reply.status_code != 200:
        return "", f"No image: {str(reply.json().get('detail') or reply.status_code)[:300]}"
    return str(reply.json()["images"][0]), ""
