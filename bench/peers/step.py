"""The optimizer step of one model, DeepSpeed's and ours, measured alternately and printed as one table.

Two times are measured. "step" is the optimizer step; for DeepSpeed it includes writing gradients to disk during
backward. "accumulate" is copying gradients to host memory and accumulating them there, with their norm. What DeepSpeed
does to a gradient before partitioning it, the copy into a bucket and the average, is not counted. Needs the packages of
requirements.txt; README.md says how to install them.
"""

import argparse
import pathlib
import statistics
import sys

from turns import Contestant, ratio, spread, take_turns

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bench", default=HERE.parents[1] / "build/release/bench/optimizer_step")
    arguments.add_argument("--path", required=True, help="a directory on the disk to measure")
    arguments.add_argument("--layers", type=int, default=16)
    arguments.add_argument("--layer-parameters", type=int, default=4096 * 4096, help="a square number")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--huge-pages", action="store_true", help="make PyTorch use huge pages too; by default it does not")
    arguments.add_argument("--host-mib", type=int, default=5000,
                           help="host budget of our `in memory` run in MiB; less than the peak of DeepSpeed's pipelined step")
    options = arguments.parse_args()
    parameters = options.layers * options.layer_parameters

    def ours(*more):
        return [options.bench, "--turns", "--path", options.path, "--parameters", parameters,
                "--unit-parameters", options.layer_parameters, "--threads", options.threads, *more]

    def deepspeed(*more):
        return [sys.executable, HERE / "deepspeed_step.py", "--path", options.path, "--layers", options.layers,
                "--layer-parameters", options.layer_parameters, "--threads", options.threads, *more]

    # A group is a baseline and what is compared with it. Groups run one after the other: together they would not fit
    # in memory.
    groups = [
        ("DeepSpeed nvme, pipelined", {
            "DeepSpeed nvme, pipelined": deepspeed("--device", "nvme", "--pipelined"),
            "DeepSpeed nvme": deepspeed("--device", "nvme"),
            "Penstock nvme fp32": ours("--format", "fp32"),
            "Penstock nvme split_bf16": ours("--format", "split_bf16"),
            "Penstock nvme split_q8": ours("--format", "split_q8"),
            "Penstock nvme fp32, in memory": ours("--format", "fp32", "--host-mib", options.host_mib),
        }),
        ("DeepSpeed cpu", {
            "DeepSpeed cpu": deepspeed("--device", "cpu"),
            "Penstock cpu fp32": ours("--format", "fp32", "--device", "cpu"),
            "Penstock cpu split_bf16": ours("--format", "split_bf16", "--device", "cpu"),
        }),
    ]
    figures, against = {}, {}
    for baseline, commands in groups:
        contestants = [Contestant(name, command, options.threads, options.huge_pages)
                       for name, command in commands.items()]
        figures |= take_turns(contestants, warm_up=2, rounds=options.rounds)
        against |= {name: baseline for name in commands if name != baseline}

    steps = {name: [answer["step"] for answer in answers] for name, answers in figures.items()}
    totals = {name: [answer["step"] + answer["gradient_accumulation"] for answer in answers]
              for name, answers in figures.items()}
    print(f"{parameters / 1e6:.1f} M parameters, {options.threads} threads, medians of {options.rounds} rounds, PyTorch "
          f"{'with huge pages' if options.huge_pages else 'with its default pages'}; "
          "bytes of disk traffic a parameter")
    print(f"{'contestant':<30}{'step':>8}{'spread':>9}{'accumulate':>12}{'read':>7}{'written':>9}{'peak GiB':>10}"
          "   times as fast: step, step + accumulate")
    for name, answers in figures.items():
        median = {key: statistics.median(answer[key] for answer in answers) for key in answers[0]}
        line = (f"{name:<30}{median['step']:>8.3f}{100 * spread(steps[name]):>7.1f} %"
                f"{median['gradient_accumulation']:>12.3f}"
                f"{median['read'] / parameters:>7.2f}{median['written'] / parameters:>9.2f}"
                f"{median['resident_peak'] / GIB:>10.2f}")
        if name in against:
            baseline = against[name]
            line += (f"   {ratio(steps[baseline], steps[name]):.2f}, {ratio(totals[baseline], totals[name]):.2f} "
                     f"as {baseline}")
        print(line)


main()
