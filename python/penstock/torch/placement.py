"""Where the states of AdamW are: which tiles stay in memory, and which pass through it from disk."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .. import Path
from ..errors import BudgetTooSmall
from .arguments import refuse

_small_bytes = 1 << 20  # states of a parameter, of at most so many, stay in memory
_alignment = 4096  # bytes, of a tensor in a runtime
_window = 32 << 20  # bytes of memory through which states of one drive pass
_budget_beside_small = 256 << 20  # bytes, where none is given


@dataclasses.dataclass
class Placement:
    """budget: bytes of the runtime. in_memory: of each parameter's tiles, whether they stay there. lookahead: bytes that
    are loaded before their use. paths: of the runtime; none where all tiles stay in memory."""

    budget: int
    in_memory: list[list[bool]]
    lookahead: int
    paths: list[Path]


def place(parameters: Sequence[Sequence[int]], budget: int | None, paths: Sequence[str | Path]) -> Placement:
    """The placement of tiles with so many bytes, in the order of their use.

    Small parameters stay in memory. Of the others as many tiles stay there as the budget holds beside the window, spread
    over the step: the drive works while they are updated. Raises BudgetTooSmall."""
    sizes = [[-(-size // _alignment) * _alignment for size in tiles] for tiles in parameters]
    is_small = [not paths or sum(tiles) <= _small_bytes for tiles in sizes]
    small = sum(sum(tiles) for tiles, one in zip(sizes, is_small) if one)
    large = [size for tiles, one in zip(sizes, is_small) if not one for size in tiles]
    largest = max(large, default=0)
    if budget is None:
        budget = small + max(_budget_beside_small, 4 * largest)
    if small + sum(large) <= budget:
        return Placement(max(small + sum(large), _alignment), [[True] * len(tiles) for tiles in sizes], _window, [])
    if small + 2 * largest > budget:
        two_tiles = "raise it, or lower tile_elements: two tiles must fit beside small parameters" if largest > 0 else \
            f"raise it: states of parameters with at most {_small_bytes} bytes of them stay in memory"
        refuse("it is too small for the states", "budget", wanted=f"at least {small + 2 * largest} bytes", got=str(budget),
               advice=two_tiles if paths else "raise it, or name a path for the states", kind=BudgetTooSmall)

    window = max(_window * len(paths), 4 * largest)
    most = max(0, budget - small - window)  # bytes of large parameters that stay
    staying = passed = 0
    in_memory = []
    for tiles, one in zip(sizes, is_small):
        in_memory.append([])
        for size in tiles:
            passed += 0 if one else size
            stays = one or (staying + size) * sum(large) <= most * passed
            staying += size if stays and not one else 0
            in_memory[-1].append(stays)
    return Placement(budget, in_memory, window, _with_capacity(paths, sum(large) - staying, largest))


def _with_capacity(paths: Sequence[str | Path], total: int, largest: int) -> list[Path]:
    """Directories reserve an equal share of the bytes, and what does not fit in the paths of a given capacity."""
    given = [path.capacity for path in paths if isinstance(path, Path)]
    plain = len(paths) - len(given)
    share = -(-total // len(paths))
    if plain > 0:
        share += -(-sum(max(0, share - capacity // largest * largest) for capacity in given) // plain)
    return [path if isinstance(path, Path) else Path(path, capacity=share + largest) for path in paths]
