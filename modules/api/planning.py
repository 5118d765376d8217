"""What a txt2img job will need, before it is sent."""

from typing import Any

from fastapi import APIRouter, Query

from modules.api.documentation import documented
from modules.api.requests import request_from
from modules.api.schemas import Txt2ImgBody
from modules.processing.memory_estimate.proposals import propose
from modules.processing.memory_estimate.words import GB, plan_reply
from modules.services import Services

EXAMPLE: dict[str, Any] = {
    "device": "NVIDIA GeForce GTX 1650",
    "line": "needs 4.3 of 4.0 GB, main memory 2.1 of 12.8 GB",
    "needs": 4_310_000_000,
    "available": 4_000_000_000,
    "fits": False,
    "worst": "decode",
    "weights": 2_132_000_000,
    "learnt_from": 2,
    "main_needs": 2_100_000_000,
    "main_available": 12_800_000_000,
    "stages": [
        {"stage": "denoise", "needs": 2_980_000_000, "main": 1_900_000_000},
        {"stage": "decode", "needs": 4_310_000_000, "main": 1_900_000_000},
    ],
    "proposals": [
        {
            "title": "VAE in tiles",
            "line": "needs 3.0 of 4.0 GB, main memory 2.1 of 12.8 GB",
            "needs": 2_980_000_000,
            "fits": True,
            "settings": {"vae_tile_size": 512},
            "fields": {},
        }
    ],
}


def planning_routes(services: Services) -> APIRouter:
    """POST /sdapi/v1/plan."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["generation"])

    @routes.post("/plan", **documented(EXAMPLE, errors={404: "Unknown checkpoint 'x'. Known: a.safetensors."}))
    def plan(
        body: Txt2ImgBody,
        available_gb: float | None = Query(
            None, gt=0, le=1e6, description="10^9 bytes: what if the device had so much"
        ),
    ) -> dict[str, Any]:
        """Predict the memory that a txt2img body needs, stage by stage, in bytes. Nothing is computed or loaded. Where
        it does not fit, `proposals` are changes with which it would, the cheapest first: `settings` to store, `fields`
        of the body to change."""
        request = request_from(body, services)
        free = None if available_gb is None else round(available_gb * GB)
        found = services.estimator.plan(request, free)
        return plan_reply(found, propose(request, found, lambda changed: services.estimator.plan(changed, free)))

    return routes
