"""Placeholder for the contract; the implementation follows in this file."""

from modules.processing.status import EngineStatus


class Engine:
    """Holds the loaded model; loads, swaps and unloads it. All methods are thread safe."""

    @property
    def status(self) -> EngineStatus:
        """Where the engine stands."""
        raise NotImplementedError
