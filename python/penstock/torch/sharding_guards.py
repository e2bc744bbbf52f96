"""What a sharded module refuses, because it would be lost or without effect."""

from __future__ import annotations

from typing import NoReturn

import torch

from ..errors import FailedState, Unsupported
from .shard_arguments import refuse
from .units import Unit


def refuse_state_dict() -> NoReturn:
    refuse("its parameters have no values outside of the forward", "state_dict()",
           advice="with model.gathered() as module: module.state_dict(); or save_checkpoint()", kind=Unsupported)


def refuse_load(name: str) -> NoReturn:
    refuse("its parameters are elsewhere", f"load_state_dict() of {name}",
           advice="load the state before shard(); or load_checkpoint()", kind=Unsupported)


class Guards:
    """Hooks and checks that refuse a use of the parameters. unit_of: of all sharded parameters."""

    def __init__(self, unit_of: dict[torch.nn.Parameter, Unit]) -> None:
        self._unit_of = unit_of

    def before_state_dict(self, module: torch.nn.Module, *_) -> None:
        if any(not self._unit_of[one].is_gathered for one in module.parameters(recurse=False) if one in self._unit_of):
            refuse_state_dict()

    def before_load(self, module: torch.nn.Module, *_) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter in self._unit_of and not self._unit_of[parameter].is_gathered:
                refuse_load(self._unit_of[parameter].name_of(parameter))

    def before_copy(self, parameters: dict[str, torch.nn.Parameter | None]) -> None:
        for parameter in parameters.values():
            if parameter in self._unit_of and not self._unit_of[parameter].is_gathered:
                refuse("it has no values outside of the forward", self._unit_of[parameter].name_of(parameter),
                       wanted="a copy of the module within gathered()",
                       advice="with model.gathered() as module: copy.deepcopy(module)", kind=FailedState)

    def before_optimizer(self, optimizer: torch.optim.Optimizer, *_) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in self._unit_of:
                    refuse("the sharded module updates it, by the optimizer of its configuration",
                           self._unit_of[parameter].name_of(parameter), wanted="no optimizer of it",
                           got=f"a step of {type(optimizer).__name__}", advice="call model.step() alone; model.learning_rate "
                           "is its learning rate", kind=FailedState)

    def check_trained(self) -> None:
        """That each is trained, or not, as it was when the module was sharded."""
        for parameter, unit in self._unit_of.items():
            if parameter.requires_grad == unit.is_frozen:
                refuse("requires_grad was changed after shard()", unit.name_of(parameter), wanted=str(not unit.is_frozen),
                       got=str(parameter.requires_grad), advice="shard the module again")

    def check_present(self, module: torch.nn.Module) -> None:
        """That the module has these parameters and no others."""
        present = {parameter: name for name, parameter in module.named_parameters()}
        for parameter, name in present.items():
            if parameter not in self._unit_of:
                refuse("it came into the module after shard(), and would not be trained", name,
                       advice="change the module before shard()", kind=FailedState)
        for parameter, unit in self._unit_of.items():
            if parameter not in present:
                refuse("it was taken out of the module after shard()", unit.name_of(parameter),
                       advice="change the module before shard()", kind=FailedState)
