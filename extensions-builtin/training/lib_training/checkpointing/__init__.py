"""Gradient checkpointing by strategy: blocks whose activations are not kept, but computed again for their gradients.

Chen et al. 2016 (arXiv:1604.06174). For any model with repeated blocks, without a line in the model's own code; the
aim is that of diffusers' pull request 10611, which left the choice of blocks to the user's function.
"""

from lib_training.checkpointing.blocks import Block, find_blocks
from lib_training.checkpointing.enabling import CheckpointHandle, enable_gradient_checkpointing
from lib_training.checkpointing.strategies import ByBudget, Custom, Every, Listed, Strategy, strategy_of

__all__ = [
    "Block",
    "ByBudget",
    "CheckpointHandle",
    "Custom",
    "Every",
    "Listed",
    "Strategy",
    "enable_gradient_checkpointing",
    "find_blocks",
    "strategy_of",
]
