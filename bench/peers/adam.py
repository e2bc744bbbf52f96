"""CPU Adam of Penstock, PyTorch, DeepSpeed, bitsandbytes and torchao, measured alternately and printed as one table.

Each updates one flat tensor. Needs the packages of requirements.txt; README.md says how to install them.
"""

import argparse
import pathlib
import statistics
import sys

from turns import Contestant, ratio, spread, take_turns

HERE = pathlib.Path(__file__).resolve().parent
# PEERS update as many elements as ours; SLOW_PEERS are too slow for that and update fewer.
PEERS = ["torch fused AdamW", "DeepSpeedCPUAdam", "DeepSpeedCPUAdam bf16", "DeepSpeed tail",
         "DeepSpeed tail bf16", "DeepSpeed tail bf16, float norm"]
SLOW_PEERS = ["bitsandbytes AdamW8bit", "torchao AdamW8bit"]
# Which of our rows each peer is compared with. "DeepSpeed tail" (fp32 gradients) computes no norm, so it is compared
# with our update alone, which computes none either, and with our tail, which does.
OURS = {"torch fused AdamW": ["fp32"], "DeepSpeedCPUAdam": ["fp32"], "DeepSpeedCPUAdam bf16": ["fp32"],
        "DeepSpeed tail": ["fp32 nontemporal", "tail fp32", "tail split"], "DeepSpeed tail bf16": ["tail fp32"],
        "DeepSpeed tail bf16, float norm": ["tail fp32"], "bitsandbytes AdamW8bit": ["split_q8"],
        "torchao AdamW8bit": ["split_q8"]}


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--bench", default=HERE.parents[1] / "build/release/bench/bench_cpu_adam")
    arguments.add_argument("--elements", type=int, default=64 << 20)
    arguments.add_argument("--slow-elements", type=int, default=4 << 20)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--rounds", type=int, default=11)
    arguments.add_argument("--huge-pages", action="store_true", help="make PyTorch use huge pages too; by default it does not")
    options = arguments.parse_args()

    elements = {name: options.elements for name in PEERS} | {name: options.slow_elements for name in SLOW_PEERS}
    contestants = [Contestant("Penstock", [options.bench, "--turns", "--tail", "--elements", options.elements,
                                           "--threads", options.threads], options.threads, options.huge_pages)]
    for name, count in elements.items():
        contestants.append(Contestant(name, [sys.executable, HERE / "adam_contestant.py", name, "--elements",
                                             count, "--threads", options.threads], options.threads,
                                      options.huge_pages))

    # seconds per parameter, by row
    rows = {}
    for contestant, answers in take_turns(contestants, warm_up=1, rounds=options.rounds).items():
        for name in answers[0]["seconds"]:
            count = elements.get(contestant, options.elements)
            rows[name] = [answer["seconds"][name] / count for answer in answers]

    print(f"{options.elements / 1e6:.1f} M parameters ({options.slow_elements / 1e6:.1f} M for the 8-bit peers), "
          f"{options.threads} threads, medians of {options.rounds} rounds, PyTorch "
          f"{'with huge pages' if options.huge_pages else 'with its default pages'}")
    print(f"{'contestant':<34}{'G param./s':>12}{'spread':>9}   our rate / its rate")
    for name, seconds in rows.items():
        ratios = ", ".join(f"{ours}: {ratio(seconds, rows[ours]):.2f}" for ours in OURS.get(name, []))
        print(f"{name:<34}{1e-9 / statistics.median(seconds):>12.3f}{100 * spread(seconds):>7.1f} %   {ratios}".rstrip())


main()
