"""Updates of AdamW on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import Workers
from .._core import _step_tiles
from .offloaded_states import Update, dtype_names, flat_of


class HostUpdate:
    """Updates parameters in host memory. One thread at a time uses it."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def run(self, updates: Sequence[Update]) -> list[tuple[Update, int]]:
        """Makes a step of each parameter. Returns those that have values that are not finite now, with an element near
        the first one. A tile that has completed the step already is left out: after an error the call may be repeated.
        TileState.completed tells which have."""
        steps = []
        for update in updates:
            states, parameter, gradient = update.states, update.parameter, update.gradient
            if states.has_master:
                states.take_over(parameter, self._workers)
            number = states.completed + 1
            address, gradient_address = parameter.data_ptr(), gradient.data_ptr()
            dtype = dtype_names[gradient.dtype]
            if len(states.tiles) == 1:
                steps.append((states.tiles[0], address, gradient_address, dtype, number, update.hyperparameters))
                continue
            size, gradient_size = parameter.element_size(), gradient.element_size()
            for tile, part in states.parts:
                steps.append((tile, address + part.start * size, gradient_address + part.start * gradient_size, dtype,
                              number, update.hyperparameters))
        found = _step_tiles(steps, self._workers)
        if not found:
            return []
        parts = [(update, part.start) for update in updates for _, part in update.states.parts]
        return first_of_each((parts[index][0], parts[index][1] + element) for index, element in found)


class StagedUpdate:
    """Updates parameters of a device on the CPU: each tile is copied to host memory, and back. One thread at a time uses
    it."""

    def __init__(self, device: torch.device, tile_elements: int, workers: Workers) -> None:
        self._workers = workers
        self._parameter = torch.empty(tile_elements, dtype=torch.float32, pin_memory=device.type == "cuda")
        self._gradient = torch.empty_like(self._parameter, pin_memory=device.type == "cuda")

    def run(self, updates: Sequence[Update]) -> list[tuple[Update, int]]:
        """As HostUpdate.run()."""
        return first_of_each((update, element) for update in updates for element in self._step(update))

    def _step(self, update: Update):
        states = update.states
        number = states.completed + 1
        if states.has_master:
            states.take_over(update.parameter, self._workers)
        flat, flat_gradient = flat_of(update.parameter), flat_of(update.gradient)
        for tile, part in states.parts:
            on_host = self._parameter.view(flat.dtype)[:tile.elements]
            on_host.copy_(flat[part])  # most formats have a part of the master only
            gradient_on_host = self._gradient.view(flat_gradient.dtype)[:tile.elements]
            gradient_on_host.copy_(flat_gradient[part])
            step = (tile, on_host.data_ptr(), gradient_on_host.data_ptr(), dtype_names[flat_gradient.dtype], number,
                    update.hyperparameters)
            found = _step_tiles([step], self._workers)
            flat[part].copy_(on_host)
            for _, element in found:
                yield part.start + element


def first_of_each(found) -> list[tuple[Update, int]]:
    """The least element of each update."""
    first: dict[int, tuple[Update, int]] = {}
    for update, element in found:
        known = first.setdefault(id(update), (update, element))
        if element < known[1]:
            first[id(update)] = (update, element)
    return list(first.values())
