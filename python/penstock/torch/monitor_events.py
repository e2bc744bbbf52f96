"""What a trainer adds to the files of monitors."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

from .. import errors

refuse = functools.partial(errors.refuse, "Sharded.write_events")
last_place = 2**63 - 1


def checked_events(events: Iterable[tuple[str, float, int]]) -> list[tuple[str, float, int]]:
    """As the library takes them."""
    if isinstance(events, (str, bytes)) or not isinstance(events, Iterable):
        refuse("it is no list of events", "events", wanted="(name, value, place) of each", got=repr(events)[:60])
    return [_checked(f"events[{number}]", event) for number, event in enumerate(events)]


def _checked(what: str, event: tuple[str, float, int]) -> tuple[str, float, int]:
    if not isinstance(event, (tuple, list)) or len(event) != 3:
        refuse("it is no event", what, wanted="(name, value, place)", got=repr(event)[:60])
    name, value, place = event
    if not isinstance(name, str) or "\0" in name:
        refuse("it is no name", f"{what}.name", wanted="a text without control characters", got=repr(name)[:60])
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        refuse("it is no number", f"{what}.value", wanted="a number", got=repr(value)[:60])
    try:
        samples = operator.index(place)
    except (TypeError, RuntimeError):
        samples = -1
    if not 0 <= samples <= last_place:
        refuse("it is no place", f"{what}.place", wanted="an integer from 0 to 2^63 - 1", got=repr(place)[:60])
    return name, number, samples
