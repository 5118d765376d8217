"""Failures of a training."""

from modules.errors import FeatherweightError


class TrainingError(FeatherweightError):
    """Training cannot start or go on: images without captions, numbers that are no longer finite."""

    status = 422
