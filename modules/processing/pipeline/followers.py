"""Whether the checkpoints that take over in the middle of a job can go on from the latents of the one before."""

from modules.errors import InvalidValueError
from modules.models.loading.load_model import HeaderFacts
from modules.processing.engine.lease import ModelInUse
from modules.processing.request.request import GenerationRequest
from modules.processing.request.stages import refines

NORMALISED, FLOW = "edm", "flow"
"""Predictions of models whose latents are normalised by channel, and of those that mix image and noise."""


def check_followers(request: GenerationRequest, in_use: ModelInUse) -> None:
    """Raise `InvalidValueError` for a refiner or a hires checkpoint that cannot, before anything is sampled."""
    model = in_use.model
    first = second = HeaderFacts(model.info, model.family, model.architecture)
    if request.hires is not None and request.hires.checkpoint:
        second = in_use.look(request.hires.checkpoint)
        _check_latents("hires checkpoint", first, second)
    for is_hires, before in ((False, first), (True, second)):
        if refines(request, is_hires) and (request.hires is not None or not is_hires):
            refiner = in_use.look(request.refiner_checkpoint)
            _check_latents("refiner", before, refiner)
            if _is_flow(before) != _is_flow(refiner):
                raise _refusal("refiner", before, refiner, "one of them predicts a flow, and the other noise")


def _check_latents(role: str, before: HeaderFacts, after: HeaderFacts) -> None:
    if _latents(before) != _latents(after):
        raise _refusal(role, before, after, "its latents are others")


def _refusal(role: str, before: HeaderFacts, after: HeaderFacts, reason: str) -> InvalidValueError:
    return InvalidValueError(
        f"The {role} {after.named} cannot go on from what {before.named} has made: {reason}. Choose one of the same "
        "kind, or make its image from the finished one in img2img."
    )


def _latents(model: HeaderFacts) -> tuple[object, ...]:
    """Return what distinguishes one layout of latents from another."""
    autoencoder = model.architecture.autoencoder
    is_normalised = model.architecture.prediction_type == NORMALISED
    return model.family.latents.tiny_vae, autoencoder.channels, autoencoder.downscale, is_normalised


def _is_flow(model: HeaderFacts) -> bool:
    return model.architecture.prediction_type == FLOW
