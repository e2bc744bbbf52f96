"""penstock.torch.AdamW, torch's fused AdamW and DeepSpeed's engine step on one model, measured alternately.

A Python with torch, deepspeed and the wheel of scripts/wheel; README.md says how to install the first two. Gradients are
there when a step begins. Beside DeepSpeed, which clips, ours clip too (max_grad_norm).
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
    arguments.add_argument("--layers", type=int, default=24)
    arguments.add_argument("--layer-parameters", type=int, default=1 << 22)
    arguments.add_argument("--budget", type=int, default=256 << 20, help="bytes of host memory for states on the drive")
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--huge-pages", action="store_true", help="make PyTorch use huge pages too; by default it does not")
    arguments.add_argument("--only", choices=["memory", "nvme"], help="leave out the states on the drive, or the others")
    options = arguments.parse_args()
    model = ["--layers", options.layers, "--layer-parameters", options.layer_parameters, "--threads", options.threads]

    def penstock(dtype, *words):
        return [HERE / "torch_adamw_contestant.py", "penstock", "--dtype", dtype, *words, *model]

    def deepspeed(device, *words):
        return [HERE / "deepspeed_step.py", "--device", device, "--path", options.path, *words, *model]
    disk = ["--path", options.path, "--budget", options.budget, "--clip"]
    # name: command, whom it is compared with
    memory = {
        "torch fused AdamW, fp32": ([HERE / "torch_adamw_contestant.py", "torch", "--dtype", "float32", *model], None),
        "Penstock, fp32": (penstock("float32"), "torch fused AdamW, fp32"),
        "DeepSpeed, cpu, bf16": (deepspeed("cpu"), None),
        "Penstock, bf16, fp32": (penstock("bfloat16", "--state-format", "fp32", "--clip"), "DeepSpeed, cpu, bf16"),
        "Penstock, bf16, split": (penstock("bfloat16", "--clip"), "DeepSpeed, cpu, bf16"),
    }
    nvme = {
        "DeepSpeed, nvme, bf16": (deepspeed("nvme", "--pipelined"), None),
        "Penstock, nvme, fp32": (penstock("bfloat16", "--state-format", "fp32", *disk), "DeepSpeed, nvme, bf16"),
        "Penstock, nvme, split": (penstock("bfloat16", *disk), "DeepSpeed, nvme, bf16"),
        "Penstock, nvme, split_q8": (penstock("bfloat16", "--state-format", "split_q8", *disk), "DeepSpeed, nvme, bf16"),
    }
    rows = {**(memory if options.only != "nvme" else {}), **(nvme if options.only != "memory" else {})}
    contestants = [Contestant(name, [sys.executable, *command], options.threads, options.huge_pages)
                   for name, (command, _) in rows.items()]
    figures = take_turns(contestants, warm_up=1, rounds=options.rounds)

    print(f"{options.layers * options.layer_parameters / 1e6:.1f} M parameters, {options.threads} threads, medians of "
          f"{options.rounds} rounds, PyTorch {'with huge pages' if options.huge_pages else 'with its default pages'}")
    print(f"{'contestant':<28}{'step, s':>9}{'spread':>9}{'peak, MB':>10}   its step / that of, its peak / that of")
    for name, (_, other) in rows.items():
        steps = [answer["step"] for answer in figures[name]]
        peak = figures[name][-1]["resident_peak"]
        beside = ""
        if other:
            others = [answer["step"] for answer in figures[other]]
            beside = f"{ratio(steps, others):.2f}, {peak / figures[other][-1]['resident_peak']:.2f}   {other}"
        print(f"{name:<28}{statistics.median(steps):>9.3f}{100 * spread(steps):>7.1f} %{peak / 1e6:>10.0f}   {beside}".rstrip())


main()
