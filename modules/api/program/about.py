"""Facts about the program, its machine and its start, for bug reports, and for clients that look for it."""

import hashlib
import json
import os
import platform
from datetime import datetime
from importlib.metadata import distributions
from typing import Any

from fastapi import APIRouter, Response

from modules.api.schema.reply_models import SettingHint, StartupReply
from modules.flags.flags import Flags, public_flags
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.system.devices import main_memory_info

SHOWN_VARIABLES = ("OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "CUDA_VISIBLE_DEVICES", "LANG")
"""Of the environment; all others may hold what is nobody's business."""

TEXT: dict[int | str, dict[str, Any]] = {
    200: {"description": "JSON as text.", "content": {"text/plain": {"example": '{"Platform": "Linux", ...}'}}}
}


def about_routes(services: Services) -> APIRouter:
    """The routes below /internal that describe the program, with the reference UI's names."""
    routes = APIRouter(prefix="/internal", tags=["page"])

    @routes.get("/quicksettings-hint")
    def quicksettings_hint() -> list[SettingHint]:
        """Every setting with its label: what may stand above the tabs."""
        return [SettingHint(name=key, label=setting.label) for key, setting in SETTINGS.items()]

    @routes.get("/profile-startup")
    def profile_startup() -> StartupReply:
        """Where the time of the start went, in seconds."""
        return StartupReply(total=sum(services.startup_s.values()), records=dict(services.startup_s))

    @routes.get("/sysinfo", response_class=Response, responses=TEXT)
    def sysinfo() -> Response:
        """System, settings and packages as a JSON text; passwords and keys are left out."""
        return _sysinfo_reply(services, "inline")

    @routes.get("/sysinfo-download", response_class=Response, responses=TEXT)
    def sysinfo_download() -> Response:
        """Download the same facts as a file."""
        return _sysinfo_reply(services, "attachment")

    return routes


def _sysinfo_reply(services: Services, disposition: str) -> Response:
    name = f"sysinfo-{datetime.now().astimezone():%Y-%m-%d-%H-%M}.json"
    headers = {"Content-Disposition": f'{disposition}; filename="{name}"'}
    return Response(sysinfo_text(services), media_type="text/plain; charset=utf-8", headers=headers)


def sysinfo_text(services: Services) -> str:
    """A JSON object with the reference UI's keys; `Checksum` is the SHA-256 of the text with an empty checksum."""
    packages = sorted({f"{item.name}=={item.version}" for item in distributions()}, key=str.lower)
    facts: dict[str, object] = {
        "Platform": platform.platform(),
        "Python": platform.python_version(),
        "Version": services.version,
        "Script path": str(services.paths.root),
        "Data path": str(services.paths.data_dir),
        "Extensions dir": [str(folder) for folder in services.paths.extension_dirs],
        "Checksum": "",
        "Commandline": _given(services.flags),
        "CPU": {"model": platform.processor() or platform.machine(), "count logical": os.cpu_count()},
        "RAM": main_memory_info()["ram"],
        "Extensions": sorted({script.title() for script in services.scripts.scripts}),
        "Environment": {name: os.environ[name] for name in SHOWN_VARIABLES if name in os.environ},
        "Config": services.settings.current.to_stored(),
        "Startup": {"total": sum(services.startup_s.values()), "records": dict(services.startup_s)},
        "Packages": packages,
    }
    without = json.dumps(facts, indent=4, ensure_ascii=False, default=str)
    facts["Checksum"] = hashlib.sha256(without.encode("utf-8", "replace")).hexdigest()
    return json.dumps(facts, indent=4, ensure_ascii=False, default=str)


def _given(flags: Flags) -> dict[str, object]:
    """The flags that differ from their defaults, secrets hidden."""
    usual = public_flags(Flags())
    return {name: value for name, value in public_flags(flags).items() if value != usual[name]}
