"""Modules that need weights, by name: from an image and a file to a control map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lib_controlnet.detectors import anime_lines, body, depth, lineart, soft_edges
from lib_controlnet.pixels import Pixels
from lib_controlnet.preprocessors import Job

Detect = Callable[[Pixels, Job, Path], Pixels]


def _pose(image: Pixels, job: Job, path: Path) -> Pixels:
    drawn, found = body.drawing(image, path)
    job.poses.append(found)
    return drawn


DETECT: Mapping[str, Detect] = {
    "hed": lambda image, job, path: soft_edges.soft(soft_edges.hed(image, path)),
    "hed_safe": lambda image, job, path: soft_edges.safe(soft_edges.hed(image, path)),
    "scribble_hed": lambda image, job, path: soft_edges.scribble(soft_edges.hed(image, path)),
    "pidinet": lambda image, job, path: soft_edges.soft(soft_edges.pidinet(image, path)),
    "pidinet_safe": lambda image, job, path: soft_edges.safe(soft_edges.pidinet(image, path)),
    "pidinet_scribble": lambda image, job, path: soft_edges.scribble(soft_edges.pidinet(image, path)),
    "lineart": lambda image, job, path: lineart.drawing(image, path),
    "lineart_coarse": lambda image, job, path: lineart.drawing(image, path),
    "lineart_anime": lambda image, job, path: anime_lines.drawing(image, path),
    "depth_anything": lambda image, job, path: depth.anything(image, path, is_second=False),
    "depth_anything_v2": lambda image, job, path: depth.anything(image, path, is_second=True),
    "openpose": _pose,
}


def made(name: str, image: Pixels, job: Job, path: Path) -> Pixels:
    """The map [H,W] or [H,W,3] of [H,W,3]. Raises `CheckpointError` for a file that is another network's."""
    return DETECT[name](image, job, path)
