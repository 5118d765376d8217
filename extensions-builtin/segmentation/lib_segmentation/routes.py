"""Masks over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from lib_segmentation.asked import Asked
from lib_segmentation.segmenter import Segmenter
from lib_segmentation.work import SEGMENT
from modules.api.access.auth import user_of
from modules.api.schema.documentation import documented
from modules.api.schema.schemas import Tolerant
from modules.scripts.script_callbacks import open_to

NOTHING = "Nothing in the image is found for 'zebra', and nothing is masked. Try another word, or a lower score."


class SegmentBody(Tolerant):
    """POST /featherweight/v1/segment: points or a box, or words."""

    image: str = Field(examples=["base64 of an image"])
    points: list[list[float]] = Field(
        default=[], description="[x, y, 1] lies in the thing, [x, y, 0] outside; in pixels", examples=[[[40, 30, 1]]]
    )
    box: list[float] | None = Field(default=None, description="left, top, right, bottom in pixels")
    words: str = Field(default="", description="names of things, separated by commas", examples=[""])
    score: float | None = Field(default=None, description="the least score, 0 to 1; without it as suits the model")
    grow: int = Field(default=0, description="pixels; below 0 it shrinks")
    blur: float = Field(default=0, description="standard deviation in pixels")
    invert: bool = False
    model: str = Field(default="", description="a file of models/segmentation; without it the first that fits")


class Thing(BaseModel):
    """A thing that was found; `box`: left, top, right, bottom in pixels."""

    label: str
    score: float
    box: list[float]


class SegmentReply(BaseModel):
    """`mask`: a PNG in base64, of the size of the image, white where the things are."""

    mask: str
    found: list[Thing]


Compute = Callable[[str, Mapping[str, Any], str], Mapping[str, Any]]


def segment_routes(segmenter: Segmenter, compute: Compute) -> APIRouter:
    """POST /featherweight/v1/segment."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["generation"])

    @routes.post("/segment", **documented(errors={422: NOTHING}))
    @open_to("user")
    async def segment(body: SegmentBody, request: Request) -> SegmentReply:
        """Make a mask of what is at some points, in a box, or named by words. It waits its turn in the queue; an image
        is looked at once, and further clicks in it take a moment."""
        values = body.model_dump()
        segmenter.check_any(Asked.read(values))
        return SegmentReply(**await asyncio.to_thread(compute, SEGMENT, values, user_of(request)))

    return routes
