"""Penstock for PyTorch."""

from .activations import offload_activations
from .adamw import AdamW
from .park import Parked, park, unpark
from .shard import shard
from .sharded import Sharded

__all__ = ["AdamW", "Parked", "Sharded", "offload_activations", "park", "shard", "unpark"]
