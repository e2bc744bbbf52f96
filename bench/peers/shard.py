"""penstock.torch.shard and DeepSpeed's ZeRO-3 on one model, one configuration, the same data, measured alternately.

A Python with torch, deepspeed and the wheel of scripts/wheel; README.md says how to install the first two. Both compute
in bf16 on the CPU, with one rank, and parameters and states in host memory or on the drive.
"""

import argparse
import pathlib
import statistics
import sys

from turns import Contestant, ratio, spread, take_turns

HERE = pathlib.Path(__file__).resolve().parent


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--path", required=True, help="a directory on the drive")
    arguments.add_argument("--layers", type=int, default=8)
    arguments.add_argument("--width", type=int, default=1024)
    arguments.add_argument("--batch", type=int, default=2)
    arguments.add_argument("--tokens", type=int, default=64)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--device", choices=["cpu", "nvme"], nargs="+", default=["cpu", "nvme"])
    options = arguments.parse_args()
    words = [word for name in ("path", "layers", "width", "batch", "tokens", "threads")
             for word in (f"--{name}", str(getattr(options, name)))]
    print(f"{options.layers} layers of width {options.width}, {options.batch * options.tokens} tokens, {options.threads} "
          f"threads, medians of {options.rounds} rounds")
    print(f"{'contestant':<20}{'step, s':>9}{'spread':>9}{'peak, MB':>10}{'last loss':>11}   step, peak / DeepSpeed's")
    for device in options.device:
        names = {name: f"{name}, {device}" for name in ("deepspeed", "penstock")}
        figures = take_turns([Contestant(text, [sys.executable, HERE / "shard_contestant.py", name, "--device", device, *words],
                                         options.threads, False) for name, text in names.items()],
                             warm_up=2, rounds=options.rounds)
        theirs, ours = (figures[text] for text in names.values())
        for text, answers in figures.items():
            steps = [answer["step"] for answer in answers]
            print(f"{text:<20}{statistics.median(steps):>9.3f}{100 * spread(steps):>7.1f} %"
                  f"{answers[-1]['resident_peak'] / 1e6:>10.0f}{answers[-1]['loss']:>11.5f}", end="")
            print(f"   {ratio(steps, [answer['step'] for answer in theirs]):.2f}, "
                  f"{answers[-1]['resident_peak'] / theirs[-1]['resident_peak']:.2f}" if answers is ours else "")
        distance = max(abs(one["loss"] - other["loss"]) / other["loss"] for one, other in zip(ours, theirs))
        print(f"  losses differ by {distance:.2g} of their value at most")


main()
