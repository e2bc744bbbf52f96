"""Saving a run and going on from there in another process, DeepSpeed's way and ours, printed as one table.

For each contestant a process trains 3 steps, saves, and trains 2 more: the run that never stopped. Another process
loads what was saved and trains the same 2 steps. It is resumed right if both have the same parameters, to the bit.
The files are dropped from the page cache before they are loaded. DeepSpeed's are made durable by fsync, which counts:
torch.save() alone returns before they are on the disk. Contestants take turns. Needs the packages of requirements.txt;
README.md says how to install them.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def run(command, threads):
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads), DS_ACCELERATOR="cpu")
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, env=environment,
                          check=True)
    return json.loads(done.stdout.splitlines()[-1])


def drop_from_page_cache(directory):
    for file in directory.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def turn(command, path, threads):
    """One run that is saved, and one that goes on from there."""
    with tempfile.TemporaryDirectory(dir=path) as directory:
        place = pathlib.Path(directory)
        whole = run([*command, "--path", place], threads)
        drop_from_page_cache(place)
        if (place / "swap").is_dir():
            shutil.rmtree(place / "swap")  # DeepSpeed's swap files belong to the process
        resumed = run([*command, "--path", place, "--load"], threads)
    return {"save": whole["save"], "load": resumed["load"], "bytes": whole["bytes"],
            "returned": whole.get("returned", whole["save"]), "right": whole["digest"] == resumed["digest"]}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bench", default=HERE.parents[1] / "build/release/bench/bench_resume")
    arguments.add_argument("--path", required=True, help="a directory on the disk to measure")
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--layer-parameters", type=int, default=2048 * 2048, help="a square number")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    parameters = options.layers * options.layer_parameters

    def deepspeed(device):
        return [sys.executable, HERE / "deepspeed_checkpoint.py", "--layers", options.layers, "--layer-parameters",
                options.layer_parameters, "--device", device]

    def ours(device, *more):
        return [options.bench, "--parameters", parameters, "--device", device, *more]

    contestants = {
        "DeepSpeed nvme": deepspeed("nvme"),
        "Penstock nvme, commit": ours("nvme"),
        "Penstock nvme, checkpoint": ours("nvme", "--checkpoint"),
        "DeepSpeed cpu": deepspeed("cpu"),
        "Penstock cpu, commit": ours("cpu"),
        "Penstock cpu, checkpoint": ours("cpu", "--checkpoint"),
    }
    figures = {name: [] for name in contestants}
    for _ in range(options.rounds):
        for name, command in contestants.items():
            figures[name].append(turn(command, options.path, options.threads))

    print(f"{parameters / 1e6:.1f} M parameters in bf16 with fp32 masters and moments, medians of {options.rounds} rounds")
    print(f"{'':<28}{'save s':>9}{'returned':>10}{'load s':>9}{'B/parameter':>13}   resumed")
    for name, turns in figures.items():
        median = {key: statistics.median(turn[key] for turn in turns) for key in ("save", "returned", "load", "bytes")}
        right = "right" if all(turn["right"] for turn in turns) else "WRONG"
        print(f"{name:<28}{median['save']:>9.3f}{median['returned']:>10.3f}{median['load']:>9.3f}"
              f"{median['bytes'] / parameters:>13.2f}   {right}")


main()
