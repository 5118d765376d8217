"""The types of face restorers: their folders below models/, files, and words for --use-cpu. No torch."""

from dataclasses import dataclass

SUFFIXES = (".pth", ".pt", ".safetensors", ".ckpt")
NO_RESTORERS = ("detection_", "parsing_")  # files that other programs put into the same folders


@dataclass(frozen=True)
class RestorerType:
    """`architecture` is spandrel's name of the model, `example` a file that many people have."""

    name: str
    folder: str
    architecture: str
    example: str
    part: str

    @property
    def needs_extra_package(self) -> bool:
        """Whether the model's code is in spandrel_extra_arches, whose licences allow no commercial use."""
        return self.architecture == "CodeFormer"


CODEFORMER = RestorerType("CodeFormer", "Codeformer", "CodeFormer", "codeformer-v0.1.0.pth", "codeformer")
GFPGAN = RestorerType("GFPGAN", "GFPGAN", "GFPGAN", "GFPGANv1.4.pth", "gfpgan")
RESTOREFORMER = RestorerType("RestoreFormer", "RestoreFormer", "RestoreFormer", "RestoreFormer.pth", "gfpgan")
RESTORERS = (CODEFORMER, GFPGAN, RESTOREFORMER)
NAMES = tuple(restorer.name for restorer in RESTORERS)
