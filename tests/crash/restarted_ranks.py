#!/usr/bin/env python3
"""A rank is killed at the points of a step of a durable run. The ranks are started again, and go on to the digest of a
run that never stopped.

restarted_ranks.py --trainer PROGRAM [--mpi-module libpenstock_mpi.so]

With the library, the ranks exchange their bytes over MPI, under mpirun, and every fourth point is tried.
"""
import argparse
import concurrent.futures
import os
import re
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "processes"))
from processes import Job, MpiJob, free_port, skip  # noqa: E402

RANKS, SILENCE, AT_A_TIME = 3, 2, 4


def train(trainer, module, directory, *harm):
    """Returns the status and the output of each rank."""
    common = ["--ranks", RANKS, "--port", free_port(), "--silence", SILENCE, "--durable", directory, *harm]
    if module:
        job = MpiJob(RANKS, module, [trainer, "--mpi", *common])
    else:
        job = Job()
        for rank in range(RANKS):
            job.start([trainer, "--rank", rank, *common])
    with job:
        late = job.wait(range(RANKS), 60)
        output = [job.output(rank) for rank in range(RANKS)]
        assert not late, f"ranks {late} do not end:\n" + "".join(output)
        return [job.status[rank] for rank in range(RANKS)], output


def finish(trainer, module, directory):
    """The digest and the points of a step of a run that comes to no harm."""
    status, output = train(trainer, module, directory)
    assert status == [0] * RANKS and len(set(output)) == 1, f"{status}:\n" + "".join(output)
    return re.search(r"digest (\w+), points of a step (\d+)", output[0]).groups()


def kill_and_restart(trainer, module, point, expected):
    """Returns what is wrong."""
    victim = point % RANKS
    what = f"rank {victim} killed at point {point}"
    with tempfile.TemporaryDirectory(dir=".") as directory:
        status, output = train(trainer, module, directory, "--point", point, "--victim", victim, "--harm", "kill")
        if 0 in status:
            return f"{what}: a rank has ended well, {status}:\n" + "".join(output)
        try:
            digest, _ = finish(trainer, module, directory)
        except AssertionError as error:
            return f"{what}: the restart fails: {error}"
        return None if digest == expected else f"{what}: digest {digest}, not {expected}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--mpi-module")
    arguments = parser.parse_args()
    trainer, module = arguments.trainer, arguments.mpi_module
    if module and not shutil.which("mpirun"):
        skip("mpirun is not installed")
    with tempfile.TemporaryDirectory(dir=".") as directory:
        expected, count = finish(trainer, None, directory)
    points = range(0, int(count), 4 if module else 1)
    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        results = pool.map(lambda point: kill_and_restart(trainer, module, point, expected), points)
        wrong = [result for result in results if result]
    print("\n".join(wrong) or f"{len(points)} crash points, none lost")
    return 1 if wrong else 0


raise SystemExit(main())
