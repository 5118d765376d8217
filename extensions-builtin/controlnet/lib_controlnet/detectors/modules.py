"""Modules that need weights, by name: from an image and a file to a control map."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from lib_controlnet.detectors import (
    anime_lines,
    body,
    depth,
    lineart,
    lines,
    midas,
    normals,
    parts,
    soft_edges,
    uniformer,
)
from lib_controlnet.pixels import Pixels
from lib_controlnet.poses import drawn
from lib_controlnet.preprocessors import Job

Detect = Callable[[Pixels, Job, Path], Pixels]


HANDS, FACES = "hand_pose_model.pth", "facenet.pth"


def _pose(hands: bool = False, faces: bool = False, bodies: bool = True) -> Detect:
    """What finds people, with these parts of them; without `bodies` they are found, and not drawn."""

    def detect(image: Pixels, job: Job, path: Path) -> Pixels:
        files = [job.find((name,)) if wanted else None for name, wanted in ((HANDS, hands), (FACES, faces))]
        found = body.bodies(image, path)
        for file, add in zip(files, (parts.add_hands, parts.add_faces), strict=True):
            if file is not None:
                add(image, found, file)
        job.poses.append(found)
        hidden = {} if bodies else {"pose_keypoints_2d": []}
        return drawn({**found, "people": [{**person, **hidden} for person in found["people"]]}, "pose")

    return detect


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
    "depth": lambda image, job, path: midas.depth_map(image, path),
    "normal_map": lambda image, job, path: midas.normal_map(image, path, background=job.a),
    "normal_bae": lambda image, job, path: normals.normal_map(image, path),
    "mlsd": lambda image, job, path: lines.drawing(image, path, min_score=job.a, min_length=job.b),
    "segmentation": lambda image, job, path: uniformer.segments(image, path),
    "openpose": _pose(),
    "openpose_hand": _pose(hands=True),
    "openpose_face": _pose(faces=True),
    "openpose_faceonly": _pose(faces=True, bodies=False),
    "openpose_full": _pose(hands=True, faces=True),
}


def made(name: str, image: Pixels, job: Job, path: Path) -> Pixels:
    """The map [H,W] or [H,W,3] of [H,W,3]. Raises `CheckpointError` for a file that is another network's."""
    return DETECT[name](image, job, path)
