"""Penstock for PyTorch."""

from .activations import offload_activations
from .adamw import AdamW
from .park import Parked, park
from .shard import Sharded, shard

__all__ = ["AdamW", "Parked", "Sharded", "offload_activations", "park", "shard"]
