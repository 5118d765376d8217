"""Detectors of several extensions behind one name."""

import pytest
from PIL import Image

from modules.detection.detection import AllDetectors, Detection
from modules.errors import CheckpointError, UnknownNameError

IMAGE = Image.new("RGB", (4, 4))


class Named:
    """Detectors that find nothing and say their name; one file of theirs is missing."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def check(self, name: str) -> str:
        if name == f"{self.names[0]}.pt":
            raise CheckpointError(f"{name} is missing.")
        if name not in self.names:
            raise UnknownNameError.of("detector", name, self.names)
        return name

    def find(self, image: Image.Image, name: str, min_score: float = 0.3) -> list[Detection]:
        return [Detection((0, 0, 1, 1), min_score, f"{self.names[0]}: {name}")]


def test_the_first_detectors_that_know_a_name_are_asked() -> None:
    both = AllDetectors([Named("faces", "eyes"), Named("hands", "eyes")])
    assert both.names == ("faces", "eyes", "hands", "eyes")
    assert both.find(IMAGE, "hands", 0.5)[0].label == "hands: hands"
    assert both.find(IMAGE, "eyes")[0].label == "faces: eyes"
    with pytest.raises(CheckpointError, match=r"hands\.pt is missing"):
        both.check("hands.pt")
    with pytest.raises(UnknownNameError, match=r"Unknown detector 'feet'.*faces, eyes, hands, eyes"):
        both.check("feet")
    with pytest.raises(UnknownNameError, match="Known: none"):
        AllDetectors().find(IMAGE, "feet")
