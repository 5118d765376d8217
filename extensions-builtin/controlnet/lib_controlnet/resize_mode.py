"""The ways in which an image comes to another size."""

from enum import Enum


class ResizeMode(Enum):
    """In the order of the numbers that some callers give."""

    JUST_RESIZE = "Just Resize"
    CROP = "Crop and Resize"
    FILL = "Resize and Fill"
