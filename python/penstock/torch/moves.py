"""What park() does to tensors of which others keep notes: they are parked, or have other memory with the same values."""

from __future__ import annotations

import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

Place = tuple  # address and version, by which a change of a tensor is seen

parked: weakref.WeakValueDictionary[int, object] = weakref.WeakValueDictionary()
"""By the id of a tensor: what keeps it while it is parked."""

_moves: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of a tensor: the place that counts for it, and where it is


def place_of(tensor: torch.Tensor) -> Place:
    """A tensor that was only moved has the place that it had before."""
    place = tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
    if _moves and tensor in _moves:
        counts, now = _moves[tensor]
        return counts if now == place else place
    return place


def note_move(tensor: torch.Tensor, before: Place) -> None:
    """That the tensor has the values that it had at place_of() `before`."""
    _moves.pop(tensor, None)
    _moves[tensor] = before, place_of(tensor)
