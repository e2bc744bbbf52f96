"""What Python costs a step of penstock.torch.AdamW: beside PyTorch's fused AdamW, a step of a transformer's tensors, and one
of as many tensors of a single element, which is overhead alone. In turns, medians.

A Python with torch and the wheel of scripts/wheel.
"""

import argparse
import statistics
import time

import penstock.torch
import torch
from penstock.torch import host_update

library_seconds = 0.0
_step_tiles = host_update._step_tiles


def timed(*arguments):
    global library_seconds
    began = time.perf_counter()
    found = _step_tiles(*arguments)
    library_seconds += time.perf_counter() - began
    return found


class Nothing(torch.optim.Optimizer):
    def __init__(self):
        super().__init__([torch.nn.Parameter(torch.zeros(1))], {})

    @torch.no_grad()
    def step(self, closure=None):
        pass


def shapes_of(layers, width):
    """Those of GPT-2's blocks."""
    for _ in range(layers):
        for rows in (3 * width, width, 4 * width):
            yield rows, width
            yield (rows,)
        yield width, 4 * width
        yield (width,)
        for _ in range(2):
            yield (width,)
            yield (width,)


def optimizer_of(kind, shapes, options):
    parameters = []
    for shape in shapes:
        parameter = torch.nn.Parameter(torch.randn(shape) * 0.02)
        parameter.grad = torch.randn(shape) * 1e-3
        parameters.append(parameter)
    if kind == "torch":
        return torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    return penstock.torch.AdamW(parameters, lr=1e-4, threads=options.threads)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--layers", type=int, default=16)
    arguments.add_argument("--width", type=int, default=1024)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=15)
    options = arguments.parse_args()
    torch.set_num_threads(options.threads)
    shapes = list(shapes_of(options.layers, options.width))
    tiny = [(1,)] * len(shapes)
    contestants = {name: optimizer_of(kind, of, options) for name, kind, of in (
        ("ours", "ours", shapes), ("ours, of one element", "ours", tiny), ("torch fused", "torch", shapes),
        ("torch fused, of one element", "torch", tiny))}
    contestants["nothing"] = Nothing()
    times = {name: [] for name in contestants}
    in_library = []
    host_update._step_tiles = timed
    for turn in range(options.rounds + 1):
        for name, optimizer in contestants.items():
            global library_seconds
            library_seconds = 0.0
            began = time.perf_counter()
            optimizer.step()
            if turn > 0:
                times[name].append(time.perf_counter() - began)
                if name == "ours, of one element":
                    in_library.append(library_seconds)
    elements = sum(torch.Size(shape).numel() for shape in shapes)
    print(f"{elements / 1e6:.0f} M parameters in {len(shapes)} tensors, {options.threads} threads, medians of {options.rounds} rounds")
    for name in ("ours", "torch fused"):
        step, overhead = (statistics.median(times[key]) for key in (name, f"{name}, of one element"))
        text = f"{name:<14}{1e3 * step:>8.1f} ms a step{1e6 * overhead / len(shapes):>8.1f} us a tensor{100 * overhead / step:>8.2f} % of the step"
        if name == "ours":
            python = overhead - statistics.median(in_library) - statistics.median(times["nothing"])
            text += f"; our Python {1e6 * python / len(shapes):.1f} us, {100 * python / step:.2f} %"
        print(text)


main()
