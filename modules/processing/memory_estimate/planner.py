"""Plans of jobs with what would make them fit, for edges; the numbers may come from another process."""

from dataclasses import dataclass
from typing import Protocol

from modules.processing.memory_estimate.estimate import MemoryEstimate, MemoryEstimator
from modules.processing.memory_estimate.proposals import Proposal, propose
from modules.processing.request.request import GenerationRequest

Planned = tuple[MemoryEstimate, tuple[Proposal, ...]]


class Planner(Protocol):
    """Says what a job will need."""

    def planned(self, request: GenerationRequest, available_bytes: int | None = None) -> Planned:
        """The estimate, and changes with which the job would fit; as if there were `available_bytes`, or with what is
        free now. Raises `FeatherweightError` for a checkpoint that is not there or cannot be used."""


@dataclass(frozen=True)
class LocalPlanner:
    """Plans in this process."""

    estimator: MemoryEstimator

    def planned(self, request: GenerationRequest, available_bytes: int | None = None) -> Planned:
        found = self.estimator.plan(request, available_bytes)
        return found, propose(request, found, lambda changed: self.estimator.plan(changed, available_bytes))
