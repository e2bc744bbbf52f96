"""The storage tier under a large-model trainer."""

from . import _core, errors
from ._core import Files, HostMemory, Lease, Path, Runtime, Tensor, Tile, Workers, __version__, state_bytes
from .errors import (AlreadyExists, BudgetTooSmall, Corrupted, DeadlineExceeded, Error, FailedState, Interrupted,
                     InUse, InvalidArgument, InvalidConfig, IoFailed, NoSpace, NonFinite, NotFound, PeerFailed,
                     PermissionDenied, Truncated, Unsupported, WouldBlock)
from .store import Store

_core._set_exceptions(errors.exception_of)

__all__ = [
    "AlreadyExists", "BudgetTooSmall", "Corrupted", "DeadlineExceeded", "Error", "FailedState", "Files", "HostMemory", "InUse",
    "Interrupted", "InvalidArgument", "InvalidConfig", "IoFailed", "Lease", "NoSpace", "NonFinite", "NotFound", "Path",
    "PeerFailed", "PermissionDenied", "Runtime", "Store", "Tensor", "Tile", "Truncated", "Unsupported", "Workers", "WouldBlock",
    "__version__", "state_bytes",
]
