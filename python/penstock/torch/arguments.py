"""Checks of the arguments of penstock.torch."""

from __future__ import annotations

import functools
import math
import numbers
import os
from collections.abc import Sequence

import torch

from .. import Path, errors
from ..errors import NotFound, Unsupported


refuse = functools.partial(errors.refuse, "penstock.torch.AdamW")


def checked_paths(given) -> list[str | Path]:
    """Absolute names, and the Paths that the caller has made."""
    if given is None:
        return []
    if not isinstance(given, (str, os.PathLike, Path, Sequence)) or isinstance(given, bytes):
        refuse("it names no directory", "path", wanted="a directory, a penstock.Path, or several", got=repr(given))
    paths = [given] if isinstance(given, (str, os.PathLike, Path)) else list(given)
    if not paths:
        refuse("it names no directory", "path", wanted="None, for states in memory, or a directory", got=repr(given))
    checked = []
    for path in paths:
        if isinstance(path, Path):
            checked.append(path)
            continue
        name = os.path.abspath(path) if isinstance(path, (str, os.PathLike)) and os.fspath(path) else ""
        if not name or "\0" in os.fspath(name) or not os.path.isdir(name):
            refuse("there is no such directory", name or repr(path), wanted="a directory that exists", got=repr(path),
                   advice="make it, or name another one as path", kind=NotFound)
        checked.append(name)
    return checked


def check_integer(name: str, given: int | None, least: int, most: int) -> None:
    if given is None or (isinstance(given, numbers.Integral) and not isinstance(given, bool) and least <= given <= most):
        return
    refuse("it is out of its range", name, wanted=f"an integer, {least} to {most}", got=repr(given))


def check_positive(name: str, given: float | None) -> None:
    if given is None or (isinstance(given, numbers.Real) and not isinstance(given, bool) and 0 < given < math.inf):
        return
    refuse("it is out of its range", name, wanted="a finite number, more than 0", got=repr(given))


def hyperparameters_of(group: dict) -> tuple[float, float, float, float, float, float]:
    """Learning rate, betas, epsilon, decay, and the factor of gradients."""
    betas = group.get("betas")
    if not isinstance(betas, (tuple, list)) or len(betas) != 2:
        refuse("they are no pair", "betas", wanted="two numbers in [0, 1), as in the groups of AdamW and Adam", got=repr(betas))
    beta1, beta2 = betas
    checked = (_number("lr", group.get("lr")), _number("betas", beta1, 1.0), _number("betas", beta2, 1.0),
               _number("eps", group.get("eps")), _number("weight_decay", group.get("weight_decay")))
    if group.get("decoupled_weight_decay") is False and checked[4] > 0:
        refuse("the decay of these groups is that of Adam, not of AdamW", "decoupled_weight_decay", wanted="True",
               got="False", kind=Unsupported)
    if group.get("amsgrad"):
        refuse("amsgrad is not supported", "amsgrad", wanted="False", got="True", kind=Unsupported)
    return *checked, -1.0 if group.get("maximize") else 1.0


def _number(name: str, given, end: float = math.inf) -> float:
    is_number = type(given) is float or (isinstance(given, numbers.Real) and not isinstance(given, bool)) \
        or (isinstance(given, torch.Tensor) and given.numel() == 1 and not given.is_complex() and not given.is_meta)
    if is_number and 0 <= (value := float(given)) < end:
        return value
    refuse("it is out of its range", name, wanted="a finite number, 0 or more" if end == math.inf else "in [0, 1)", got=repr(given))
