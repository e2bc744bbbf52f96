"""A torch.nn.Module that is trained by ZeRO-3."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from .._core import Config, Engine, ProcessGroup, _Calls
from ..errors import FailedState, NoSpace, Unsupported
from . import trainer_state
from .failed_backward import free_what_it_left
from .gathering import Gathering
from .monitor_events import checked_events
from .offloaded_states import dtype_names
from .shard_arguments import (check, check_integer, check_ranks, convert, directory_of, dtype_of, is_finite, layout_of,
                              refuse)
from .sharding_guards import Guards, refuse_load, refuse_state_dict
from .sharding_hooks import Hook, Parameters
from .units import Part, Unit, divide


def _by_one_thread(function: Callable) -> Callable:
    """A method that refuses to run while another thread is in one."""
    @functools.wraps(function)
    def checked(self, *args, **kwargs):
        with self._thread("penstock.torch.shard", f"{function.__name__}()"):
            return function(self, *args, **kwargs)
    return checked


class Sharded(torch.nn.Module):
    """A module whose parameters, gradients and optimizer states are sharded and kept where the configuration says; see
    shard(). One thread uses it."""

    def __init__(self, module: torch.nn.Module, config: Config, group: ProcessGroup | None, whole: Sequence[type],
                 weight_decay_of: Callable[[str, torch.nn.Parameter], float | None] | None) -> None:
        super().__init__()
        effective = json.loads(config.json)
        self.rank, self.ranks = (group.rank, group.ranks) if group is not None else (0, 1)
        self.gradient_accumulation_steps = int(effective["gradient_accumulation_steps"])
        self.micro_batch_size = int(effective["train_micro_batch_size_per_gpu"])  # of each rank
        self.dtype = dtype_of(effective)  # of parameters and floating-point buffers
        self.config = config
        self._updates_in_backward = bool(effective.get("penstock", {}).get("update_in_backward"))
        self._learning_rate: float | None = None
        self._thread = _Calls(many_threads=False, nested=True)
        self.last_step: dict = {}
        """What the last step() has found: "updated", "gradient_norm", "learning_rate", and so on."""
        self._micro_batches = 0  # of this step, whose backward has ended
        self._is_in_step = self._is_in_backward = self._is_closed = False
        self._failure: tuple[str, str] | None = None  # what has failed, and what to do
        self._has_gradient = False  # in this backward
        self._in_gathered = 0
        self._graph_task = -1  # of the backward; reentrant checkpoints have others
        self._calls: list[tuple[torch.nn.Module, list[Unit]]] = []  # modules in their forward, the innermost last
        self._units_of: dict[torch.nn.Module, list[Unit]] = {}  # that are gathered for its forward
        self._unit_of: dict[torch.nn.Parameter, Unit] = {}
        self._guards = Guards(self._unit_of)
        parts = divide(module, check(module, whole))
        self._engine = Engine(config, layout_of(parts, weight_decay_of), group)
        self._gathering = Gathering(self._engine)
        self.resumed: tuple | None = None
        """The step and the trainer's object of the commit from which a durable run goes on; None for a new run."""
        resumed = self._engine.resume() if effective.get("penstock", {}).get("durable_directory") else None
        if resumed is not None:
            trainer_state.check(module, resumed["client"])
        else:
            check_ranks(module, group)
            values = [[parameter.detach().contiguous() for _, parameter in part.parameters] for part in parts]
            self._engine.initialize([[(one.data_ptr(), one.numel(), dtype_names[one.dtype]) for one in unit]
                                     for unit in values])
            del values
        convert(module, self.dtype)
        self.module = module
        self._units = [Unit(number, part.name, part.parameters, part.is_frozen) for number, part in enumerate(parts)]
        self._hook(parts)
        if resumed is not None:
            self.resumed = self._take(resumed)

    @property
    def learning_rate(self) -> float | None:
        """Of the steps whose first forward comes later; None: what the configuration says."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, given: float | None) -> None:
        if given is not None and not is_finite(given):
            refuse("it is out of its range", "learning_rate", wanted="a finite number, 0 or more, or None", got=repr(given))
        self._learning_rate = None if given is None else float(given)

    @_by_one_thread
    def forward(self, *args, **kwargs):
        """That of the module. With gradients it begins a step, or the next micro-batch of it."""
        self._check_whole("forward()")
        self._check_not_updating("forward()")
        self._guards.check_trained()
        if torch.is_grad_enabled() and not self._is_in_step and not self._is_in_backward:
            self._guards.check_present(self.module)
            for unit in self._units:
                unit.drop_gradients()
            self._engine.begin_step(self.gradient_accumulation_steps, self.learning_rate)
            self._is_in_step = True
        depth = len(self._calls)
        try:
            with self._gathering.saving():
                return self._gathering.of_this_update(self.module(*args, **kwargs))
        except BaseException:  # PyTorch calls no hooks for KeyboardInterrupt
            self._leave_calls(depth)
            if not self._is_in_backward:
                self._gathering.drop_hooks()
            raise

    @_by_one_thread
    def backward(self, loss: torch.Tensor) -> None:
        """The backward of one micro-batch. The loss is divided by their number, and multiplied by the loss scale."""
        self._check_whole("backward()")
        if not isinstance(loss, torch.Tensor):
            refuse("it is no tensor", "the loss", got=type(loss).__name__)
        if loss.numel() != 1:
            refuse("it is not one number", "the loss", wanted="the mean or the sum over the micro-batch",
                   got=f"a tensor of shape {tuple(loss.shape)}")
        if not self._is_in_step:
            refuse("there was no forward since the last step", "backward()", kind=FailedState)
        if self._micro_batches == self.gradient_accumulation_steps:
            refuse("all micro-batches of this step have had their backward", "backward()",
                    wanted=f"{self.gradient_accumulation_steps} a step", advice="call step()", kind=FailedState)
        scaled = loss * (self._engine.report()["loss_scale"] / self.gradient_accumulation_steps)
        if not scaled.requires_grad:
            refuse("it has no gradient", "the loss", wanted="one that the module has computed")
        scaled.register_hook(lambda _: setattr(self, "_graph_task", torch._C._current_graph_task_id()))
        self._is_in_backward, self._has_gradient = True, False
        try:
            with self._gathering.saving():  # for what checkpoints compute again
                scaled.backward()
            if not self._has_gradient:
                refuse("it gives none of the parameters a gradient", "the loss", wanted="one that this module has computed",
                       advice="call abandon_step(), and backward() of the module that has computed it", kind=FailedState)
            for unit in reversed(self._units):  # in one order on all ranks
                if not unit.is_frozen and not unit.is_reduced:
                    unit.reduce(self._engine)
                unit.end_micro_batch()
            self._gathering.release_unused(*self._units)
        except BaseException:
            advice = "call abandon_step(), on all ranks"
            if self._updates_in_backward:
                advice += "; where a part of the step is updated, that refuses, and says how to go on"
            self._failure = "a backward has failed", advice
            self._gathering.drop_hooks()
            free_what_it_left()
            raise
        finally:
            self._is_in_backward = False
        self._micro_batches += 1

    @_by_one_thread
    def step(self) -> bool:
        """Updates the parameters after the last micro-batch of a step; does nothing after the others. The update runs
        beside the next forward. Returns whether it has updated: not for gradients that are not finite, see last_step."""
        self._check_whole("step()")
        if self._micro_batches == 0:
            refuse("there was no backward since the last step", "step()", kind=FailedState)
        self._check_not_gathered("step()")
        if self._micro_batches < self.gradient_accumulation_steps:
            return False
        try:
            self.last_step = self._engine.step()
        except NoSpace as error:
            if error.object == "penstock.endurance_cap":  # the step has ended without an update
                self._micro_batches, self._is_in_step = 0, False
            raise
        self._gathering.note_update()
        self._micro_batches, self._is_in_step = 0, False
        return self.last_step["updated"]

    def abandon_step(self, cause: str = "the trainer has abandoned it") -> None:
        """Gives up the step in progress, after an exception in forward or backward. All ranks call it. With
        penstock.update_in_backward a step whose update has begun is not abandoned: it can be completed by step(); after an
        exception in its last backward the run ends, see docs/python.md."""
        self._check_open("abandon_step()")
        self._check_not_gathered("abandon_step()")
        is_first = self._is_updating  # nothing is gathered then, and a refusal changes nothing
        if is_first:
            self._engine.abandon_step(cause)
        while self._calls:
            self._calls.pop()
        for unit in self._units:
            unit.users = 0
            unit.end_micro_batch()
            unit.drop_gradients()
        self._micro_batches = 0
        self._is_in_step = self._is_in_backward = False
        self._failure = None
        self._gathering.drop_hooks()
        self._gathering.note_update()  # no backward of earlier forwards
        self._gathering.leave(*self._units)
        if is_first:
            return
        try:
            self._engine.abandon_step(cause)
        except FailedState as error:
            if "update_in_backward" not in error.reason:
                raise
            self._failure = ("penstock.update_in_backward has updated a part of the step that has failed",
                             "close() it, and shard() a module again, which goes on from the last commit, or with load_checkpoint()")
            try:
                self._check_whole("abandon_step()")
            except FailedState as refusal:
                raise refusal from error

    def state_dict(self, *args, **kwargs):
        """Refused: the parameters are elsewhere. `with model.gathered() as module: module.state_dict()`."""
        self._check_open("state_dict()")
        refuse_state_dict()

    def load_state_dict(self, *args, **kwargs):
        """Refused: what is in the parameters is lost when they leave. Load before shard(), or load_checkpoint()."""
        refuse_load("the module")

    def _apply(self, *args, **kwargs):
        refuse("its parameters stay on the CPU, in the type of the configuration", "to(), half() and the like",
                advice="change the module before shard(), or the configuration", kind=Unsupported)

    def __reduce_ex__(self, protocol):
        raise TypeError("penstock.torch.Sharded cannot be copied or pickled: copy its module within gathered()")

    @contextlib.contextmanager
    def gathered(self) -> Iterator[torch.nn.Module]:
        """The module with all of its parameters in memory, to be read: for its state_dict(), or generate()."""
        self._check_open("gathered()")
        self._check_not_updating("gathered()")
        self._engine.finish_update()
        self._in_gathered += 1
        try:
            for unit in self._units:
                unit.users += 1
            for unit in self._units:
                self._gathering.gather(unit)
            yield self.module
        except BaseException:
            self._in_gathered -= 1
            self._leave_calls(len(self._calls))
            raise
        self._in_gathered -= 1
        self._count_users()
        self._gathering.release_unused(*self._units)

    @property
    def completed_steps(self) -> int:
        return self.report()["completed_steps"]

    def report(self) -> dict:
        """Steps that were completed and skipped, the loss scale, and the bytes of the plan in each tier."""
        self._check_open("report()")
        return self._engine.report()

    def report_text(self, format: str = "text", *, with_changes: bool = False) -> str:
        """What this rank has taken and moved since it was made, by tier, purpose and drive, beside what was planned.
        format: "text", "json", or "prometheus" for its text format. with_changes: also what would shorten its steps
        most, which is simulated: seconds for a large model."""
        self._check_open("report_text()")
        return self._engine.report_text(format, with_changes)

    def save_report(self, file: str | os.PathLike, format: str | None = None, *, with_changes: bool = False) -> None:
        """Replaces a file by such a report at once, so that another program reads a whole one. Without a format its
        extension decides: ".json", ".prom" for Prometheus, or else text. See also the configuration's
        penstock.report_file."""
        self._check_open("save_report()")
        self._engine.save_report(file, format, with_changes)

    @_by_one_thread
    def write_events(self, events: Sequence[tuple[str, float, int]]) -> None:
        """Adds (name, value, place) to the files of the configuration's csv_monitor and tensorboard, as DeepSpeed's
        monitor.write_events(): ("Train/Samples/train_loss", loss, samples so far). Only rank 0 writes. Where an event
        is refused, none is written."""
        self._check_open("write_events()")
        self._engine.write_events(checked_events(events))

    @property
    def notes(self) -> list[str]:
        """Features that are not available, keys that have no effect, and files that cannot be written, with reasons."""
        self._check_open("notes")
        return self.config.notes + self._engine.notes

    def take_messages(self) -> list[str]:
        """What has happened since the last call and was no error, such as stores that moved to another path, memory that
        was given to others, a drive whose endurance comes to its end, and a timeline that has ended."""
        self._check_open("take_messages()")
        return self._engine.take_messages()

    def limit_memory(self, most: int) -> int:
        """Limits the host memory of this rank while the run goes on, with the same bits and more reads from the drives.
        Any thread may call it.
        Whole pages of 2 MiB are given back, and taken again when the limit rises. Returns the bytes that are still in
        use: what is leased or not stored yet is given back by a later call.

        Raises, and changes nothing: BudgetTooSmall, below memory_least(); Unsupported, for memory that is registered with
        a device; FailedState, while it is parked."""
        self._check_open("limit_memory()")
        return self._engine.limit_memory(most)

    def memory_least(self) -> int:
        """The least that limit_memory() takes now."""
        self._check_open("memory_least()")
        return self._engine.memory_least()

    @_by_one_thread
    def begin_trace(self) -> None:
        """Records from now on how host memory is used, for save_trace() after a step: call both between steps."""
        self._check_no_step("begin_trace()")
        self._engine.finish_update()
        self._engine.begin_trace()

    @_by_one_thread
    def save_trace(self, file: str | os.PathLike, label: str = "") -> None:
        """Ends the recording, after the last step's update, and replaces the file: what "penstock trace diff" and
        "penstock simulate" read. Raises FailedState without begin_trace(), and in a step. After an error of the file a repeated call saves it."""
        self._check_no_step("save_trace()")
        self._engine.finish_update()
        self._engine.save_trace(file, label)

    def digest(self) -> str:
        """Of the masters of all ranks, which does not depend on their number."""
        self._check_open("digest()")
        self._check_not_updating("digest()")
        return self._engine.digest()

    def commit(self, client=None) -> None:
        """Makes the run durable as of the last step, with an object of the trainer (tensors, numbers, text, and lists and
        dictionaries of them), and the module's buffers. Needs penstock.durable_directory of the configuration: shard() goes on from the last commit that is there.
        See docs/checkpoints.md."""
        self._check_not_updating("commit()")
        self._check_between_steps("commit()")
        self._engine.commit(trainer_state.to_bytes(self.module, client))

    def save_checkpoint(self, directory: str | os.PathLike, client=None, keep: int = 0) -> str:
        """Commits, and copies the commit to a new subdirectory, whose path it returns. Needs penstock.durable_directory of the
        configuration, as commit(). keep: how many checkpoints of this run stay there; 0: all."""
        self._check_not_updating("save_checkpoint()")
        self._check_between_steps("save_checkpoint()")
        check_integer("save_checkpoint()", "keep", keep, 0, (1 << 32) - 1)
        return self._engine.save_checkpoint(directory_of(directory), trainer_state.to_bytes(self.module, client), keep)

    def load_checkpoint(self, directory: str | os.PathLike):
        """Sets all values to those of a checkpoint. Returns (step, client). Raises FailedState for one of a module with other
        buffers: the parameters are those of the checkpoint then, and another one is to be loaded."""
        self._check_between_steps("load_checkpoint()")
        self._check_not_gathered("load_checkpoint()")
        return self._take(self._engine.load_checkpoint(directory_of(directory)))

    def close(self) -> None:
        """Frees the memory and the space on the drives. The module's parameters have no values then."""
        self._gathering.leave(*self._units)
        for module in self.module.modules():
            module._parameters = dict(module._parameters)
        self._engine.close()
        self._optimizer_hook()
        self._is_closed = True

    # --- Hooks

    def _hook(self, parts: list[Part]) -> None:
        for unit, part in zip(self._units, parts):
            for user in part.users:
                self._units_of.setdefault(user, []).append(unit)
            for index, (_, parameter) in enumerate(unit.parameters):
                self._unit_of[parameter] = unit
                if not unit.is_frozen:
                    parameter.register_post_accumulate_grad_hook(
                        Hook(self, "_take_gradient", unit.number, index))
        for one in self.module.modules():
            if next(one.parameters(), None) is not None:
                one._parameters = Parameters(one._parameters, Hook(self, "_note_access"),
                                             Hook(self._guards, "before_copy", is_needed=True))
                one.register_forward_pre_hook(Hook(self, "_before_forward", is_needed=True), prepend=True)
                one.register_forward_hook(Hook(self, "_after_forward"), always_call=True)
                one.register_state_dict_pre_hook(Hook(self._guards, "before_state_dict"))
                one.register_load_state_dict_pre_hook(Hook(self._guards, "before_load"))
        of_all_optimizers = register_optimizer_step_pre_hook(Hook(self._guards, "before_optimizer"))
        self._optimizer_hook = weakref.finalize(self, of_all_optimizers.remove)

    def _before_forward(self, module: torch.nn.Module, args) -> None:
        self._check_open("forward()")
        units = list(self._units_of.get(module, ()))
        self._calls.append((module, units))
        for unit in units:
            unit.users += 1
        for unit in units:
            self._gathering.gather(unit)

    def _after_forward(self, module: torch.nn.Module, args, output) -> None:
        if self._calls and self._calls[-1][0] is module:  # else a hook before ours has failed
            self._leave()

    def _leave_calls(self, depth: int) -> None:
        """Leaves those after the first `depth`, where an exception passes, which matters more than changes that are lost."""
        del self._calls[depth:]
        self._count_users()
        self._gathering.leave(*(unit for unit in self._units if unit.users == 0))

    def _count_users(self) -> None:
        """Again: an interrupt may have come while a module was entered or left."""
        for unit in self._units:
            unit.users = self._in_gathered
        for _, units in self._calls:
            for unit in units:
                unit.users += 1

    def _leave(self) -> None:
        _, units = self._calls.pop()
        for unit in units:
            unit.users -= 1
        self._gathering.release_unused(*units)

    def _note_access(self, parameter: torch.nn.Parameter) -> None:
        """A forward uses a parameter of another module, as that of torch.nn.MultiheadAttention does: from now on its unit
        is gathered for this module too."""
        unit = self._unit_of.get(parameter)
        if unit is None or unit.users > 0 or not self._calls:
            return
        module, units = self._calls[-1]
        self._units_of.setdefault(module, []).append(unit)
        units.append(unit)
        unit.users += 1
        self._gathering.gather(unit)

    def _take_gradient(self, number: int, index: int, parameter: torch.nn.Parameter) -> None:
        unit = self._units[number]
        name = unit.parameters[index][0]
        gradient, parameter.grad = parameter.grad, None
        if not self._is_in_backward:
            refuse("it is not by the sharded module", "the backward", wanted="model.backward(loss)", got="loss.backward(), or "
                   "that of another sharded module", advice="shard one module that has both", kind=FailedState)
        self._has_gradient = True
        if gradient.layout != torch.strided:
            refuse("its gradient is sparse", name, advice="make the layer with sparse=False", kind=Unsupported)
        if unit.is_reduced:
            refuse("it has gradients of a reentrant checkpoint and of another use", name,
                    advice="torch.utils.checkpoint.checkpoint(…, use_reentrant=False)", kind=Unsupported)
        unit.add_gradient(index, gradient)
        # A graph brings one gradient of each parameter; each reentrant checkpoint is a graph of its own.
        unit.is_late = unit.is_late or torch._C._current_graph_task_id() != self._graph_task
        if not unit.is_late and all(one is not None for one in unit.gradients):
            unit.reduce(self._engine)

    def _check_not_gathered(self, what: str) -> None:
        if self._in_gathered > 0:
            refuse("the parameters are in use", what, advice="call it after the block of gathered()", kind=FailedState)

    def _check_open(self, what: str) -> None:
        if self._is_closed:
            refuse("the sharded module was closed", what, advice="make the module again, and shard it", kind=FailedState)

    def _check_whole(self, what: str) -> None:
        self._check_open(what)
        if self._failure is not None:
            reason, advice = self._failure
            refuse(reason, what, advice=advice, kind=FailedState)

    @property
    def _is_updating(self) -> bool:
        """Between the last backward and step(), with penstock.update_in_backward."""
        return self._updates_in_backward and self._micro_batches == self.gradient_accumulation_steps

    def _check_not_updating(self, what: str) -> None:
        """Before what reads the parameters."""
        if self._is_updating:
            refuse("penstock.update_in_backward updates the parameters since their last gradient", what, advice="call step() first",
                   kind=FailedState)
        if self._updates_in_backward:
            self._check_whole(what)

    def _check_between_steps(self, what: str) -> None:
        self._check_open(what)
        if self._micro_batches > 0:
            refuse("a step is in progress", what, got=f"{self._micro_batches} of {self.gradient_accumulation_steps} micro-batches",
                   advice="call it after step(), or after abandon_step()", kind=FailedState)

    def _check_no_step(self, what: str) -> None:
        """Not even the forward of one."""
        self._check_not_updating(what)
        self._check_between_steps(what)
        if self._is_in_step:
            refuse("a step has begun", what, advice="call it after step(), or after abandon_step()", kind=FailedState)

    def _take(self, resumed: dict) -> tuple:
        """Goes on as of a commit. Returns its step and the trainer's object."""
        for unit in self._units:
            unit.end_micro_batch()
        self._gathering.note_update()
        self._failure = "values of a checkpoint were loaded, but not its buffers", "load_checkpoint() one of this module"
        client = trainer_state.from_bytes(self.module, resumed["client"])
        self._failure = None
        return resumed["step"], client
