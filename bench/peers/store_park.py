"""Parking a penstock.Store and a module of PyTorch, and reads and writes of as many bytes by penstock.Files, alternately.

A Python with torch and the wheel of scripts/wheel. Parked memory goes to the operating system, so the reads that stand
beside unpark() go to new memory too. Clearing it costs what the machine makes of it: some virtual machines give pages
that were free for a second back to their host, and take several times as long to get them again.
"""

import argparse
import statistics
import tempfile
import time

import penstock
import penstock.torch
import torch

mib = 1 << 20
block = 64 * mib  # a layer


def seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Disk:
    """The floor: blocks of one file, to and from memory that is free between."""

    def __init__(self, directory, nbytes):
        self.files = penstock.Files()
        self.file, self.nbytes, self.memories = f"{directory}/file", nbytes, []
        self._allocate()

    def _allocate(self):
        self.memories = [penstock.HostMemory(block) for _ in range(self.nbytes // block)]

    def park(self):
        self._each(self.files.begin_write)
        self.memories = []

    def unpark(self):
        self._allocate()
        self._each(self.files.begin_read)

    def _each(self, begin):
        for number, memory in enumerate(self.memories):
            view = memoryview(memory)
            for first in range(0, block, 16 * mib):
                begin(self.file, view[first:first + 16 * mib], number * block + first)
        self.files.wait()


class Module:
    """Through a store of a third of the size to the drive."""

    def __init__(self, path, nbytes):
        width = int((block / 4) ** 0.5)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(nbytes // block)])
        self.store = penstock.Store(nbytes // 3, [path])

    def park(self):
        self.parked = penstock.torch.park(self.model, self.store)
        self.store.flush()

    def unpark(self):
        self.parked.unpark()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--path", required=True, help="a directory on the drive")
    arguments.add_argument("--mib", type=int, default=1536)
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    nbytes = options.mib * mib // block * block
    with tempfile.TemporaryDirectory(dir=options.path) as directory:
        path = penstock.Path(directory, capacity=nbytes + 256 * mib)
        store = penstock.Store(nbytes + 64 * mib, [path])
        contestants = {"disk": Disk(directory, nbytes), "Store": store, "torch.park": Module(path, nbytes)}
        values = [torch.randn(16 * mib // 4) for _ in range(nbytes // (16 * mib))]
        times = {name: {"park": [], "unpark": []} for name in contestants}
        for turn in range(options.rounds + 1):
            for number, one in enumerate(values):
                store.put(str(number), one)  # changed: parking writes them again
            for name, contestant in contestants.items():
                for call, taken in times[name].items():
                    one = seconds(getattr(contestant, call))
                    if turn > 0:
                        taken.append(one)
        contestants["torch.park"].store.close()
        store.close()
    print(f"{nbytes // mib} MiB, medians of {options.rounds} rounds, GB/s and shares of the disk")
    for name, calls in times.items():
        row = f"{name:<12}"
        for call, taken in calls.items():
            ratio = statistics.median(floor / one for one, floor in zip(taken, times["disk"][call]))
            row += f"{call:>8} {nbytes / statistics.median(taken) / 1e9:5.2f} {ratio:5.2f}"
        print(row)


main()
