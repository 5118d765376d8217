"""Answers of the networks: outlines of SAM 2, areas of CLIPSeg, boxes of OWLv2. Needs PyTorch, which only the process
that makes images imports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from lib_segmentation.asked import Point
from lib_segmentation.pixels import (
    CLIP,
    IMAGENET,
    as_mask,
    max_found,
    normalized,
    padded,
    stretched,
    values_at,
    work_size,
)
from modules.detection.detection import Detection
from modules.prompting.tokens import ClipTokenizer

CLIPSEG_SIDE_PX = 352
MIN_SHARE = 0.0005
"""Share of an image below which an area that CLIPSeg finds is noise."""
GRID = 12
"""Points along a side, at which everything is looked for."""
BATCH = 24
MIN_STABILITY = 0.8
"""Share of a thing that is left where the border of its mask is moved."""
MAX_OVERLAP = 0.5
"""Shared part (intersection over union) above which two boxes are the same thing."""


def features(image: Image.Image, sam: Any) -> list[Tensor]:
    """Encode an RGB image by SAM 2, in three levels."""
    side = sam.facts.prompt_encoder_config.image_size
    pixels = normalized(stretched(image, side), IMAGENET).to(sam.device, sam.dtype)
    found: list[Tensor] = sam.module.get_image_embeddings(pixels)
    return found


def outlined(
    size_px: tuple[int, int], levels: Sequence[Tensor], sam: Any, points: Sequence[Point], box: Sequence[float] | None
) -> Detection:
    """Outline the thing at some points and in a box, in an image of a width and height whose features are given."""
    side = sam.facts.prompt_encoder_config.image_size
    scale = np.array([side / size_px[0], side / size_px[1]])
    given: dict[str, Any] = {}
    if points:
        places = np.array([[point.x, point.y] for point in points]) * scale
        given["input_points"] = torch.tensor(places, dtype=torch.float32, device=sam.device)[None, None]
        labels = [int(point.is_included) for point in points]
        given["input_labels"] = torch.tensor(labels, device=sam.device)[None, None]
    if box is not None:
        corners = (np.array(box).reshape(2, 2) * scale).reshape(4)
        given["input_boxes"] = torch.tensor(corners, dtype=torch.float32, device=sam.device)[None, None]
    # One point may mean a part or the whole: the best of three answers counts.
    answers = sam.module(image_embeddings=list(levels), multimask_output=len(points) == 1 and box is None, **given)
    scores = answers.iou_scores[0, 0].float()
    best = int(scores.argmax())
    mask = as_mask(values_at(answers.pred_masks[0, 0, best], work_size(size_px)) > 0, size_px)
    return _of_mask(mask, float(scores[best]))


def _of_mask(mask: Image.Image, score: float) -> Detection:
    left, top, right, bottom = map(float, mask.getbbox() or (0, 0, 0, 0))
    return Detection((left, top, right, bottom), min(max(score, 0.0), 1.0), "", mask)


def everything(size_px: tuple[int, int], levels: Sequence[Tensor], sam: Any, min_score: float) -> list[Detection]:
    """Outline all things at the points of a grid, the surest first, without doubles; `levels` as in `outlined`."""
    side = sam.facts.prompt_encoder_config.image_size
    places = (torch.arange(GRID, device=sam.device) + 0.5) * side / GRID
    points = torch.cartesian_prod(places, places).flip(1)
    kept: list[tuple[float, Tensor]] = []
    for begin in range(0, len(points), BATCH):
        some = points[begin : begin + BATCH]
        labels = torch.ones(len(some), 1, dtype=torch.long, device=sam.device)
        answers = sam.module(image_embeddings=list(levels), input_points=some[None, :, None], input_labels=labels[None])
        pairs = zip(answers.iou_scores.flatten().tolist(), answers.pred_masks.float().cpu().flatten(0, 2), strict=True)
        kept += [(score, logits) for score, logits in pairs if score >= min_score]
    found: list[tuple[float, Tensor]] = []
    for score, logits in sorted(kept, key=lambda item: -item[0]):
        there = logits > 0
        if len(found) == max_found(size_px):
            break
        sure = (logits > 1).sum() / (logits > -1).sum().clamp(min=1)
        alike = any((there & (other > 0)).sum() > MAX_OVERLAP * (there | (other > 0)).sum() for _, other in found)
        if sure >= MIN_STABILITY and there.sum() >= MIN_SHARE * there.numel() and not alike:
            found.append((score, logits))
    masks = [as_mask(values_at(logits, work_size(size_px)) > 0, size_px) for _, logits in found]
    return [_of_mask(mask, score) for mask, (score, _) in zip(masks, found, strict=True)]


def areas(network: Any, image: Image.Image, word: str, min_score: float) -> list[Detection]:
    """Find the areas that CLIPSeg sees a word in, at least so likely."""
    from scipy.ndimage import find_objects, label

    pixels = normalized(stretched(image, CLIPSEG_SIDE_PX), IMAGENET).to(network.device, network.dtype)
    answer = network.module(pixel_values=pixels, input_ids=_tokens(word, network))
    size_px = work_size(image.size)
    chances = values_at(answer.logits.reshape(CLIPSEG_SIDE_PX, -1).float().sigmoid(), size_px)
    numbered, _ = label(chances >= min_score)
    scale = image.width / size_px[0], image.height / size_px[1]
    found = []
    for number, place in enumerate(find_objects(numbered), start=1):
        part = numbered[place] == number
        if part.sum() >= MIN_SHARE * chances.size:
            rows, columns = place
            box = (columns.start * scale[0], rows.start * scale[1], columns.stop * scale[0], rows.stop * scale[1])
            found.append((float(chances[place][part].max()), number, box))
    best = sorted(found, reverse=True)[: max_found(image.size)]
    return [Detection(box, score, word, as_mask(numbered == number, image.size)) for score, number, box in best]


def boxes(network: Any, image: Image.Image, word: str, min_score: float) -> list[Detection]:
    """Find the boxes that OWLv2 sees a word in, at least so likely, without doubles."""
    side = network.facts.vision_config.image_size
    pixels = normalized(padded(image, side), CLIP).to(network.device, network.dtype)
    ids = _tokens(word, network, pad=0)
    answer = network.module(pixel_values=pixels, input_ids=ids, attention_mask=(ids != 0).long())
    scores = answer.logits[0, :, 0].float().sigmoid().cpu().numpy()
    middles = answer.pred_boxes[0].float().cpu().numpy() * max(image.size)
    x, y, width, height = middles.T
    corners = np.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], axis=1)
    corners = corners.clip(0, np.array([*image.size, *image.size]))
    kept: list[int] = []
    for number in np.argsort(-scores):
        if scores[number] < min_score or len(kept) == max_found(image.size):
            break
        if all(_overlap(corners[number], corners[other]) <= MAX_OVERLAP for other in kept):
            kept.append(int(number))
    places = [tuple(float(edge) for edge in corners[number]) for number in kept]
    return [
        Detection((left, top, right, bottom), float(scores[number]), word)
        for number, (left, top, right, bottom) in zip(kept, places, strict=True)
        if right > left and bottom > top
    ]


def _overlap(first: Any, second: Any) -> float:
    """Intersection over union of two boxes."""
    low, high = np.maximum(first[:2], second[:2]), np.minimum(first[2:], second[2:])
    shared = float(np.prod(np.maximum(high - low, 0)))
    whole = float(np.prod(first[2:] - first[:2]) + np.prod(second[2:] - second[:2])) - shared
    return shared / whole if whole > 0 else 0.0


def _tokens(word: str, network: Any, pad: int | None = None) -> Tensor:
    """[1,n] of CLIP's tokens, between its start and its end; `pad` fills up to what the network takes."""
    clip = ClipTokenizer.standard()
    length = network.facts.text_config.max_position_embeddings
    ids = [clip.start_id, *list(clip.encode(word))[: length - 2], clip.end_id]
    if pad is not None:
        ids += [pad] * (length - len(ids))
    return torch.tensor([ids], device=network.device)
