"""Modules that need weights, by name: from an image and a file to a control map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lib_controlnet.detectors import (
    anime_lines,
    body,
    depth,
    leres,
    lineart,
    lines,
    midas,
    normals,
    oneformer,
    parts,
    soft_edges,
    teed,
    uniformer,
    zoe,
)
from lib_controlnet.job import Job
from lib_controlnet.pixels import Pixels
from lib_controlnet.poses import drawn

Detect = Callable[[Pixels, Job, Sequence[Path]], Pixels]
"""(image [H,W,3], what the module gets, a file of each of its groups of weights) -> map."""


def _one(detect: Callable[[Pixels, Job, Path], Pixels]) -> Detect:
    """A network that reads one file."""
    return lambda image, job, paths: detect(image, job, paths[0])


def _pose(*adds: Callable[[Pixels, dict[str, Any], Path], None], bodies: bool = True) -> Detect:
    """Load what finds people, and what is added to them, by a file each; without `bodies` they are found, and not
    drawn."""

    def detect(image: Pixels, job: Job, paths: Sequence[Path]) -> Pixels:
        found = body.bodies(image, paths[0])
        for add, path in zip(adds, paths[1:], strict=True):
            add(image, found, path)
        job.poses.append(found)
        hidden: dict[str, Any] = {} if bodies else {"pose_keypoints_2d": []}
        return drawn({**found, "people": [{**person, **hidden} for person in found["people"]]}, "pose")

    return detect


DETECT: Mapping[str, Detect] = {
    "hed": _one(lambda image, job, path: soft_edges.soft(soft_edges.hed(image, path))),
    "hed_safe": _one(lambda image, job, path: soft_edges.safe(soft_edges.hed(image, path))),
    "scribble_hed": _one(lambda image, job, path: soft_edges.scribble(soft_edges.hed(image, path))),
    "pidinet": _one(lambda image, job, path: soft_edges.soft(soft_edges.pidinet(image, path))),
    "pidinet_safe": _one(lambda image, job, path: soft_edges.safe(soft_edges.pidinet(image, path))),
    "pidinet_scribble": _one(lambda image, job, path: soft_edges.scribble(soft_edges.pidinet(image, path))),
    "pidinet_sketch": _one(lambda image, job, path: soft_edges.sure(soft_edges.pidinet(image, path))),
    "lineart": _one(lambda image, job, path: lineart.drawing(image, path)),
    "lineart_coarse": _one(lambda image, job, path: lineart.drawing(image, path)),
    "lineart_anime": _one(lambda image, job, path: anime_lines.drawing(image, path)),
    "depth_anything": _one(lambda image, job, path: depth.anything(image, path, is_second=False)),
    "depth_anything_v2": _one(lambda image, job, path: depth.anything(image, path, is_second=True)),
    "depth_zoe": _one(lambda image, job, path: zoe.depth_map(image, path)),
    "depth_leres": _one(lambda image, job, path: leres.depth_map(image, path, near=job.a, far=job.b)),
    "softedge_teed": _one(lambda image, job, path: soft_edges.safe(teed.edges_of(image, path), round(job.a))),
    "depth": _one(lambda image, job, path: midas.depth_map(image, path)),
    "normal_map": _one(lambda image, job, path: midas.normal_map(image, path, background=job.a)),
    "normal_bae": _one(lambda image, job, path: normals.normal_map(image, path)),
    "mlsd": _one(lambda image, job, path: lines.drawing(image, path, min_score=job.a, min_length=job.b)),
    "segmentation": _one(lambda image, job, path: uniformer.segments(image, path)),
    "oneformer_ade20k": _one(lambda image, job, path: oneformer.segments(image, path, oneformer.OF_ADE20K)),
    "oneformer_coco": _one(lambda image, job, path: oneformer.segments(image, path, oneformer.OF_COCO)),
    "openpose": _pose(),
    "openpose_hand": _pose(parts.add_hands),
    "openpose_face": _pose(parts.add_faces),
    "openpose_faceonly": _pose(parts.add_faces, bodies=False),
    "openpose_full": _pose(parts.add_hands, parts.add_faces),
}


def made(name: str, image: Pixels, job: Job, paths: Sequence[Path]) -> Pixels:
    """The map [H,W] or [H,W,3] of [H,W,3]. Raises `CheckpointError` for a file that is another network's."""
    return DETECT[name](image, job, paths)
