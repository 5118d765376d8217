"""The memory estimate of a txt2img job, before it is sent."""

from fastapi import APIRouter, Query

from modules.api.generation.requests import request_from
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import PlanReply
from modules.api.schema.schemas import Txt2ImgBody
from modules.processing.memory_estimate.words import GB, plan_reply
from modules.services import Services


def planning_routes(services: Services) -> APIRouter:
    """POST /sdapi/v1/plan."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["generation"])

    @routes.post("/plan", **documented(errors={404: "Unknown checkpoint 'x'. Known: a.safetensors."}))
    def plan(
        body: Txt2ImgBody,
        available_gb: float | None = Query(
            None, gt=0, le=1e6, description="10^9 bytes: what if the device had so much"
        ),
    ) -> PlanReply:
        """Predict the memory that a txt2img body needs, stage by stage, in bytes. Nothing is computed or loaded. Where
        it does not fit, `proposals` are changes with which it would, the cheapest first: `settings` to store, `fields`
        of the body to change."""
        request = request_from(body, services)
        free = None if available_gb is None else round(available_gb * GB)
        return PlanReply.model_validate(plan_reply(*services.planner.planned(request, free)))

    return routes
