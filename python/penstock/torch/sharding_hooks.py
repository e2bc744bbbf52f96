"""What a sharded module has in PyTorch's places: hooks, and its parameters' dictionary."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch


class Hook:
    """A hook of a module or a parameter, which may outlive the Sharded. A copy of the module has none."""

    def __init__(self, sharded: object, method: str = "", *bound) -> None:
        self._sharded = weakref.ref(sharded) if sharded is not None else lambda: None
        self._method, self._bound = method, bound

    def __call__(self, *args):
        sharded = self._sharded()
        return getattr(sharded, self._method)(*self._bound, *args) if sharded is not None else None

    def __reduce__(self):
        return Hook, (None,)


class Parameters(dict):
    """Those of a module, which tells when one is looked up: the forward of another module may use it."""

    def __init__(self, given: dict, note_access: Callable[[torch.nn.Parameter], None]) -> None:
        super().__init__(given)
        self._note_access = note_access

    def __reduce__(self):
        return dict, (dict(self),)

    def __getitem__(self, name: str):
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._note_access(parameter)
        return parameter
