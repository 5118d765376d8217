"""The one table of what this server answers, and whose least role may ask for it.

A route is named by method and path, as it is declared; a function of the page by module and name, as in its traceback.
What is not listed is for admins. Extensions say it at their own functions (`modules.access.roles.open_to`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from re import Pattern

from starlette.routing import compile_path

from modules.access.roles import Role

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
PREFIXES = ("sdapi", "featherweight", "agent-scheduler")
NOT_THERE = tuple(f"{method} /{prefix}/{{path:path}}" for method in METHODS[:4] for prefix in PREFIXES)
"""Paths of the API that do not exist; a route that is not listed would fit here too."""

OPEN = (
    *("GET /login", "POST /login", "GET /favicon.ico", "GET /robots.txt"),
    "POST /logout",  # ends only the session that asks
    "GET /logout",
)
"""For whoever reaches the server."""

ROUTES: Mapping[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        # the page and what it is made of
        *("GET /", "GET /config", "GET /config/", "GET /theme.css", "GET /manifest.json"),
        *("GET /svelte/{path:path}", "GET /static/{path:path}", "GET /assets/{path:path}"),
        *("GET /pwa_icon", "GET /pwa_icon/{size}"),
        *("GET /gradio_api/user", "GET /gradio_api/user/", "GET /gradio_api/login_check"),
        *("GET /gradio_api/login_check/", "GET /gradio_api/token", "GET /gradio_api/token/", "GET /gradio_api/app_id"),
        *("GET /gradio_api/app_id/", "GET /gradio_api/info", "GET /gradio_api/info/", "GET /gradio_api/openapi.json"),
        *("GET /gradio_api/theme.css", "GET /gradio_api/startup-events"),
        "GET /gradio_api/custom_component/{id}/{environment}/{type}/{file_name}",
        # scripts and pictures in the folders of extensions
        *("GET /file={path:path}", "GET /page-files/{digest}/{name}"),
        # files of Gradio's cache: the names are hashes of what they hold
        *("GET /gradio_api/file={path_or_url:path}", "GET /gradio_api/file/{path:path}"),
        *("POST /gradio_api/upload", "GET /gradio_api/upload_progress"),
        # calls of the page's functions, each of which has a role of its own below
        *("POST /gradio_api/queue/join", "GET /gradio_api/queue/data", "GET /gradio_api/queue/status"),
        *("POST /gradio_api/run/{api_name}", "POST /gradio_api/run/{api_name}/"),
        *("POST /gradio_api/api/{api_name}", "POST /gradio_api/api/{api_name}/"),
        *("POST /gradio_api/call/{api_name}", "POST /gradio_api/call/{api_name}/"),
        *("POST /gradio_api/call/v2/{api_name}", "POST /gradio_api/call/v2/{api_name}/"),
        *("GET /gradio_api/call/{api_name}/{event_id}", "GET /gradio_api/call/v2/{api_name}/{event_id}"),
        *("POST /gradio_api/cancel", "POST /gradio_api/reset", "POST /gradio_api/reset/"),
        "GET /gradio_api/heartbeat/{session_hash}",
        # the API's description
        *("GET /docs", "GET /redoc", "GET /openapi.json"),
        # looking at images and at how far one's own work is
        *(
            "GET /internal/localization",
            "GET /internal/me",
            "GET /internal/ping",
            "GET /internal/engine",
            "GET /internal/notices",
        ),
        *("POST /internal/progress", "GET /internal/pending-tasks", "GET /sdapi/v1/progress"),
        *("GET /featherweight/v1/queue", "GET /featherweight/v1/queue/job", "GET /featherweight/v1/queue/image"),
        "GET /featherweight/v1/queue/start-image",
        *("GET /featherweight/v1/history", "GET /featherweight/v1/history/count"),
        *("GET /featherweight/v1/history/values", "GET /featherweight/v1/history/of-job"),
        *("GET /featherweight/v1/history/one", "GET /featherweight/v1/history/thumbnail"),
        *("GET /featherweight/v1/history/image", "GET /featherweight/v1/history/difference"),
        *("GET /featherweight/v1/history/compare", "GET /featherweight/v1/history/users"),
        *("GET /featherweight/v1/history/differing", "GET /featherweight/v1/history/boards"),
        "POST /sdapi/v1/png-info",
    ),
    Role.USER: (
        # making images
        *("POST /sdapi/v1/txt2img", "POST /sdapi/v1/img2img", "POST /sdapi/v1/extra-single-image"),
        *("POST /sdapi/v1/extra-batch-images", "POST /sdapi/v1/interrogate", "POST /sdapi/v1/plan"),
        *("POST /sdapi/v1/interrupt", "POST /sdapi/v1/skip", "POST /internal/extension-fault"),
        *(
            "POST /internal/token-count",
            "POST /internal/memory-estimate",
            "GET /internal/presets",
            "POST /internal/presets",
        ),
        *("POST /internal/upload", "GET /internal/upload/{key}"),
        *("GET /internal/batch", "POST /internal/stop-batch"),
        # what there is to choose from
        *(
            "GET /sdapi/v1/options",
            "GET /sdapi/v1/sd-models",
            "GET /sdapi/v1/sd-modules",
            "GET /sdapi/v1/sd-vae",
            "GET /sdapi/v1/samplers",
        ),
        *("GET /sdapi/v1/schedulers", "GET /sdapi/v1/upscalers", "GET /sdapi/v1/realesrgan-models"),
        *("GET /sdapi/v1/latent-upscale-modes", "GET /sdapi/v1/prompt-styles", "GET /sdapi/v1/hypernetworks"),
        *("GET /sdapi/v1/embeddings", "GET /sdapi/v1/scripts", "GET /sdapi/v1/script-info"),
        *("GET /sdapi/v1/face-restorers", "GET /sdapi/v1/extensions", "GET /sdapi/v1/memory"),
        *("POST /sdapi/v1/refresh-checkpoints", "POST /sdapi/v1/refresh-embeddings", "POST /sdapi/v1/refresh-vae"),
        *("GET /internal/extra-networks", "GET /internal/extra-networks/preview"),
        *("GET /internal/extra-networks/details", "GET /internal/quicksettings-hint"),
        *("GET /sd_extra_networks/thumb", "GET /sd_extra_networks/cover-images", "GET /sd_extra_networks/metadata"),
        "GET /sd_extra_networks/get-single-card",
        # one's own work and images
        *("GET /internal/result", "GET /internal/image", "GET /internal/extras-image", "GET /internal/zip-images"),
        *("POST /internal/save-image", "POST /internal/delete-image", "POST /internal/hires-image"),
        *("GET /featherweight/v1/tasks", "GET /featherweight/v1/tasks/{task_id}"),
        *("POST /featherweight/v1/tasks/{task_id}/cancel", "POST /internal/clear-queue"),
        *("POST /featherweight/v1/queue/clear", "POST /featherweight/v1/queue/retry-failed"),
        *("POST /featherweight/v1/queue/move", "POST /featherweight/v1/queue/cancel"),
        *("POST /featherweight/v1/queue/remove", "POST /featherweight/v1/queue/again"),
        *("POST /featherweight/v1/queue/rename", "POST /featherweight/v1/queue/change"),
        *("POST /featherweight/v1/history/star", "POST /featherweight/v1/history/tags"),
        *("POST /featherweight/v1/history/delete", "POST /featherweight/v1/history/restore"),
        *("POST /featherweight/v1/history/again", "POST /featherweight/v1/history/again-with"),
        *("GET /featherweight/v1/history/parameters", "POST /featherweight/v1/history/boards"),
        *("POST /featherweight/v1/history/boards/rename", "POST /featherweight/v1/history/boards/remove"),
        "POST /featherweight/v1/history/boards/put",
    ),
    Role.ADMIN: (
        # settings, models, the server itself
        *("POST /sdapi/v1/options", "GET /sdapi/v1/cmd-flags", "POST /sdapi/v1/unload-checkpoint"),
        *("POST /sdapi/v1/reload-checkpoint", "POST /sdapi/v1/server-stop", "POST /sdapi/v1/server-kill"),
        *("POST /sdapi/v1/server-restart", "GET /featherweight/v1/memory-timeline", "GET /internal/profile-startup"),
        "POST /featherweight/v1/measure-device",
        *("GET /internal/sysinfo", "GET /internal/sysinfo-download", "POST /internal/extra-networks/notes"),
        *("POST /internal/extra-networks/preview", "POST /internal/extra-networks/checkpoint"),
        *("POST /featherweight/v1/downloads", "POST /featherweight/v1/downloads/look"),
        *("GET /featherweight/v1/downloads/known", "POST /featherweight/v1/downloads/cancel"),
        *("GET /featherweight/v1/downloads/unfinished", "POST /featherweight/v1/downloads/discard"),
        *("GET /featherweight/v1/downloads/fitting", "GET /featherweight/v1/models"),
        *("POST /featherweight/v1/models/doubles", "POST /featherweight/v1/models/about"),
        *("POST /featherweight/v1/models/move", "POST /featherweight/v1/models/delete"),
        *("POST /featherweight/v1/models/restore", "POST /featherweight/v1/models/forget"),
        # everybody's work
        "GET /featherweight/v1/workers",
        *("POST /featherweight/v1/queue/pause", "POST /featherweight/v1/queue/resume"),
        *("POST /featherweight/v1/queue/when-done", "POST /featherweight/v1/queue/next"),
        # folders of the server's machine
        *("POST /internal/open-folder", "POST /featherweight/v1/history/show", "GET /featherweight/v1/history/imports"),
        *("POST /featherweight/v1/history/import", "POST /featherweight/v1/history/stop-import"),
        # extensions, whose code runs with the program's rights
        *("GET /featherweight/v1/extensions", "GET /featherweight/v1/extensions/index"),
        *("POST /featherweight/v1/extensions/switch", "POST /featherweight/v1/extensions/install"),
        *("POST /featherweight/v1/extensions/update", "POST /featherweight/v1/extensions/restore"),
        *("POST /featherweight/v1/extensions/remove", "POST /featherweight/v1/extensions/packages"),
        "POST /featherweight/v1/extensions/packages/undo",
        # the page and its defaults for all
        *(
            "POST /internal/reload-page",
            "GET /internal/settings",
            "POST /internal/settings",
            "POST /internal/settings/refresh",
            "GET /internal/licences",
        ),
        # of Gradio, not used by this page
        "POST /login/",
        *("GET /gradio_api/deep_link", "GET /monitoring", "GET /monitoring/summary", "GET /monitoring/{key}"),
        *("GET /gradio_api/dev/reload", "GET /gradio_api/runs", "GET /gradio_api/runs/"),
        *("POST /gradio_api/run-history/connect", "GET /gradio_api/run-history/buckets"),
        "GET /gradio_api/run-history/records",
        "GET /gradio_api/run-history/records/{endpoint}/{record_id}/assets/{asset_id}",
        "GET /gradio_api/proxy={url_path:path}",
        *("POST /gradio_api/stream/{event_id}", "POST /gradio_api/stream/{event_id}/close"),
        "GET /gradio_api/stream/{session_hash}/{run}/{component_id}/playlist.m3u8",
        "GET /gradio_api/stream/{session_hash}/{run}/{component_id}/{segment_id}.{ext}",
        "GET /gradio_api/stream/{session_hash}/{run}/{component_id}/playlist-file",
        *("POST /gradio_api/component_server", "POST /gradio_api/component_server/"),
        *("POST /gradio_api/process_recording", "POST /gradio_api/vibe-edit", "POST /gradio_api/vibe-edit/"),
        *("POST /gradio_api/undo-vibe-edit", "POST /gradio_api/undo-vibe-edit/", "GET /gradio_api/vibe-code"),
        *("GET /gradio_api/vibe-code/", "POST /gradio_api/vibe-code", "POST /gradio_api/vibe-code/"),
        *("POST /gradio_api/vibe-starter-queries", "POST /gradio_api/vibe-starter-queries/"),
        *NOT_THERE,
    ),
}

LOOKING = frozenset(
    (
        *("GET /internal/me", "GET /internal/ping", "GET /internal/engine", "GET /internal/notices"),
        *("POST /internal/progress", "GET /internal/pending-tasks", "GET /featherweight/v1/queue"),
        *("GET /gradio_api/heartbeat/{session_hash}", "GET /gradio_api/queue/data", "GET /internal/batch"),
    )
)
"""What an open page asks by itself: it keeps no login from ending."""

CALLS: Mapping[Role, tuple[str, ...]] = {
    Role.VIEWER: (
        "gradio.renderable:Renderable.apply",
        "modules.ui.tabs.header:build_header.<locals>.current_choices",
        "modules.ui.tabs.image_tab:ImageTab.opened",
        "modules.ui.tabs.image_tab:wire_keeping.<locals>.look",
        "modules.ui.tabs.extras_tab:_wire.<locals>.look",
        "modules.ui.tabs.png_info_tab:build_png_info_tab.<locals>.read",
    ),
    Role.USER: (
        "modules.ui.tabs.image_tab:build_top_row.<locals>.<lambda>",
        "modules.ui.tabs.image_tab:build_size.<locals>.<lambda>",
        "modules.ui.tabs.image_tab:build_seed.<locals>.<lambda>",
        "modules.ui.tabs.image_tab:build_overrides.<locals>.<lambda>",
        "modules.ui.tabs.image_tab:build_refiner.<locals>.look",
        "modules.ui.tabs.image_tab:build_style_editor.<locals>.show",
        "modules.ui.tabs.image_tab:_wire_jobs.<locals>.send",
        "modules.ui.tabs.image_tab:_wire_jobs.<locals>.stop",
        "modules.ui.tabs.image_tab:_wire_jobs.<locals>.skip",
        "modules.ui.tabs.image_tab:_pasting.<locals>.paste",
        "modules.ui.tabs.image_tab:_taking.<locals>.take",
        "modules.ui.tabs.txt2img_tab:_switched_accordion.<locals>.<lambda>",
        "modules.ui.tabs.txt2img_tab:_build_hires.<locals>.look",
        "modules.ui.form.scripts_panel:_build_scripts.<locals>.show",
        "modules.ui.tabs.extras_tab:_build_inputs.<locals>.<lambda>",
        "modules.ui.tabs.extras_tab:_wire.<locals>.submit",
        "modules.ui.tabs.extras_tab:_wire.<locals>.stop",
        "modules.ui.tabs.extras_tab:_changed.<locals>.tell",
        "modules.ui.tabs.extras_tab:build_extras_tab.<locals>.<lambda>",
        "modules.ui.form.operation_fields:switched.<locals>.<lambda>",
        "modules.ui.form.operation_fields:_build_upscale.<locals>.<lambda>",
        "modules.ui.form.operation_fields:_refreshed.<locals>.look",
    ),
    Role.ADMIN: (
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.about",
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.change",
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.forget",
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.look",
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.offer",
        "modules.ui.tabs.defaults_page:build_defaults_page.<locals>.wire.<locals>.store",
        "modules.ui.tabs.header:build_header.<locals>.<lambda>",
        "modules.ui.tabs.header:build_header.<locals>.choose",
        "modules.ui.tabs.header:build_header.<locals>.look",
        "modules.ui.tabs.quicksettings:_storing.<locals>.store",
        "modules.ui.tabs.image_tab:build_style_editor.<locals>.store",
        "modules.ui.tabs.image_tab:build_style_editor.<locals>.remove",
    ),
}
"""The functions that the page calls on the server (Gradio's events)."""


class Zone(Enum):
    """Whose users a path asks for, where --api-auth gives the API users of its own."""

    PAGE = "page"
    SHARED = "shared"  # of the API, and called by the page's script
    API = "api"


API_PATHS = (
    *("/sdapi/", "/featherweight/", "/internal/", "/docs", "/redoc", "/openapi.json", "/file-of/"),
    *("/sd_extra_networks/", "/agent-scheduler/"),
)
FOR_THE_PAGE = (
    *("/internal/", "/file-of/", "/sdapi/v1/png-info", "/sdapi/v1/interrogate", "/featherweight/v1/reports/"),
    *("/featherweight/v1/queue", "/featherweight/v1/history"),
)


@dataclass(frozen=True)
class Rule:
    """The table's row for a request. `least` None: anybody may."""

    least: Role | None
    is_listed: bool = True
    is_looking: bool = False
    parameters: Mapping[str, str] | None = None  # of the path


UNLISTED = Rule(Role.ADMIN, is_listed=False)


def rule_for(method: str, path: str, more: "tuple[OpenRoute, ...]" = ()) -> Rule:
    """The rule of a request: the first row that fits its method and its path. `more` are those of extensions.

    For another method of a route of ours, or a slash behind it, whoever may use the route is let in: to learn the
    right method (405), or sent there (307), which asks again.
    """
    found = _row_for(method, path, more)
    short = path.removesuffix("/")
    if found.is_listed or not short.strip("/"):
        return found
    rules = [rule for other in METHODS if (rule := _row_for(other, short)).is_listed]
    return min(rules, key=lambda rule: (None, *Role).index(rule.least), default=found)


def _row_for(method: str, path: str, more: "tuple[OpenRoute, ...]" = ()) -> Rule:
    method = "GET" if method == "HEAD" else method
    plain, patterns = _rows()
    row = plain.get(f"{method} {path}")
    if row is not None:
        return row
    for route in more:
        if method in route.methods and route.pattern.match(path):
            return Rule(route.least)
    for wanted, pattern, rule in patterns:
        found = pattern.match(path) if wanted == method else None
        if found:
            return replace(rule, parameters=found.groupdict())
    return UNLISTED


def is_listed(row: str) -> bool:
    """Whether a route (`METHOD /path` as it is declared) stands in the table."""
    return row in OPEN or any(row in rows for rows in ROUTES.values())


@cache
def role_of_call(name: str) -> Role | None:
    """The least role for a function of the page (`module:qualified name`); None for one that is not listed."""
    return next((role for role, names in CALLS.items() if name in names), None)


def zone_of(path: str, more: tuple[str, ...] = ()) -> Zone:
    """Whose users a path asks for; `more` are the paths of extensions."""
    if path.startswith((*FOR_THE_PAGE, *more)):
        return Zone.SHARED
    return Zone.API if path.startswith(API_PATHS) else Zone.PAGE


@dataclass(frozen=True)
class OpenRoute:
    """A route of an extension, and who may use it."""

    methods: frozenset[str]
    pattern: Pattern[str]
    least: Role


@cache
def _rows() -> tuple[dict[str, Rule], list[tuple[str, Pattern[str], Rule]]]:
    """The table by path for paths without parameters, and the others as patterns, those that fit everything last; of
    these the ones that say what is not there count as not listed."""
    plain: dict[str, Rule] = {row: Rule(None) for row in OPEN}
    patterns = []
    for role, rows in ROUTES.items():
        for row in rows:
            method, path = row.split(" ", 1)
            rule = Rule(role, row not in NOT_THERE, row in LOOKING)
            if "{" in path:
                patterns.append((path.endswith("/{path:path}"), method, compile_path(path)[0], rule))
            else:
                plain[row] = rule
    patterns.sort(key=lambda one: one[0])
    return plain, [(method, pattern, rule) for _, method, pattern, rule in patterns]
