"""`/sdapi/v1/loras` and `/sdapi/v1/refresh-loras`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from modules.scripts import extra_networks, program_now, script_callbacks

PROGRAM = program_now()
LORAS: list[dict[str, Any]] = [
    {
        "name": "ink",
        "alias": "ink-v2",
        "path": "models/Lora/ink.safetensors",
        "metadata": {"ss_network_dim": "8"},
        "few_steps": None,
        "retention": {
            "retention": 0.998,
            "mode": "merge from full precision",
            "noise": 0.01,
            "worst": [["down_blocks.0", 0.99]],
        },
    }
]


def add_routes(page: object, app: Any) -> None:
    """Called when page and API are built."""
    from fastapi import APIRouter  # only where there is a server

    from modules.api.schema.documentation import documented

    routes = APIRouter(prefix="/sdapi/v1", tags=["lists"])

    @routes.get("/loras", **documented(LORAS))
    @script_callbacks.open_to("user")
    def loras() -> list[dict[str, Any]]:
        """Adapters of the LoRA family with the metadata of their files, what those ask for that make images in few
        steps (LCM, Lightning, Hyper-SD, DMD2, Turbo), and how much of each one's effect was kept at its last use."""
        adapters = PROGRAM.adapters()
        return [
            {
                "name": info.name,
                "alias": info.alias,
                "path": str(info.path),
                "metadata": info.metadata,
                "few_steps": extra_networks.few_steps_json(extra_networks.adapter_few_steps(info.path, info.metadata)),
                "retention": asdict(adapters.effect_kept[info.path]) if info.path in adapters.effect_kept else None,
            }
            for info in adapters.catalogue.entries
        ]

    @routes.post("/refresh-loras", **documented())
    @script_callbacks.open_to("user")
    def refresh_loras() -> None:
        """Look for adapters of the LoRA family again."""
        PROGRAM.adapters().catalogue.refresh()

    app.include_router(routes)


script_callbacks.on_app_started(add_routes)
