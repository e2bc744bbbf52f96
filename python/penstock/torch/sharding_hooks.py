"""What a sharded module has in PyTorch's places: hooks, and its parameters' dictionary."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from ..errors import FailedState, refuse


class Hook:
    """A hook of a module or a parameter, which may outlive the Sharded. A copy of the module has none.

    is_needed: without the Sharded it raises FailedState."""

    def __init__(self, sharded: object, method: str = "", *bound, is_needed: bool = False) -> None:
        self._sharded = weakref.ref(sharded) if sharded is not None else None
        self._method, self._bound, self._is_needed = method, bound, is_needed

    def __call__(self, *args):
        if self._sharded is None:
            return None
        sharded = self._sharded()
        if sharded is not None:
            return getattr(sharded, self._method)(*self._bound, *args)
        if self._is_needed:
            refuse("penstock.torch.shard", "what shard() has returned is gone, and the parameters' values with it",
                   "the module", advice="keep it as long as the module is used", kind=FailedState)
        return None

    def __reduce__(self):
        return Hook, (None,)


class Parameters(dict):
    """Those of a module, which tells when one is looked up, because the forward of another module may use it, and before
    they are copied."""

    def __init__(self, given: dict, note_access: Callable[[torch.nn.Parameter], None], check_copy: Callable[[dict], None]) -> None:
        super().__init__(given)
        self._note_access, self._check_copy = note_access, check_copy

    def __reduce__(self):
        self._check_copy(self)
        return dict, (dict(self),)

    def __getitem__(self, name: str):
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._note_access(parameter)
        return parameter
