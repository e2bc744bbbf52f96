"""Runs contestants alternately, each in its own process.

A contestant measures one round for each line of its standard input and answers with a line of JSON. Separate
processes keep one contestant's memory out of another's peak and its data out of another's warm caches.
"""

import json
import os
import statistics
import subprocess
import sys


def claim_output():
    """Returns standard output for answers only; what libraries print from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers, measure):
    """The loop of a contestant's process; `measure` runs one round and returns its figures."""
    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)


def resident_peak():
    """Peak resident memory of this process, in bytes."""
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


class Contestant:
    """A contestant's process, seen from the script. It sleeps while others run; so do OpenMP's threads, which would
    spin by default. Penstock always asks for huge pages; PyTorch asks for them with `huge_pages` only."""

    def __init__(self, name, command, threads, huge_pages):
        environment = dict(os.environ, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="PASSIVE",
                           GOMP_SPINCOUNT="0", DS_ACCELERATOR="cpu", THP_MEM_ALLOC_ENABLE=str(int(huge_pages)))
        self.name = name
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.process.wait()}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def take_turns(contestants, warm_up, rounds):
    """Returns the figures of all rounds, by contestant. Each contestant measures twice in a round and the second
    measurement counts. The first contestant rotates from round to round, so that drift affects all alike."""
    figures = {contestant.name: [] for contestant in contestants}
    for round_number in range(-warm_up, rounds):
        for i in range(len(contestants)):
            contestant = contestants[(i + round_number) % len(contestants)]
            contestant.turn()  # warms caches and page tables that the others have used
            answer = contestant.turn()
            if round_number >= 0:
                figures[contestant.name].append(answer)
        print(f"round {round_number + 1} of {rounds}", file=sys.stderr)
    for contestant in contestants:
        contestant.close()
    return figures


def ratio(of, to):
    """The median over the rounds of `of` divided by `to`."""
    return statistics.median(a / b for a, b in zip(of, to))


def spread(values):
    """The interquartile range divided by the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return (high - low) / middle
