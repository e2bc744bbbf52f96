"""Contestants as processes that take turns.

A contestant measures one round for each line of its standard input and answers with a line of JSON. Each has
its own process, so that what one allocates is not another's peak, and nothing of one is warm for another.
"""

import json
import os
import statistics
import subprocess
import sys


def claim_output():
    """Standard output, for answers alone: what libraries print from now on goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def serve(answers, measure):
    """The contestant's side: `measure` returns the figures of a round."""
    for _ in sys.stdin:
        print(json.dumps(measure()), file=answers, flush=True)


def resident_peak():
    """Of this process, in bytes."""
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


class Contestant:
    """The other side. Sleeps between its turns; OpenMP's threads do too, they would spin otherwise. We ask for huge
    pages; PyTorch does when told to, which it is not as it comes."""

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
    """The figures of all rounds, by contestant: a turn is two measurements, of which the second counts. Who
    begins moves on, so that drift favours nobody."""
    figures = {contestant.name: [] for contestant in contestants}
    for round_number in range(-warm_up, rounds):
        for i in range(len(contestants)):
            contestant = contestants[(i + round_number) % len(contestants)]
            contestant.turn()  # finds what the others left in caches and page tables
            answer = contestant.turn()
            if round_number >= 0:
                figures[contestant.name].append(answer)
        print(f"round {round_number + 1} of {rounds}", file=sys.stderr)
    for contestant in contestants:
        contestant.close()
    return figures


def ratio(of, to):
    """The median of of/to, round by round."""
    return statistics.median(a / b for a, b in zip(of, to))


def spread(values):
    """Between the quartiles, as a part of the median."""
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
    return (high - low) / middle
