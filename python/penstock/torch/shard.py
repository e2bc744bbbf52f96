"""ZeRO-3 for a torch.nn.Module."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence

import torch

from .. import errors
from .._core import Config, Engine, Layout, ProcessGroup
from ..errors import FailedState, InvalidArgument, Unsupported
from .offloaded_states import dtype_names
from .units import Part, Unit, divide, tensors_of


def _refuse(reason: str, what: str, *, wanted: str = "", got: str = "", advice: str = "", kind=InvalidArgument):
    errors.refuse("penstock.torch.shard", reason, what, wanted=wanted, got=got, advice=advice, kind=kind)


class _Use:
    """One forward of a module, whose backward needs its units. inputs: with a gradient, which the backward computes last."""

    def __init__(self, module: torch.nn.Module, units: list[Unit]) -> None:
        self.module = module
        self.units = units
        self.inputs = 0
        self.left = 0  # of them, in this backward


class _Parameters(dict):
    """Those of a module, which tells when one is looked up: the forward of another module may use it."""

    def __init__(self, given: dict, note_access: Callable[[torch.nn.Parameter], None]) -> None:
        super().__init__(given)
        self._note_access = note_access

    def __getitem__(self, name: str):
        parameter = super().__getitem__(name)
        if parameter is not None:
            self._note_access(parameter)
        return parameter


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
        self.dtype = _dtype_of(effective)  # of parameters and floating-point buffers
        self.config = config
        self.learning_rate: float | None = None
        """Of the steps from the next one on; None: what the configuration says."""
        self.last_step: dict = {}
        """What the last step() has found: "updated", "gradient_norm", "learning_rate", and so on."""
        self._micro_batches = 0  # of this step, whose backward has ended
        self._is_in_step = self._is_in_backward = self._has_failed = False
        self._calls: list[_Use] = []  # modules in their forward, the innermost last
        self._units_of: dict[torch.nn.Module, list[Unit]] = {}  # that are gathered for its forward
        self._unit_of: dict[torch.nn.Parameter, Unit] = {}
        _check(module)
        parts = divide(module, whole)
        self._engine = Engine(config, _layout_of(parts, weight_decay_of), group)
        self.resumed: tuple | None = None
        """The step and the trainer's object of the commit from which a durable run goes on; None for a new run."""
        resumed = self._engine.resume() if effective.get("penstock", {}).get("durable_directory") else None
        if resumed is None:
            values = [[parameter.detach().contiguous() for _, parameter in part.parameters] for part in parts]
            self._engine.initialize([[(one.data_ptr(), one.numel(), dtype_names[one.dtype]) for one in unit]
                                     for unit in values])
            del values
        _convert(module, self.dtype)
        self.module = module
        self._units = [Unit(number, part.name, part.parameters, part.is_frozen) for number, part in enumerate(parts)]
        self._hook(parts)
        for unit in self._units:
            unit.release()
        if resumed is not None:
            self.resumed = self._take_client(resumed)

    def forward(self, *args, **kwargs):
        """That of the module. With gradients it begins a step, or the next micro-batch of it."""
        self._check_whole("forward()")
        if torch.is_grad_enabled() and not self._is_in_step:
            self._engine.begin_step(self.gradient_accumulation_steps, self.learning_rate)
            self._is_in_step = True
        result = self.module(*args, **kwargs)
        if not torch.is_grad_enabled():
            for unit in self._units:
                unit.calls.clear()  # no backward follows
        return result

    def backward(self, loss: torch.Tensor) -> None:
        """The backward of one micro-batch. The loss is divided by their number, and multiplied by the loss scale."""
        self._check_whole("backward()")
        if self._micro_batches == self.gradient_accumulation_steps:
            _refuse("all micro-batches of this step have had their backward", "backward()",
                    wanted=f"{self.gradient_accumulation_steps} a step", advice="call step()", kind=FailedState)
        scale = self._engine.report()["loss_scale"] / self.gradient_accumulation_steps
        self._is_in_backward = self._has_failed = True  # unless it ends
        (loss * scale).backward()
        for unit in reversed(self._units):  # in one order on all ranks
            if not unit.is_frozen and not unit.is_reduced:
                unit.reduce(self._engine)
            unit.end_micro_batch()
            unit.release_if_unused()
        self._is_in_backward = self._has_failed = False
        self._micro_batches += 1

    def step(self) -> bool:
        """Updates the parameters after the last micro-batch of a step; does nothing after the others. The update runs
        beside the next forward. Returns whether it has updated: not for gradients that are not finite, see last_step."""
        self._check_whole("step()")
        if self._micro_batches == 0:
            _refuse("there was no backward since the last step", "step()", kind=FailedState)
        if any(unit.users > 0 for unit in self._units):
            _refuse("the parameters are in use", "step()", advice="call it after gathered() and forward()", kind=FailedState)
        if self._micro_batches < self.gradient_accumulation_steps:
            return False
        self.last_step = self._engine.step()
        self._micro_batches, self._is_in_step = 0, False
        return self.last_step["updated"]

    def abandon_step(self, cause: str = "the trainer has abandoned it") -> None:
        """Gives up the step in progress, after an exception in forward or backward. All ranks call it."""
        for unit in self._units:
            unit.end_micro_batch()
            unit.users = 0
            unit.release()
        self._calls.clear()
        self._micro_batches = 0
        self._is_in_step = self._is_in_backward = self._has_failed = False
        self._engine.abandon_step(cause)

    def state_dict(self, *args, **kwargs):
        """Refused: the parameters are elsewhere. `with model.gathered() as module: module.state_dict()`."""
        _refuse("its parameters are empty outside of the forward", "state_dict()",
                advice="with model.gathered() as module: module.state_dict(); or save_checkpoint()", kind=Unsupported)

    @contextlib.contextmanager
    def gathered(self) -> Iterator[torch.nn.Module]:
        """The module with all of its parameters in memory, to be read: for its state_dict(), or generate()."""
        self._engine.finish_update()
        for unit in self._units:
            unit.users += 1
        try:
            for unit in self._units:
                unit.gather(self._engine)
            yield self.module
        finally:
            for unit in self._units:
                unit.users -= 1
                unit.release_if_unused()

    @property
    def completed_steps(self) -> int:
        return self._engine.report()["completed_steps"]

    def report(self) -> dict:
        """Steps that were completed and skipped, the loss scale, and the bytes of the plan in each tier."""
        return self._engine.report()

    @property
    def notes(self) -> list[str]:
        """Features that are not available, and keys that have no effect, with reasons."""
        return self.config.notes + self._engine.notes

    def digest(self) -> str:
        """Of the masters of all ranks, which does not depend on their number."""
        return self._engine.digest()

    def commit(self, client=None) -> None:
        """Makes the run durable as of the last step, with an object of the trainer (tensors, numbers, text, and lists and
        dictionaries of them), and the module's buffers. Needs penstock.durable_directory of the configuration: shard() goes on from the last commit that is there.
        See docs/checkpoints.md."""
        self._engine.commit(self._client_bytes(client))

    def save_checkpoint(self, directory: str | os.PathLike, client=None, keep: int = 0) -> str:
        """Commits, and copies the commit to a new subdirectory, whose path it returns. keep: how many checkpoints of this
        run stay there; 0: all."""
        return self._engine.save_checkpoint(os.fspath(directory), self._client_bytes(client), keep)

    def load_checkpoint(self, directory: str | os.PathLike):
        """Sets all values to those of a checkpoint. Returns (step, client)."""
        return self._take_client(self._engine.load_checkpoint(os.fspath(directory)))

    def close(self) -> None:
        """Frees the memory and the space on the drives. The module's parameters are empty then."""
        for unit in self._units:
            unit.release()
        for module in self.module.modules():
            module._parameters = dict(module._parameters)
        self._engine.close()

    # --- Hooks

    def _hook(self, parts: list[Part]) -> None:
        for unit, part in zip(self._units, parts):
            for user in part.users:
                self._units_of.setdefault(user, []).append(unit)
            for index, (_, parameter) in enumerate(unit.parameters):
                self._unit_of[parameter] = unit
                if not unit.is_frozen:
                    parameter.register_post_accumulate_grad_hook(
                        lambda one, unit=unit, index=index: self._take_gradient(unit, index, one))
        for one in self.module.modules():
            if next(one.parameters(), None) is not None:
                one._parameters = _Parameters(one._parameters, self._note_access)
                one.register_forward_pre_hook(self._before_forward, with_kwargs=True)
                one.register_forward_hook(self._after_forward, always_call=True)

    def _before_forward(self, module: torch.nn.Module, args, kwargs) -> None:
        use = _Use(module, [])
        self._calls.append(use)
        for unit in self._units_of.get(module, ()):
            self._add_use(unit, use)
        for unit in use.units:
            unit.gather(self._engine)
        if torch.is_grad_enabled():
            for tensor in tensors_of((args, kwargs)):
                if tensor.requires_grad:
                    use.inputs += 1
                    tensor.register_hook(lambda _: self._after_input(use))

    def _add_use(self, unit: Unit, use: _Use) -> None:
        use.units.append(unit)
        unit.users += 1
        unit.calls[use.module] += 0 if self._is_in_backward else 1  # not of the recomputation of a checkpoint

    def _note_access(self, parameter: torch.nn.Parameter) -> None:
        """A forward uses a parameter of another module, as that of torch.nn.MultiheadAttention does: from now on its unit
        is gathered for this module too."""
        unit = self._unit_of.get(parameter)
        if unit is None or unit.users > 0 or not self._calls:
            return
        use = self._calls[-1]
        self._units_of.setdefault(use.module, []).append(unit)
        self._add_use(unit, use)
        unit.gather(self._engine)

    def _after_forward(self, module: torch.nn.Module, args, output) -> None:
        use = self._calls.pop()
        outputs = list(tensors_of(output))
        storages = {tensor.untyped_storage().data_ptr() for tensor in outputs if tensor.layout == torch.strided}
        for tensor in outputs:
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_prehook(lambda _: self._before_backward(use))
        for unit in use.units:
            unit.users -= 1
            is_hidden = torch.is_grad_enabled() and not outputs
            unit.is_kept = unit.is_kept or is_hidden or not storages.isdisjoint(unit.storages())
            unit.release_if_unused()

    def _before_backward(self, use: _Use) -> None:
        self._check_backward()
        for unit in use.units:
            if use not in unit.uses:
                use.left = use.inputs
                unit.uses.add(use)
            unit.gather(self._engine)

    def _take_gradient(self, unit: Unit, index: int, parameter: torch.nn.Parameter) -> None:
        self._check_backward()
        gradient, parameter.grad = parameter.grad, None
        if gradient.layout != torch.strided:
            _refuse("its gradient is sparse", unit.parameters[index][0], advice="make the layer with sparse=False",
                    kind=Unsupported)
        if unit.is_reduced:
            _refuse("it has a second gradient in one backward", unit.parameters[index][0], kind=Unsupported)
        unit.add_gradient(index, gradient)
        if unit.is_complete:
            unit.reduce(self._engine)
            self._release_after_backward(unit)

    def _after_input(self, use: _Use) -> None:
        use.left -= 1
        if use.left == 0:
            for unit in use.units:
                self._release_after_backward(unit)

    def _release_after_backward(self, unit: Unit) -> None:
        """What has no input with a gradient needs a unit until all of its gradients are there; a frozen one to the end."""
        if unit.is_frozen or unit.is_reduced:
            unit.uses = {use for use in unit.uses if use.left > 0 or (use.inputs == 0 and unit.is_frozen)}
            unit.release_if_unused()

    def _check_backward(self) -> None:
        if not self._is_in_backward:
            _refuse("it is not by the sharded module", "the backward", wanted="model.backward(loss)", got="loss.backward()",
                    kind=FailedState)

    def _check_whole(self, what: str) -> None:
        if self._has_failed:
            _refuse("a backward has failed", what, advice="call abandon_step(), on all ranks", kind=FailedState)

    # --- What goes into a commit

    def _client_bytes(self, client) -> bytes:
        file = io.BytesIO()
        torch.save({"client": client, "buffers": dict(self.module.named_buffers())}, file)
        return file.getvalue()

    def _take_client(self, resumed: dict) -> tuple:
        for unit in self._units:
            unit.end_micro_batch()
            unit.release()
        saved = torch.load(io.BytesIO(resumed["client"]), weights_only=True)
        buffers = dict(self.module.named_buffers())
        for name, values in saved["buffers"].items():
            buffers[name].copy_(values)
        return resumed["step"], saved["client"]


def shard(module: torch.nn.Module, config: str | os.PathLike | dict, *, whole: Sequence[type] = (),
          weight_decay_of: Callable[[str, torch.nn.Parameter], float | None] | None = None) -> Sharded:
    """Trains a module by ZeRO-3: its parameters are gathered for the forward and backward of the module that has them,
    its gradients are reduced as they come, and the states are updated where they are kept, in host memory or on drives.

        model = penstock.torch.shard(model, "ds_config.json")
        for batch, target in data:
            loss = loss_of(model(batch), target)
            model.backward(loss)
            model.step()

    config: the ds_config.json of DeepSpeed, a path or a dictionary; it has the optimizer too. The ranks are those of the
    launcher (torchrun, mpirun, srun; docs/processes.md), each with its own batches; without one there is one rank. All
    ranks begin with the same values. Floating-point parameters and buffers get the type of the configuration.

    whole: classes of modules whose parameters are gathered as one unit, such as the block of a transformer; of other
    modules those that each has itself. weight_decay_of(name, parameter): its weight decay, or None for that of the
    configuration.

    Frozen parameters, tied ones, buffers, activation checkpointing and modules that are used several times work as in
    PyTorch. A parameter is empty outside of its module's forward and of the backward, but for Sharded.gathered().

    Raises InvalidConfig; InvalidArgument and Unsupported, naming the parameter, before anything changes; BudgetTooSmall
    and NoSpace, with the required size."""
    if isinstance(config, dict):
        text, name = json.dumps(config), "the dictionary"
    else:
        name = os.fspath(config)
        with open(name, encoding="utf-8") as file:
            text = file.read()
    group = ProcessGroup() if _has_launcher() else None
    ranks = group.ranks if group is not None else 1
    return Sharded(module, Config(text, name, ranks), group, whole, weight_decay_of)


def _layout_of(parts: list[Part], weight_decay_of) -> Layout:
    layout, groups = Layout(), {}
    for part in parts:
        unit = layout.add_unit((part.name or "root") + ("+frozen" if part.is_frozen else ""))
        for name, parameter in part.parameters:
            decay = None if part.is_frozen or weight_decay_of is None else weight_decay_of(name, parameter)
            key = (part.is_frozen, decay)
            if key not in groups:
                is_default = key == (False, None)
                groups[key] = 0 if is_default else layout.add_group(frozen=part.is_frozen, weight_decay=decay)
            own = name[len(part.name) + 1:] if part.name else name
            layout.add_parameter(unit, own, list(parameter.shape) or [1], groups[key])
    return layout


def _has_launcher() -> bool:
    return any(name in os.environ for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_ID"))


def _dtype_of(effective: dict) -> torch.dtype:
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if effective.get(key, {}).get("enabled"):
            return dtype
    return torch.float32


def _check(module: torch.nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in module.parameters()):
        _refuse("it has no parameter that is trained", "module", wanted="a parameter with requires_grad")
    for name, parameter in module.named_parameters():
        if parameter.dtype not in dtype_names:
            _refuse("its type is not supported", name, wanted="float32, bfloat16 or float16", got=str(parameter.dtype))
        if parameter.device.type != "cpu" or parameter.layout != torch.strided or hasattr(parameter, "to_local"):
            _refuse("it is no dense tensor in host memory", name, got=f"{parameter.layout}, on {parameter.device}",
                    advice="shard the module before it is moved to a device", kind=Unsupported)
        if parameter.numel() == 0:
            _refuse("it has no elements", name, kind=Unsupported)
        if parameter.grad is not None:
            _refuse("it has a gradient already", name, advice="call zero_grad() before")


def _convert(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Gives each parameter memory of its own, which can be freed, in the type of the run; and buffers the type."""
    for parameter in module.parameters():
        parameter.data = parameter.detach().to(dtype).clone(memory_format=torch.contiguous_format)
    for buffer in module.buffers():
        if buffer.dtype.is_floating_point:
            buffer.data = buffer.detach().to(dtype)
