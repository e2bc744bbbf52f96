"""Puts Penstock's operations where DeepSpeed looks for its own."""

from __future__ import annotations

import sys

from . import async_io, cpu_adam, pin_memory
from ..errors import Unsupported

_operations = {"async_io": async_io, "cpu_adam": cpu_adam, "pin_memory": pin_memory}


class _Operation:
    """What OpBuilder.load() returns. It is no module: DeepSpeed loads the file of one a second time."""

    def __init__(self, name: str, module) -> None:
        self.__name__ = f"penstock.deepspeed.{name}"
        for attribute in module.__all__:
            setattr(self, attribute, getattr(module, attribute))

    def __repr__(self) -> str:
        return f"<{self.__name__}>"


def install() -> None:
    """Makes DeepSpeed's async_io, cpu_adam and pin_memory those of Penstock, in this process: files of offload_param and
    offload_optimizer are read and written by its engines, DeepSpeedCPUAdam updates by its kernels, and nothing is
    compiled. What went wrong in silence is an error that names the file and the offset. A second call does nothing.

    Call it before deepspeed.initialize(), in each process that DeepSpeed has. Raises Unsupported where an operation was
    loaded before."""
    import deepspeed.ops
    from deepspeed.ops.op_builder.builder import OpBuilder

    loaded = OpBuilder._loaded_ops
    for name in _operations:
        if name in loaded and not isinstance(loaded[name], _Operation):
            raise Unsupported(f"DeepSpeed has loaded its own operation already: {name} [penstock.deepspeed.install]\n"
                              "  try     call install() before deepspeed.initialize()",
                              operation="penstock.deepspeed.install", object=name,
                              reason="DeepSpeed has loaded its own operation already")
    for name, module in _operations.items():
        if name not in loaded:
            loaded[name] = _Operation(name, module)
    # Beside the table, DeepSpeed keeps this one where every copy of its builders finds it.
    sys._deepspeed_pin_memory_op_module = loaded["pin_memory"]
    _say_that_they_are_compatible(deepspeed.ops)


def _say_that_they_are_compatible(ops) -> None:
    """DeepSpeed asks a compiler whether it could build them."""
    from deepspeed.ops.op_builder import all_ops
    for name in _operations:
        builder = all_ops.ALL_OPS.get(name)
        if builder is not None:
            type(builder).is_compatible = lambda self, verbose=False: True
    known = vars(ops).get("__compatible_ops__")
    if known is not None:
        known.update(dict.fromkeys(_operations, True))
