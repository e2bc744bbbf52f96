"""The storage tier under a large-model trainer."""

from ._core import Files, Lease, Path, Runtime, Tensor, Tile, Workers, __version__, state_bytes
from .errors import (AlreadyExists, BudgetTooSmall, Corrupted, DeadlineExceeded, Error, FailedState, Interrupted,
                     InUse, InvalidArgument, InvalidConfig, IoFailed, NoSpace, NonFinite, NotFound, PeerFailed,
                     PermissionDenied, Truncated, Unsupported, WouldBlock)

__all__ = [name for name in dir() if not name.startswith("_") and name != "errors"]
