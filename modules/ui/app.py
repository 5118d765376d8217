"""The page: header, tabs, assets; mounted on the app that serves the API."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import gradio as gr
from fastapi import FastAPI

from modules.access.roles import Role
from modules.api.access.auth import identity_of
from modules.api.program.extensions import add_extension_routes
from modules.scripts.callbacks import Moment
from modules.services import Services
from modules.ui.common.callers import GuardedBlocks
from modules.ui.common.gradio_scripts import GradioScriptsMiddleware
from modules.ui.common.looks import theme_of, user_css
from modules.ui.common.tab_order import TabPlace, WhenOpened, is_hidden, ordered, tab_titles, tabs_of_extensions
from modules.ui.form.scripts_panel import Switch
from modules.ui.form.ui_config import UiConfig
from modules.ui.page.compression import compress
from modules.ui.page.first_files import first_script
from modules.ui.page.page_scripts import page_files, page_looks, page_scripts
from modules.ui.page.plain_events import PageStart, PlainEventsMiddleware
from modules.ui.routes.extras_routes import extras_routes
from modules.ui.routes.page_calls import refuse_unknown_calls
from modules.ui.routes.reload_routes import page_app, reload_routes
from modules.ui.routes.routes import page_routes
from modules.ui.tabs import img2img_tab, txt2img_tab
from modules.ui.tabs.extension_tabs import make_extension_tabs, place_extension_tabs
from modules.ui.tabs.extras_tab import build_extras_tab
from modules.ui.tabs.header import build_header
from modules.ui.tabs.history_tab import build_history_tab
from modules.ui.tabs.image_tab import ImageTab, wire_keeping
from modules.ui.tabs.img2img_tab import build_img2img_tab
from modules.ui.tabs.models_tab import build_models_tab
from modules.ui.tabs.png_info_tab import build_png_info_tab
from modules.ui.tabs.queue_tab import build_queue_tab
from modules.ui.tabs.settings_tab import build_settings_tab
from modules.ui.tabs.txt2img_tab import build_txt2img_tab

UPLOADS_KEPT_S = (3600, 86400)  # how often to look, and how old an upload may get


@dataclass(frozen=True)
class BuiltPage:
    """The page, and the user's files that were left out of it."""

    blocks: gr.Blocks
    faults: tuple[str, ...]
    switches: Mapping[str, Sequence[Switch]]  # of scripts, by the prefix of their tab
    tab_roles: Mapping[str, Role]  # that see the tabs of extensions


def build_page(services: Services) -> BuiltPage:
    """The Gradio page; loads no model."""
    if services.foreign is None:
        return _build_page(services)
    with services.foreign.telling_of_components(services.scripts):
        return _build_page(services)


def _build_page(services: Services) -> BuiltPage:
    services.scripts.before_ui()
    settings = services.settings.current.interface
    with GuardedBlocks(
        title="Featherweight", analytics_enabled=False, delete_cache=UPLOADS_KEPT_S, fill_width=True
    ) as page:
        checkpoint = build_header(services, page)
        gr.HTML('<div id="fw_notices" aria-live="polite"></div>', elem_id="fw_notices_box")
        image_tabs: list[ImageTab] = []
        wire_defaults: list[Callable[[UiConfig], None]] = []
        added = tabs_of_extensions(services.scripts.callbacks)
        titles = tab_titles(added)
        names = ordered(settings.ui_tab_order, titles)
        tabs: dict[str, gr.Tab] = {}

        def when_opened(name: str) -> WhenOpened:
            return cast(WhenOpened, page.load if name == names[0] else tabs[name].select)

        builders: dict[str, Callable[[], Any]] = {
            "txt2img": lambda: image_tabs.append(build_txt2img_tab(services)),
            "img2img": lambda: image_tabs.append(build_img2img_tab(services)),
            "extras": lambda: build_extras_tab(services, when_opened("extras")),
            "pnginfo": build_png_info_tab,
            "getmodels": build_models_tab,
            "queue": build_queue_tab,
            "history": build_history_tab,
            "extensions": services.foreign.build_tab if services.foreign is not None else lambda: None,
            "settings": lambda: wire_defaults.append(build_settings_tab(services)),
        }
        with gr.Tabs(elem_id="tabs"):
            for name in names:
                if name == "settings":
                    place_extension_tabs(make_extension_tabs(services.scripts.callbacks))
                with gr.Tab(
                    titles[name],
                    id=name,
                    elem_id=f"tab_{name}",
                    visible=not is_hidden(name, titles[name], settings.hidden_tabs),
                ) as tabs[name]:
                    if name in added:
                        added[name].build(TabPlace(services, when_opened(name), checkpoint))
                    else:
                        builders[name]()
        wire_keeping(image_tabs, page)
        version = f'<span translate="no">{services.version}</span>'
        tour = '<button type="button" id="fw_start_tour">Show me around</button>'
        text = f'{version} · <a href="docs" translate="no">API</a> · {tour} · <span>nothing leaves this machine</span>'
        gr.HTML(f'<footer class="fw-footer">{text}</footer>')
        config = UiConfig(services.paths.ui_config_file)
        faults = config.apply(page)
        for wire in wire_defaults:
            wire(config)
    assert isinstance(page, GuardedBlocks)
    roles = {name: one.tab.least for name, one in added.items()}
    page.services = services
    return BuiltPage(page, faults, {tab.prefix: tab.scripts.switches for tab in image_tabs}, roles)


def mount_page(app: FastAPI, services: Services) -> FastAPI:
    """Put the page at "/" of `app`; its own routes are declared first, because the page answers every other path."""
    app.include_router(page_routes(services))
    app.include_router(extras_routes(services))
    if services.foreign is not None:
        app.include_router(services.foreign.page_routes(services))
        app.state.extension_frames = services.foreign.frame_hosts(services.scripts)
    app.include_router(page_files(services.scripts))
    start = PageStart()
    app.include_router(reload_routes(app, lambda fresh: _mount_again(fresh, services, start)))
    os.environ.setdefault("GRADIO_TEMP_DIR", str(services.paths.cache_dir / "uploads"))
    mounted, page = _mount(app, services, start)
    app.add_middleware(PlainEventsMiddleware, start=start)
    app.add_middleware(GradioScriptsMiddleware)
    compress(app)
    add_extension_routes(app, services.scripts.callbacks, page)
    return mounted


def _mount_again(app: FastAPI, services: Services, start: PageStart) -> tuple[FastAPI, gr.Blocks]:
    """Build the page once more, for Reload UI."""
    services.scripts.callbacks.call(Moment.BEFORE_RELOAD)
    return _mount(app, services, start)


def _mount(app: FastAPI, services: Services, start: PageStart) -> tuple[FastAPI, gr.Blocks]:
    """Build the page and put it at "/", and what it begins with into `start`; gives the app and the page."""
    is_closed = services.access.page_is_closed
    built = build_page(services)
    theme, theme_fault = theme_of(services.settings.current.interface.gradio_theme)
    css, css_fault = user_css(services.paths.data_dir)
    faults = [fault for fault in (*built.faults, theme_fault, css_fault) if fault]
    mounted: FastAPI = gr.mount_gradio_app(
        app,
        built.blocks,
        path="/",
        auth_dependency=(lambda request: identity_of(request).name) if is_closed else None,
        ssr_mode=False,
        footer_links=[],
        theme=theme,
        css_paths=[*services.scripts.page_styles, *([css] if css else [])],
        head=page_looks(services.scripts),
        allowed_paths=[],
        max_file_size="256mb",
    )
    start.html = first_script(built.blocks) + _scripts(services, faults, built)
    refuse_unknown_calls(page_app(mounted), services)
    return mounted, built.blocks


def _scripts(services: Services, faults: Sequence[str], built: BuiltPage) -> str:
    """List what the page's scripts know from the start, and where they are."""
    known = {
        "tabs": [
            {**ids, "switches": built.switches.get(ids["prefix"], ())}
            for ids in (txt2img_tab.SCRIPT_IDS, img2img_tab.SCRIPT_IDS)
        ],
        "cards": list(services.cards.pages),
        "theme": services.flags.theme or "",
        "faults": list(faults),
        "tabRoles": built.tab_roles,
    }
    theirs = dict(services.foreign.page_facts(services.scripts)) if services.foreign is not None else {}
    return page_scripts({**known, **theirs}, services.scripts, is_extended=bool(theirs))
