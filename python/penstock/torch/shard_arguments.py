"""What is checked and made of a module before it is sharded."""

from __future__ import annotations

import functools
import hashlib
import json
import math
import numbers
import os
from collections.abc import Callable, Iterable, Iterator

import torch

from .. import errors
from .._core import Layout, ProcessGroup
from ..errors import InvalidArgument, InvalidConfig, IoFailed, NotFound, PermissionDenied, Unsupported
from .offloaded_states import dtype_names, is_in_memory
from .sharding_hooks import Parameters
from .units import Part

refuse = functools.partial(errors.refuse, "penstock.torch.shard")


def dtype_of(effective: dict) -> torch.dtype:
    for key, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if effective.get(key, {}).get("enabled"):
            return dtype
    return torch.float32


def check(module: torch.nn.Module, whole: Iterable[type]) -> tuple[type, ...]:
    """Returns `whole`."""
    if not isinstance(module, torch.nn.Module):
        refuse("it is no module", "module", wanted="a torch.nn.Module", got=type(module).__name__)
    classes = tuple(whole) if isinstance(whole, Iterable) and not isinstance(whole, type) else (None,)
    if not all(isinstance(one, type) for one in classes):
        refuse("it has something else than classes", "whole", wanted="a sequence of classes", got=repr(whole))
    for kind in classes:
        if not any(isinstance(one, kind) for one in module.modules()):
            refuse("the module has none of this class", "whole", wanted="classes of its modules", got=kind.__qualname__)
    if any(isinstance(one._parameters, Parameters) for one in module.modules()):
        refuse("it is sharded already", "module", advice="close() the sharded one, and make the module again")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        refuse("it has no parameter that is trained", "module", wanted="a parameter with requires_grad")
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            refuse("it has no shape yet", name, advice="call the module once before")
        if parameter.is_inference() or torch.is_inference_mode_enabled():
            refuse("it cannot be trained in inference mode", name, advice="make and shard the module outside of "
                   "torch.inference_mode()", kind=Unsupported)
        if parameter.dtype not in dtype_names:
            refuse("its type is not supported", name, wanted="float32, bfloat16 or float16", got=str(parameter.dtype))
        if parameter.device.type != "cpu" or parameter.layout != torch.strided or hasattr(parameter, "to_local"):
            refuse("it is no dense tensor in host memory", name, got=f"{parameter.layout}, on {parameter.device}",
                    advice="shard the module before it is moved to a device", kind=Unsupported)
        if not is_in_memory(parameter):
            refuse("its elements share memory, or have none", name, wanted="memory for each", got="an expanded tensor, one "
                   "whose memory was freed, or one of a module that was sharded, or is parked", advice="clone() it; make the module again, or unpark() it")
        if parameter.numel() == 0:
            refuse("it has no elements", name, kind=Unsupported)
        if parameter.grad is not None:
            refuse("it has a gradient already", name, advice="call zero_grad() before")
    _check_no_overlap(module)
    return classes


def _check_no_overlap(module: torch.nn.Module) -> None:
    """Parameters that are views of one memory would be independent of each other after shard()."""
    ranges = []
    for name, parameter in module.named_parameters():
        last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride()))
        first_byte = parameter.data_ptr()
        ranges.append((first_byte, first_byte + (last + 1) * parameter.element_size(), name))
    ranges.sort()
    for (_, end, name), (first, _, other) in zip(ranges, ranges[1:]):
        if first < end:
            refuse("its memory overlaps that of another parameter", other, wanted="memory of its own", got=f"that of {name}",
                   advice="make them one parameter, which several modules may have, or clone() one")


def check_integer(operation: str, name: str, given, least: int, most: int) -> None:
    if not isinstance(given, numbers.Integral) or isinstance(given, bool) or not least <= given <= most:
        errors.refuse(operation, "it is out of its range", name, wanted=f"an integer, {least} to {most}", got=repr(given))


def directory_of(given: str | bytes | os.PathLike) -> str:
    if not isinstance(given, (str, bytes, os.PathLike)) or not os.fspath(given):
        refuse("it names no directory", "directory", wanted="a path", got=repr(given))
    return os.fsdecode(given)


def is_finite(given) -> bool:
    """A number, 0 or more."""
    return isinstance(given, numbers.Real) and not isinstance(given, bool) and 0 <= given < math.inf


def text_of(config: str | os.PathLike | dict) -> tuple[str, str]:
    """Of the configuration, and its name in messages."""
    if not isinstance(config, (str, os.PathLike, dict)):
        refuse("it is no configuration", "config", wanted="a path or a dictionary", got=type(config).__name__)
    if not isinstance(config, dict):
        name = os.fspath(config)
        try:
            with open(name, encoding="utf-8") as file:
                return file.read(), name
        except UnicodeDecodeError as error:
            refuse("it is no text in UTF-8", name, wanted="a ds_config.json",
                   got=f"the byte 0x{error.object[error.start]:02x} at {error.start}", kind=InvalidConfig)
        except OSError as error:
            kinds = {FileNotFoundError: NotFound, PermissionError: PermissionDenied, IsADirectoryError: InvalidArgument}
            refuse(error.strerror, name, wanted="a ds_config.json", kind=kinds.get(type(error), IoFailed))
        except ValueError as error:
            refuse(str(error), repr(name), wanted="a path")
    try:
        return json.dumps(config), "the dictionary"
    except ValueError as error:
        refuse("it is no tree", "config", got=str(error), kind=InvalidConfig)
    except TypeError as error:
        key, value = next(_not_json(config, ""), ("config", config))
        refuse("it has a value that JSON has not", key, wanted="numbers, text, lists and dictionaries",
               got=f"{type(value).__name__}: {error}", kind=InvalidConfig)


def _not_json(value, key: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _not_json(one, f"{key}.{name}" if key else str(name))
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _not_json(one, f"{key}[{index}]")
    elif not isinstance(value, (str, int, float, type(None))):
        yield key, value


def convert(module: torch.nn.Module, dtype: torch.dtype) -> None:
    """Gives parameters and buffers the type of the run. The engine has the parameters' values, and their memory is freed."""
    for parameter in module.parameters():
        parameter.data = parameter.new_empty((), dtype=dtype).expand(parameter.shape)
    for buffer in module.buffers():
        if buffer.dtype.is_floating_point:
            buffer.data = buffer.detach().to(dtype)


def check_ranks(module: torch.nn.Module, group: ProcessGroup | None) -> None:
    """Each rank gives the values of its own shards: a mixture, if they differ."""
    if group is None:
        return
    sums = hashlib.blake2b(digest_size=16)
    for name, parameter in module.named_parameters():
        words = parameter.detach().contiguous().view(torch.int32 if parameter.element_size() == 4 else torch.int16)
        weights = torch.arange(1, words.numel() + 1).remainder_(997)
        sums.update(f"{name} {int(words.reshape(-1).to(torch.int64).mul_(weights).sum())} ".encode())
    digests = group.gather("initial values", sums.digest())
    for rank, one in enumerate(digests):
        if one != digests[0]:
            refuse("the ranks begin with different values", "module", wanted="those of rank 0",
                    got=f"others on rank {rank}", advice="seed all ranks alike, or load the weights on all of them")


def layout_of(parts: list[Part], weight_decay_of: Callable[[str, torch.nn.Parameter], float | None] | None) -> Layout:
    layout, groups, root = Layout(), {}, "root"  # the unit of parameters that the module itself has
    while any(f"{part.name}.".startswith(f"{root}.") for part in parts):
        root += "_"
    for part in parts:
        unit = layout.add_unit((part.name or root) + ("+frozen" if part.is_frozen else ""))
        for name, parameter in part.parameters:
            decay = None if part.is_frozen or weight_decay_of is None else weight_decay_of(name, parameter)
            if decay is not None and not is_finite(decay):
                refuse("weight_decay_of has returned no weight decay", name, wanted="a finite number, 0 or more, or None",
                       got=repr(decay))
            key = (part.is_frozen, decay)
            if key not in groups:
                is_default = key == (False, None)
                groups[key] = 0 if is_default else layout.add_group(frozen=part.is_frozen, weight_decay=decay)
            own = name[len(part.name) + 1:] if part.name else name
            layout.add_parameter(unit, own, list(parameter.shape) or [1], groups[key])
    return layout
