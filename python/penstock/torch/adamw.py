"""torch.optim.AdamW with states in host memory or on NVMe."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Container, Sequence

import torch

from .. import Path, Runtime, Workers, state_bytes
from .._core import _Calls, _set_counts
from ..errors import FailedState, Unsupported
from .arguments import check_integer, check_positive, checked_paths, hyperparameters_of, refuse
from .backward_update import update_as_gradients_come
from .device_update import DeviceUpdate, Registered, is_available
from .gradient_norm import clip_factor, gradient_norm
from .host_update import HostUpdate, StagedUpdate
from .moves import parked
from .offloaded_states import OffloadedStates, Update, count_changes, format_of, is_on_host, local_of, new_count
from .placement import place
from .saved_states import Saved, fill_state_dict, restore, wrap_state_dict


class AdamW(torch.optim.Optimizer):
    """AdamW whose states are in host memory, or on disk with a budget of host memory.

    It takes the place of torch.optim.AdamW: parameter groups, closures, schedulers, gradient scalers and state
    dictionaries work alike, the latter in both directions. Updates run on the CPU, to which parameters on another device
    are copied tile by tile; or on the parameter's GPU, see `update`.

    params, lr, betas, eps, weight_decay, maximize: as for torch.optim.AdamW. lr may be a tensor of one element.
    path: a directory on a drive, a penstock.Path, or a sequence of those, one a drive. None: states are in memory.
    budget: bytes of host memory for states. None: what all of them take; with a path, what small parameters take (states
        of 1 MiB or less, which stay in memory) and 256 MiB beside. As many states as fit stay in memory; those on disk pass through 32 MiB a drive, four tiles or more,
        and at least two. Parameters that are added later have memory of their own, as for None.
    state_format: how states are stored, see docs/optimizer.md: "auto" is "moments" for float32, "split" for bfloat16 and
        "fp32" for float16. A dictionary gives formats by dtype.
    max_grad_norm: each step clips the norm of all gradients to it, as torch.nn.utils.clip_grad_norm_ does before one,
        without writing them; `grad_norm` is the norm before. One that is not finite clips nothing.
    update: "cpu", or "cuda": parameters on a GPU are updated there. Their states stay in host memory or on drives, and pass
        through the GPU's memory, three tiles at a time; bits are those of the CPU.
    threads: of the update. None: torch.get_num_threads().
    tile_elements: large parameters are moved and updated in tiles of so many elements, 16384 or more.
    update_in_backward: each parameter is updated as soon as its gradient is whole, which frees the gradient; step() then
        ends the step. Not for gradients that are clipped, scaled, or accumulated over several backward passes.

    States are made at the first step; Optimizer.state has only "step", and state_dict() the moments. Raises InvalidArgument, naming the parameter, for what cannot be updated: other
    types than float32, bfloat16 and float16, memory that is not contiguous, sparse gradients, a parameter whose shape or
    type has changed. A weight that was changed in place or replaced since the last step is taken as it is; changes
    through p.data[…] or p.data.copy_() are not seen. A parameter that is listed twice is updated once. When step() raises
    an Error, for example NoSpace, calling it again with the same gradients completes the step; a RuntimeWarning of values
    that are not finite comes when the step is complete. One thread at a time calls it.
    Raises FailedState after close(), and in a forked process.
    """

    def __init__(self, params, lr: float | torch.Tensor = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
                 eps: float = 1e-8, weight_decay: float = 1e-2, amsgrad: bool = False, *, maximize: bool = False,
                 foreach: bool | None = None, capturable: bool = False, differentiable: bool = False,
                 fused: bool | None = None,
                 path: str | os.PathLike | Path | Sequence[str | os.PathLike | Path] | None = None,
                 budget: int | None = None, state_format: str | dict[torch.dtype, str] = "auto",
                 update: str = "cpu", max_grad_norm: float | None = None, threads: int | None = None, tile_elements: int = 1 << 20,
                 update_in_backward: bool = False) -> None:
        if update not in ("cpu", "cuda"):
            refuse("there is no such processor", "update", wanted='"cpu" or "cuda"', got=repr(update))
        if update == "cuda" and not is_available():
            refuse("PyTorch has no CUDA device", "update", wanted='"cpu"', got='"cuda"', kind=Unsupported)
        for name, given in (("amsgrad", amsgrad), ("capturable", capturable), ("differentiable", differentiable)):
            if given:
                refuse("it is not supported", name, wanted="False", got=repr(given), kind=Unsupported)
        check_integer("budget", budget, 1, 1 << 60)
        check_integer("tile_elements", tile_elements, 1 << 14, 1 << 40)
        check_integer("threads", threads, 1, 1024)
        check_positive("max_grad_norm", max_grad_norm)
        if not isinstance(update_in_backward, bool):
            refuse("it is neither", "update_in_backward", wanted="True or False", got=repr(update_in_backward))
        if max_grad_norm is not None and update_in_backward:
            refuse("the norm is not known before the backward ends", "max_grad_norm", wanted="None, with update_in_backward",
                   got=repr(max_grad_norm), advice="leave one of them out", kind=Unsupported)
        self._paths = checked_paths(path)
        self._budget = budget
        self._state_format = state_format
        self._tile_elements = tile_elements // 16384 * 16384  # whole blocks of every format
        self._workers = Workers(threads or torch.get_num_threads())
        self._runtimes: list[Runtime] = []
        self._states: dict[torch.Tensor, OffloadedStates] = {}
        self._elements = 0  # of all parameters with states
        self._numbers: dict[OffloadedStates, int] = {}  # of the step that each makes, until all have made it
        self._counts: list[tuple[int, int]] = []  # addresses of numbers of steps, and what they are to be
        self._non_finite: list[tuple[Update, int]] = []  # to be warned of
        self._updated: set[torch.Tensor] = set()  # in backward, since the last step()
        self._calls = _Calls(many_threads=False, nested=False)
        self._lock = threading.Lock()
        self._is_closed = self._is_loading = False
        self._left_masters: list[str] = []  # of the last state dictionary
        self._process = os.getpid()
        self._updates_on_device = update == "cuda"
        self._host_update = HostUpdate(self._workers)
        self._device_updates: dict[torch.device, DeviceUpdate | StagedUpdate] = {}
        self._registered: list[weakref.finalize] = []  # memory of the runtimes with CUDA
        self._updates_in_backward = update_in_backward
        self._hooked: set[torch.Tensor] = set()  # those that a backward updates
        self._max_grad_norm = max_grad_norm
        self.grad_norm: float | None = None  # of all gradients, before they were clipped
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
                                  "maximize": maximize})
        if self._updates_on_device:
            for device in {p.device for group in self.param_groups for p in group["params"] if not is_on_host(p)}:
                self._update_on(device)

    def add_param_group(self, param_group: dict) -> None:
        """As torch.optim.Optimizer's. Raises InvalidArgument, or FailedState after close(), before anything changes."""
        self._check_open()
        if not isinstance(param_group, dict) or "params" not in param_group:
            refuse("it is no group", "param_group", wanted="a dictionary with params", got=repr(param_group)[:80])
        given = param_group["params"]
        if not isinstance(given, (torch.Tensor, set)):
            param_group["params"] = given = list(given)
        group = {**self.defaults, **param_group}
        hyperparameters_of(group)
        for one in [given] if isinstance(given, torch.Tensor) else given:
            parameter = one[1] if isinstance(one, tuple) else one
            if isinstance(parameter, torch.Tensor) and parameter.requires_grad and not torch.nn.parameter.is_lazy(parameter):
                format_of(parameter, self._state_format, _text_of(parameter, one[0] if isinstance(one, tuple) else ""))
        super().add_param_group(param_group)
        if self._updates_in_backward:
            update_as_gradients_come(self, first_group=len(self.param_groups) - 1)

    @torch.no_grad()
    def step(self, closure=None):
        """Updates each parameter that has a gradient. Returns what `closure` returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._lock.locked():  # a signal handler would wait for the backward that it interrupts
            refuse("another thread makes a step, or a backward does", "the optimizer",
                   advice="call step() after them", kind=FailedState)
        with self._calls("penstock.torch.AdamW", "step()"), self._lock:
            try:
                self._check_whole()
                self._update_all()
                self._numbers.clear()
                self._updated.clear()
                if self._updates_in_backward:
                    for parameter in update_as_gradients_come(self):  # unfrozen since
                        parameter.grad = None
                for runtime in self._runtimes:
                    runtime.end_round()
            finally:
                self._end_updates()
        self._warn()
        return loss

    def state_dict(self) -> dict:
        """As torch.optim.AdamW's, which can load it: "step", "exp_avg" and "exp_avg_sq" of each parameter, in float32,
        and of 16-bit parameters "master". Of states on disk the values are in a file without a name, in the first
        directory, which lives as long as the tensors: memory for one tile is enough, and the drive needs room for them.
        Raises NoSpace, and FailedState while a step is half done."""
        self._check_no_step()
        self._check_whole()
        self._finish_interrupted()
        if any(states.completed == number for states, number in self._numbers.items()) \
                or any(states.are_torn for states in self._states.values()):
            refuse("a step has failed half-way", "the optimizer",
                   advice="call step() again with the same gradients, or load_state_dict()", kind=FailedState)
        hook = self.register_state_dict_post_hook(fill_state_dict, prepend=True)
        try:
            return super().state_dict()
        finally:
            hook.remove()

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes what state_dict() or torch.optim.AdamW's has returned. Masters in float32 are written to the parameters of
        16 bits, too; those that it does not have, or has of 16 bits as torch.optim.AdamW makes of them, are the parameters; a
        RuntimeWarning says which it has and does not take.
        The model's weights may be loaded before or after. Raises InvalidArgument, before anything changes, for states of
        other shapes or sharded otherwise, for a parameter that has no shape yet, and for amsgrad; BudgetTooSmall and
        NoSpace, before too; errors of the disk, after which states are to be loaded again."""
        self._check_open()
        self._check_no_step()
        if not isinstance(state_dict, dict):
            refuse("it is no dictionary", "the state dictionary", wanted="what state_dict() returns",
                   got=type(state_dict).__name__)
        self._finish_interrupted()
        hook = self.register_load_state_dict_pre_hook(wrap_state_dict)
        try:
            super().load_state_dict(state_dict)
        finally:
            hook.remove()
        if self._left_masters:
            warnings.warn(f"masters of {len(self._left_masters)} parameters are not taken, the parameters keep their values; "
                          f"{self._left_masters[0]}", RuntimeWarning, stacklevel=2)

    def __setstate__(self, state: dict) -> None:
        saved = {p: values for p, values in state["state"].items() if isinstance(values, Saved)}
        for group in state["param_groups"]:
            hyperparameters_of(group)
        for parameter, values in saved.items():
            if torch.nn.parameter.is_lazy(parameter):
                refuse("it has no shape yet", self._text_of(parameter), wanted="that of its states",
                       advice="call the module once before load_state_dict()")
            format_of(parameter, self._state_format, self._text_of(parameter))
            values.check(parameter, self._text_of(parameter))
        for parameter, states in list(self._states.items()):
            if not states.are_of(local_of(parameter)):
                del self._states[parameter]  # made again for what the parameter is now
        if saved:
            self._make_states(saved)
        self._is_loading = True  # until all is loaded: an interrupt leaves a mixture
        super().__setstate__({**state, "state": type(state["state"])(dict)})
        self._numbers.clear()
        self._updated.clear()
        for parameter, states in self._states.items():
            if parameter not in saved:
                states.reset()
        for parameter, values in saved.items():
            restore(values, parameter, self._states[parameter], self._workers)
            self.state[parameter] = {**values.others, "step": new_count(values.step)}
        self._is_loading = False
        left = [(self._states[p], values.why_master_is_left(self._states[p])) for p, values in saved.items()]
        self._left_masters = [f"{states.name}: {why}" for states, why in left if why is not None]

    def __reduce_ex__(self, protocol):
        raise TypeError("penstock.torch.AdamW cannot be copied or pickled: its states are in a runtime; "
                        "save state_dict() instead")

    @property
    def notes(self) -> list[str]:
        """Options that are not in effect, with reasons."""
        self._check_open()
        return [note for runtime in self._runtimes for note in runtime.notes]

    def report(self) -> dict[str, float]:
        """Sums of Runtime.report(): bytes read from disk and written to it, seconds of waits, and so on."""
        self._check_open()
        total: dict[str, float] = {}
        for runtime in self._runtimes:
            for name, value in runtime.report().items():
                total[name] = total.get(name, 0) + value
        return total

    def close(self) -> None:
        """Frees the memory and the space on disk of the states. step() raises FailedState then, and a backward updates
        nothing."""
        self._is_closed = True
        self._device_updates.clear()
        for unregister in self._registered:
            unregister()
        for runtime in self._runtimes:
            runtime.close()

    def _check_open(self) -> None:
        if self._is_closed:
            refuse("it was closed", "the optimizer", advice="make another one", kind=FailedState)
        if os.getpid() != self._process:
            refuse("this process was forked from the one that made it, and has none of its threads", "the optimizer",
                   got=f"process {os.getpid()}", advice="make it after the fork", kind=FailedState)

    def _check_whole(self) -> None:
        self._check_open()
        if self._is_loading:
            refuse("load_state_dict() has failed half-way", "the optimizer", advice="call it again", kind=FailedState)

    def _check_no_step(self) -> None:
        if self._lock.locked():  # by another thread, or by this one, whose signal handler runs
            refuse("a step is being made", "the optimizer", advice="save between steps", kind=FailedState)

    def _finish_interrupted(self) -> None:
        for update in self._device_updates.values():
            if isinstance(update, DeviceUpdate):
                update.finish(self._non_finite)

    def _clip(self) -> float:
        """What each gradient is multiplied by in this step."""
        if self._max_grad_norm is None:
            return 1.0
        gradients = (p.grad for group in self.param_groups for p in group["params"] if p.grad is not None)
        self.grad_norm = gradient_norm((g for g in gradients if g.layout == torch.strided), self._workers)
        return clip_factor(self.grad_norm, self._max_grad_norm)

    def _update_all(self) -> None:
        """Those that have a gradient, but for those that a step has updated before it failed. All are checked first."""
        factor = self._clip()
        updates = []
        number_of = self._numbers.setdefault
        if parked:
            self._check_not_parked()
        for group in self.param_groups:
            *hyperparameters, sign = hyperparameters_of(group)
            hyperparameters.append(sign * factor)
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                states = self._states_of(parameter)
                number = number_of(states, states.completed + 1)
                if states.completed < number:
                    updates.append(Update(states, number, parameter, gradient, hyperparameters))
        self._run(updates)

    def _states_of(self, parameter: torch.Tensor) -> OffloadedStates:
        states = self._states.get(parameter)
        if states is None:
            self._make_states()
            return self._states[parameter]
        if states.completed > 0 and parameter not in self.state:  # the caller has cleared it
            states.reset()
        return states

    def _check_not_parked(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) in parked:
                    refuse("it is parked", self._text_of(parameter), advice="unpark() the module before the step",
                           kind=FailedState)

    def _run(self, updates: Sequence[Update]) -> None:
        """Makes the updates, those of each device in one call. Raises the first error; what is complete then is noted."""
        by_device: dict[torch.device | None, list[Update]] = {}
        for update in updates:
            device = None if is_on_host(update.parameter) else update.parameter.device
            by_device.setdefault(device, []).append(update)
        try:
            for device, those in by_device.items():
                self._update_on(device).run(those, self._non_finite)
        except BaseException:
            # Others were not written: counted as changed, they would lose the rest of their masters.
            _count_changes_of([update for update in updates if update.has_written])
            self._note([update for update in updates if update.is_complete])
            raise
        _count_changes_of(updates)
        self._note(updates)

    def _warn(self) -> None:
        """Of values that are not finite, when the step is complete: a warning may be an error."""
        found, self._non_finite = _first_of_each(self._non_finite), []
        while found:
            _warn_of(*found.pop(0))

    def _update_on(self, device: torch.device | None) -> HostUpdate | DeviceUpdate | StagedUpdate:
        """What updates parameters of the device; None: of the host."""
        if device is None:
            return self._host_update
        if device not in self._device_updates:
            self._device_updates[device] = DeviceUpdate(device, self._workers) if self._updates_on_device else \
                StagedUpdate(device, self._tile_elements, self._workers)
        return self._device_updates[device]

    def _note(self, complete: Sequence[Update]) -> None:
        """Counts steps that all tiles of a parameter have made."""
        for update in complete:
            update.note()
            states = update.states
            states.count_in(self.state[states.parameter])
            self._counts.append((states.count_address, update.number))

    def _end_updates(self) -> None:
        """Of this call, whether it has failed or not."""
        _set_counts(self._counts)
        self._counts.clear()

    def _make_states(self, saved: Container[torch.Tensor] = ()) -> None:
        """States of all parameters that have none, in a runtime of their own. Frozen ones have states where a dictionary
        has them: in `saved`."""
        missing = [p for group in self.param_groups for p in group["params"]
                   if (p.requires_grad or p.grad is not None or p in saved) and p not in self._states
                   and not torch.nn.parameter.is_lazy(p)]
        if not missing:
            return
        tiles = {p: [min(self._tile_elements, local_of(p).numel() - first)
                     for first in range(0, local_of(p).numel(), self._tile_elements)] for p in missing}
        formats = {p: format_of(p, self._state_format, self._text_of(p)) for p in missing}
        # The budget is that of the states of the first step.
        placed = place([[state_bytes(formats[p], elements) for elements in tiles[p]] for p in missing],
                       None if self._runtimes else self._budget, self._paths)
        runtime = Runtime(placed.budget, placed.paths, lookahead=placed.lookahead)
        made = {}
        for p, in_memory in zip(missing, placed.in_memory):
            made[p] = OffloadedStates(runtime, self._text_of(p), p, formats[p], tiles[p], self._elements, in_memory,
                                      self._paths)
            self._elements += local_of(p).numel()
        devices = [local_of(p).device for p in missing if not is_on_host(local_of(p))]
        if self._updates_on_device and devices:
            self._registered.append(weakref.finalize(self, Registered(runtime, devices[0]).end))
            self._registered[-1].atexit = False  # CUDA ends by itself
        self._runtimes.append(runtime)
        self._states.update(made)

    def _text_of(self, parameter: torch.Tensor) -> str:
        for number, group in enumerate(self.param_groups):
            for index, one in enumerate(group["params"]):
                if one is parameter:
                    names = group.get("param_names")
                    return _text_of(parameter, names[index] if names else f"number {index} of group {number}")
        return _text_of(parameter, "")


def _count_changes_of(updates: Sequence[Update]) -> None:
    written = [update.parameter for update in updates]
    written += [update.states.parameter for update in updates if update.states.is_distributed]  # counts by itself
    count_changes(written)


def _first_of_each(found: list[tuple[Update, int]]) -> list[tuple[Update, int]]:
    """The least element of each update."""
    first: dict[int, tuple[Update, int]] = {}
    for update, element in sorted(found, key=lambda one: one[1]):
        first.setdefault(id(update), (update, element))
    return list(first.values())


def _warn_of(update: Update, element: int) -> None:
    warnings.warn(f"{update.states.name} has values that are not finite after step {update.number}: near element {element}",
                  RuntimeWarning, stacklevel=4)


def _text_of(parameter: torch.Tensor, name: str) -> str:
    shape = "no shape yet" if torch.nn.parameter.is_lazy(parameter) else f"shape {tuple(parameter.shape)}"
    return f"parameter {name} of {shape}" if name else f"a parameter of {shape}"
