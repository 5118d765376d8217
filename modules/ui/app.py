"""The page: header, tabs, assets; mounted on the app that serves the API."""

import os
from pathlib import Path

import gradio as gr
from fastapi import FastAPI

from modules.cli.flags import Flags
from modules.services import Services
from modules.ui.header import build_header
from modules.ui.png_info_tab import build_png_info_tab
from modules.ui.routes import page_routes
from modules.ui.settings_tab import build_settings_tab
from modules.ui.theme import build_theme
from modules.ui.txt2img_tab import build_txt2img_tab

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("core.js", "progress.js", "gallery.js", "prompt.js", "hotkeys.js", "lightbox.js", "start.js")
UPLOADS_KEPT_S = (3600, 86400)  # how often to look, and how old an upload may get


def build_page(services: Services) -> gr.Blocks:
    """The Gradio page; loads no model."""
    with gr.Blocks(
        title="Featherweight", analytics_enabled=False, delete_cache=UPLOADS_KEPT_S, fill_width=True
    ) as page:
        build_header(services, page)
        with gr.Tabs(elem_id="tabs") as tabs:
            with gr.Tab("txt2img", id="txt2img", elem_id="tab_txt2img"):
                form = build_txt2img_tab(services, page)
            with gr.Tab("PNG Info", id="pnginfo", elem_id="tab_pnginfo"):
                build_png_info_tab(services, form, tabs)
            with gr.Tab("Settings", id="settings", elem_id="tab_settings"):
                build_settings_tab(services, page)
        text = f'{services.version} · <a href="docs">API</a> · nothing leaves this machine'
        gr.HTML(f'<footer class="fw-footer">{text}</footer>')
    assert isinstance(page, gr.Blocks)
    return page


def mount_page(app: FastAPI, services: Services) -> FastAPI:
    """Put the page at "/" of `app`; its own routes are declared first, because the page answers every other path."""
    app.include_router(page_routes(services))
    os.environ.setdefault("GRADIO_TEMP_DIR", str(services.paths.cache_dir / "uploads"))
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        build_page(services),
        path="/",
        auth=_users(services.flags),
        ssr_mode=False,
        footer_links=[],
        theme=build_theme(),
        css_paths=[ASSETS / "style.css"],
        head=_head(services.flags),
        allowed_paths=[],
        max_file_size="256mb",
    )
    return mounted


def _users(flags: Flags) -> list[tuple[str, str]] | None:
    """The `user:password` pairs that may open the page."""
    pairs = [pair for pair in (flags.gradio_auth or "").split(",") if pair]
    if flags.gradio_auth_path:
        lines = Path(flags.gradio_auth_path).read_text(encoding="utf-8").replace("\n", ",").split(",")
        pairs += [line.strip() for line in lines if line.strip()]
    users = [pair.partition(":") for pair in pairs]
    return [(user, password) for user, _, password in users] or None


def _head(flags: Flags) -> str:
    """The page's scripts, inlined: no request leaves the page for them."""
    forced = f"window.featherweightTheme = {flags.theme!r};" if flags.theme else ""
    scripts = "\n".join((ASSETS / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return f'<meta name="viewport" content="width=device-width, initial-scale=1"><script>{forced}\n{scripts}</script>'
