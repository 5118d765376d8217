"""The page: header, tabs, assets; mounted on the app that serves the API."""

import json
import os
import re
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from gradio.routes import App as GradioApp
from starlette.routing import Mount

from modules.api.auth import identity_of
from modules.api.extensions import add_extension_routes
from modules.scripts.callbacks import Moment
from modules.services import Services
from modules.ui import img2img_tab, txt2img_tab
from modules.ui.callers import GuardedBlocks
from modules.ui.extension_tabs import make_extension_tabs, place_extension_tabs
from modules.ui.extras_routes import extras_routes
from modules.ui.extras_tab import build_extras_tab
from modules.ui.header import build_header
from modules.ui.history_tab import build_history_tab
from modules.ui.img2img_tab import build_img2img_tab
from modules.ui.merger_tab import build_merger_tab
from modules.ui.page_calls import refuse_unknown_calls
from modules.ui.png_info_tab import build_png_info_tab
from modules.ui.precision_tab import build_precision_tab
from modules.ui.queue_tab import build_queue_tab
from modules.ui.routes import page_routes
from modules.ui.settings_tab import build_settings_tab
from modules.ui.theme import build_theme
from modules.ui.tooltips import tooltips
from modules.ui.txt2img_tab import build_txt2img_tab

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    *("core.js", "localization.js", "form.js", "attention.js", "progress.js", "send.js", "gallery.js", "lightbox.js"),
    *("prompt_text.js", "prompt.js", "hotkeys.js"),
    *("safe_html.js", "card_prompt.js", "cards.js", "card_editor.js", "retention.js"),
    *(
        "canvas.js",
        "canvas_store.js",
        "img2img.js",
        "batch.js",
        "memory.js",
        "notices.js",
        "queue.js",
        "history.js",
        "tooltips.js",
        "tour.js",
        "start.js",
        "session.js",
    ),
)
STYLES = ("style.css", "extra_networks.css", "precision.css", "memory.css", "canvas.css", "extras.css", "queue.css")
UPLOADS_KEPT_S = (3600, 86400)  # how often to look, and how old an upload may get


def build_page(services: Services) -> gr.Blocks:
    """The Gradio page; loads no model."""
    services.scripts.callbacks.call(Moment.BEFORE_UI)
    extension_tabs = make_extension_tabs(services.scripts.callbacks)
    with GuardedBlocks(
        title="Featherweight", analytics_enabled=False, delete_cache=UPLOADS_KEPT_S, fill_width=True
    ) as page:
        checkpoint = build_header(services, page)
        gr.HTML('<div id="fw_notices" aria-live="polite"></div>', elem_id="fw_notices_box")
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("txt2img", id="txt2img", elem_id="tab_txt2img"):
                build_txt2img_tab(services, page)
            with gr.Tab("img2img", id="img2img", elem_id="tab_img2img", render_children=True):
                build_img2img_tab(services, page)
            with gr.Tab("Extras", id="extras", elem_id="tab_extras"):
                build_extras_tab(services, page)
            with gr.Tab("PNG Info", id="pnginfo", elem_id="tab_pnginfo"):
                build_png_info_tab()
            with gr.Tab("Checkpoint Merger", id="modelmerger", elem_id="tab_modelmerger"):
                build_merger_tab(services, page, checkpoint)
            with gr.Tab("Precision", id="precision", elem_id="tab_precision"):
                build_precision_tab(services, page)
            with gr.Tab("Queue", id="queue", elem_id="tab_queue"):
                build_queue_tab()
            with gr.Tab("History", id="history", elem_id="tab_history"):
                build_history_tab()
            place_extension_tabs(extension_tabs)
            with gr.Tab("Settings", id="settings", elem_id="tab_settings"):
                build_settings_tab(services, page)
        version = f'<span translate="no">{services.version}</span>'
        tour = '<button type="button" id="fw_start_tour">Show me around</button>'
        text = f'{version} · <a href="docs" translate="no">API</a> · {tour} · <span>nothing leaves this machine</span>'
        gr.HTML(f'<footer class="fw-footer">{text}</footer>')
    assert isinstance(page, GuardedBlocks)
    page.services = services
    return page


def mount_page(app: FastAPI, services: Services) -> FastAPI:
    """Put the page at "/" of `app`; its own routes are declared first, because the page answers every other path."""
    app.include_router(page_routes(services))
    app.include_router(extras_routes(services))
    os.environ.setdefault("GRADIO_TEMP_DIR", str(services.paths.cache_dir / "uploads"))
    is_closed = services.access.page_is_closed
    page = build_page(services)
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        page,
        path="/",
        auth_dependency=(lambda request: identity_of(request).name) if is_closed else None,
        ssr_mode=False,
        footer_links=[],
        theme=build_theme(),
        css_paths=[*(ASSETS / name for name in STYLES), *services.scripts.page_styles],
        head=_head(services),
        allowed_paths=[],
        max_file_size="256mb",
    )
    page_app = next(route.app for route in app.routes if isinstance(route, Mount) and isinstance(route.app, GradioApp))
    refuse_unknown_calls(page_app)
    add_extension_routes(app, services.scripts.callbacks, page)
    return mounted


def _head(services: Services) -> str:
    """The page's scripts, inlined: no request leaves the page for them."""
    known = {
        "tabs": [txt2img_tab.SCRIPT_IDS, img2img_tab.SCRIPT_IDS],
        "cards": list(services.cards.pages),
        "theme": services.flags.theme or "",
        "help": tooltips(),
    }
    forced = f"window.featherweightPage = {json.dumps(known)};"
    ours = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f"{viewport}<script>{forced}\n{ours}</script>{''.join(map(_script, services.scripts.page_scripts))}"


def _script(file: Path) -> str:
    """An extension's script as an element of its own, so that a mistake in it costs no other."""
    text = file.read_text(encoding="utf-8", errors="replace")
    inside = re.sub("</(?=script)", r"<\\/", text, flags=re.IGNORECASE)  # which would end the element
    return f"<script>{inside}</script>"
