"""Activations of a forward pass in a store until the backward needs them."""

from __future__ import annotations

import collections
import itertools
import weakref

import torch

from .. import Store
from ..errors import refuse

_numbers = itertools.count()  # of all, in the order of the forward pass
_tensors_ahead = 4


class _Activation:
    """One in the store, until autograd drops it."""

    def __init__(self, number: int, tensor: torch.Tensor) -> None:
        self.name = f"activation {number}"
        self.number = number
        self.device = tensor.device


class offload_activations(torch.autograd.graph.saved_tensors_hooks):
    """Within the block, what autograd saves for the backward is in `store`: in its host memory as far as the budget goes,
    and on its drives.

        with penstock.torch.offload_activations(store):
            loss = model(batch)
        loss.backward()

    Tensors of less than min_bytes, and parameters, stay where they are. The backward loads the others, the next ones
    ahead. Those that autograd has dropped leave the store with the next call, or with clear(). It raises what Store.put()
    and Store.get() raise. One object may be used for every step."""

    def __init__(self, store: Store, min_bytes: int = 1 << 20) -> None:
        if not isinstance(store, Store):
            refuse("penstock.torch.offload_activations", "it is no store", "store", wanted="a penstock.Store", got=repr(store))
        if not isinstance(min_bytes, int) or isinstance(min_bytes, bool) or min_bytes < 0:
            refuse("penstock.torch.offload_activations", "it is no number of bytes", "min_bytes", wanted="an integer, 0 or more",
                   got=repr(min_bytes))
        self._store = store
        self._min_bytes = min_bytes
        self._alive: weakref.WeakValueDictionary[int, _Activation] = weakref.WeakValueDictionary()
        self._dropped: collections.deque[str] = collections.deque()  # a finalizer must not wait for the store
        super().__init__(self._pack, self._unpack)

    def _pack(self, tensor: torch.Tensor):
        if isinstance(tensor, torch.nn.Parameter):
            return tensor
        if isinstance(tensor._base, torch.nn.Parameter) or tensor.layout != torch.strided or hasattr(tensor, "to_local") \
                or tensor.numel() * tensor.element_size() < self._min_bytes:
            return tensor.detach()  # itself, it would keep the graph that has it as an output, and the graph would keep it
        self.clear()
        activation = _Activation(next(_numbers), tensor)
        self._store.put(activation.name, tensor)
        weakref.finalize(activation, self._dropped.append, activation.name)
        self._alive[activation.number] = activation
        return activation

    def _unpack(self, packed):
        if not isinstance(packed, _Activation):
            return packed
        self.clear()
        self._prefetch_before(packed.number)
        return self._store.get(packed.name).to(packed.device)

    def clear(self) -> None:
        """Removes from the store what autograd has dropped."""
        while True:
            try:
                name = self._dropped.popleft()
            except IndexError:  # another thread has taken the last one
                return
            self._store.remove(name)

    def _prefetch_before(self, number: int) -> None:
        """The backward goes the way of the forward back."""
        nearest = (self._alive.get(before) for before in range(number - 1, number - 1 - 4 * _tensors_ahead, -1))
        for activation in itertools.islice(filter(None, nearest), _tensors_ahead):
            self._store.prefetch(activation.name)
