"""Split feed-forward: "linear, activation, linear" computed in slices, so that the wide middle is never there whole.

The idea is tensor parallelism in sequence on one device (diffusers pull request 10623, never merged). Here nothing is
copied, any model's feed-forwards are found, and all of it can be undone.
"""

from modules.memory.feed_forward.options import SplitOptions
from modules.memory.feed_forward.pattern import FeedForward, find_feed_forward
from modules.memory.feed_forward.split import SplitHandle, find_feed_forwards, split_feed_forward

__all__ = [
    "FeedForward",
    "SplitHandle",
    "SplitOptions",
    "find_feed_forward",
    "find_feed_forwards",
    "split_feed_forward",
]
