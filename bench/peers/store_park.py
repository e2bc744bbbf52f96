"""Parking a penstock.Store and a module of PyTorch, and reads and writes of as many bytes by penstock.Files, alternately.

A Python with torch and the wheel of scripts/wheel. Parked memory goes to the operating system, so the reads that stand
beside unpark() go to new memory too.
"""

import argparse
import statistics
import tempfile
import time

import penstock
import penstock.torch
import torch

mib = 1 << 20


def seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


class Disk:
    """The floor: large blocks of one file."""

    def __init__(self, directory, nbytes):
        self.files = penstock.Files()
        self.file, self.nbytes = f"{directory}/file", nbytes
        self.memory = penstock.HostMemory(nbytes)
        memoryview(self.memory)[:] = bytes(nbytes)

    def write(self):
        self._each(self.files.begin_write, self.memory)

    def read(self):
        self._each(self.files.begin_read, penstock.HostMemory(self.nbytes))

    def _each(self, begin, memory):
        view = memoryview(memory)
        for first in range(0, self.nbytes, 16 * mib):
            begin(self.file, view[first:first + 16 * mib], first)
        self.files.wait()


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--path", required=True, help="a directory on the drive")
    arguments.add_argument("--mib", type=int, default=1536)
    arguments.add_argument("--layers", type=int, default=24)
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    nbytes = options.mib * mib
    with tempfile.TemporaryDirectory(dir=options.path) as directory:
        disk = Disk(directory, nbytes)
        path = penstock.Path(directory, capacity=nbytes + 256 * mib)
        store = penstock.Store(nbytes + 64 * mib, [path])
        width = int((nbytes / 4 / options.layers) ** 0.5)
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(options.layers)])
        bytes_of_model = sum(parameter.nbytes for parameter in model.parameters())
        small = penstock.Store(nbytes // 3, [path])  # the module goes through it to the drive
        values = [torch.randn(16 * mib // 4) for _ in range(nbytes // (16 * mib))]
        times = {name: [] for name in ("write", "Store.park", "torch.park", "read", "Store.unpark", "torch unpark")}
        for turn in range(options.rounds + 1):
            for number, one in enumerate(values):
                store.put(str(number), one)  # changed: parking writes them again
            taken = {"write": seconds(disk.write), "Store.park": seconds(store.park),
                     "read": seconds(disk.read), "Store.unpark": seconds(store.unpark)}
            parked = []
            taken["torch.park"] = seconds(lambda: (parked.append(penstock.torch.park(model, small)), small.flush()))
            taken["torch unpark"] = seconds(parked[0].unpark)
            for name, one in taken.items():
                if turn > 0:
                    times[name].append(one)
        small.close()
        store.close()
    print(f"{options.mib} MiB, medians of {options.rounds} rounds")
    for name, those in times.items():
        size = bytes_of_model if name.startswith("torch") else nbytes
        floor = times["write" if "unpark" not in name and name != "read" else "read"]
        rates = [size / one / 1e9 for one in those]
        ratio = statistics.median(rate / (nbytes / one / 1e9) for rate, one in zip(rates, floor))
        print(f"{name:<14}{statistics.median(rates):>7.2f} GB/s   {ratio:.2f} of the disk")


main()
