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

    def run(self, updates: Sequence[Update], found: list[tuple[Update, int]]) -> None:
        """Makes the updates. Appends to `found` each after which a value is not finite, with an element near it, once for
        a tile. A tile that has completed its step already is left out: after an error the call may be repeated.
        TileState.completed tells which have."""
        steps = []
        for update in updates:
            states = update.states
            gradient = update.gradient if update.is_ready else update.ready_gradient()
            is_changed = states.is_changed
            is_alone = is_changed or gradient is not update.gradient
            if is_alone:  # one copy of a gradient at a time; and masters that are made again are in memory for the update
                self._step(steps, found)
            if is_changed:
                states.take_over(update.parameter, self._workers)
            steps.append((states.tiles, update.parameter, gradient, dtype_names[gradient.dtype], update.number,
                          update.hyperparameters, update, 0))
            if is_alone:
                self._step(steps, found)
            del gradient
        self._step(steps, found)
        for update in updates:
            if update.states.is_distributed:  # _step_tiles() has seen the local tensor, which keeps its memory
                update.check_memory()

    def _step(self, steps: list[tuple], found: list[tuple[Update, int]]) -> None:
        _step_tiles(steps, self._workers, found)
        steps.clear()


class StagedUpdate:
    """Updates parameters of a device on the CPU: each tile is copied to host memory, and back. One thread at a time uses
    it."""

    def __init__(self, device: torch.device, tile_elements: int, workers: Workers) -> None:
        self._workers = workers
        self._parameter = torch.empty(tile_elements, dtype=torch.float32, device="cpu", pin_memory=device.type == "cuda")
        self._gradient = torch.empty_like(self._parameter, pin_memory=device.type == "cuda")

    def run(self, updates: Sequence[Update], found: list[tuple[Update, int]]) -> None:
        """As HostUpdate.run()."""
        for update in updates:
            if update.states.is_changed:
                update.states.take_over(update.parameter, self._workers)
            flat, gradient = flat_of(update.parameter), flat_of(update.ready_gradient())
            for tile, part in update.states.parts:
                on_host = self._parameter.view(flat.dtype)[:tile.elements]
                on_host.copy_(flat[part])  # most formats have a part of the master only
                gradient_on_host = self._gradient.view(gradient.dtype)[:tile.elements]
                gradient_on_host.copy_(gradient[part])
                step = ([tile], on_host, gradient_on_host, dtype_names[gradient.dtype], update.number,
                        update.hyperparameters, update, part.start)
                try:
                    _step_tiles([step], self._workers, found)
                finally:  # a signal may have come after the update
                    if tile.completed == update.number:  # else the parameter would count as changed
                        flat[part].copy_(on_host)
            update.check_memory()
