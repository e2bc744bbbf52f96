#!/usr/bin/env python3
"""bench_collectives measures what it says, between processes and under mpirun.

bench_collectives.py --bench PROGRAM [--mpi-module libpenstock_mpi.so]
"""
import argparse
import os
import re
import shutil
import subprocess

from processes import Job, free_port

SETTINGS = ["--slots", "16", "64", "--rounds", "2", "--seconds", "0.001"]


def check_report(text, contestants):
    for collective in ("all-gather", "reduce-scatter"):
        for slot in ("16.0 KiB", "64.0 KiB"):
            table = re.search(rf"{collective}, slots of {slot}\n.*\n((?: +.+\n)+)", text)
            assert table, f"no table of {collective}, {slot}:\n{text}"
            rows = re.findall(r"^ +(\S.*?) {2,}(\d+\.\d{3}) +\d+% +(\d+\.\d{3})", table.group(1), re.M)
            assert [name for name, _, _ in rows] == contestants, f"{rows} in\n{text}"
            assert rows[0][2] == "1.000" and all(float(rate) > 0 for _, rate, _ in rows), text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bench", required=True)
    parser.add_argument("--mpi-module")
    arguments = parser.parse_args()
    with Job() as job:
        master = f"127.0.0.1:{free_port()}"
        for rank in range(2):
            job.start([arguments.bench, *SETTINGS, "--rank", rank, "--world", 2, "--master", master])
        late = job.wait(range(2), 60)
        assert not late and job.status == {0: 0, 1: 0}, job.output(0) + job.output(1)
        check_report(job.output(0), ["memcpy", "TCP"])
        assert job.output(1) == "", job.output(1)
    alone = subprocess.run([arguments.bench], capture_output=True, text=True, timeout=60)
    assert alone.returncode == 2 and "one process exchanges nothing" in alone.stderr, alone
    assert subprocess.run([arguments.bench, "--rounds", "0"], capture_output=True).returncode == 2
    if not arguments.mpi_module or not shutil.which("mpirun"):
        print("without MPI")
        return 0
    ended = subprocess.run(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", "2", arguments.bench, *SETTINGS],
                           capture_output=True, text=True, timeout=120,
                           env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                                "PENSTOCK_MPI": arguments.mpi_module})
    assert ended.returncode == 0, ended
    check_report(ended.stdout, ["memcpy", "bare MPI", "TCP", "MPI"])
    return 0


raise SystemExit(main())
