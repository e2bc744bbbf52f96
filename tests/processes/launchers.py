#!/usr/bin/env python3
"""Ranks that are processes, started as users start them, train the example to the digest of as many threads.

launchers.py options|mpirun|torchrun|hosts|names --train gpt_train [--mpi-module libpenstock_mpi.so]
"""
import argparse
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from processes import Job, free_port, skip, two_hosts

CONFIG = """{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "%s"},
                       "offload_optimizer": {"device": "nvme", "nvme_path": "%s"}}}"""
SHAPE = "--layers 2 --width 64 --heads 4 --context 32 --steps 4".split()


def digest_in(text):
    found = re.findall(r"digest of all master weights\s+(\w+)", text)
    assert len(found) == 1, f"{len(found)} digests, not 1:\n{text}"
    return found[0]


def run(command, **more):
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                           env={**os.environ, **more})
    assert ended.returncode == 0, f"{command} ends with status {ended.returncode}:\n{ended.stdout}"
    return ended.stdout


def as_processes(job, commands):
    for command in commands:
        job.start(command)
    late = job.wait(range(len(commands)), 120)
    text = "".join(job.output(rank) for rank in range(len(commands)))
    assert not late and all(job.status[rank] == 0 for rank in range(len(commands))), f"late {late}:\n{text}"
    return digest_in(text)


def with_names(on_host, folder, addresses):
    """Runs commands where node0 has an address of each host's own, as on Debian: there, a host's name is 127.0.1.1."""
    for host, address in enumerate(addresses):
        with open(os.path.join(folder, f"hosts{host}"), "w", encoding="utf-8") as file:
            file.write(f"127.0.0.1 localhost\n{address} node0\n")
    return lambda host, command: on_host(host, [
        "unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', os.path.join(folder, f"hosts{host}"),
        *command])


def compare(what, ranks, expected, digest):
    assert digest == expected, f"{what}, {ranks} ranks: digest {digest}, of threads {expected}"
    print(f"{what}, {ranks} ranks: {digest}, as of threads")


def check_signal(train):
    """A signal to one process ends all after the same step."""
    master = f"127.0.0.1:{free_port()}"
    with Job() as job:
        for rank in range(2):
            job.start([*train, "--steps", "100000", "--rank", rank, "--world", 2, "--master", master])
        while "step 3/" not in job.output(0):
            assert job.processes[0].poll() is None, job.output(0)
            time.sleep(0.01)
        job.processes[1].send_signal(signal.SIGTERM)
        late = job.wait(range(2), 60)
        assert not late and set(job.status.values()) == {128 + signal.SIGTERM}, (job.status, job.output(0), job.output(1))


def check_notice(train):
    """Ranks that wait say for whom, and train once it has come."""
    port = free_port()
    start = lambda job, rank: job.start([*train, "--rank", rank, "--world", 3, "--master", f"127.0.0.1:{port}"])
    with Job() as job:
        start(job, 0)
        start(job, 1)
        expected = [f"note: rank 0 waits since 5 s: rank 2 did not come yet at 127.0.0.1:{port + 1}",
                    f"note: rank 1 waits since 5 s: rank 0 at 127.0.0.1:{port + 1} still awaits other ranks"]
        end = time.monotonic() + 60
        while any(line not in job.output(rank) for rank, line in enumerate(expected)):
            assert time.monotonic() < end, (job.output(0), job.output(1))
            time.sleep(0.05)
        start(job, 2)
        late = job.wait(range(3), 120)
        assert not late and set(job.status.values()) == {0}, (late, job.status, job.output(0))
        print("; ".join(expected))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("launcher", choices=["options", "mpirun", "torchrun", "hosts", "names"])
    parser.add_argument("--train", required=True)
    parser.add_argument("--mpi-module")
    arguments = parser.parse_args()
    if arguments.launcher in ("mpirun", "torchrun") and not shutil.which(arguments.launcher):
        skip(f"{arguments.launcher} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "ds_config.json")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG % (folder, folder))
        train = [arguments.train, "--config", config, *SHAPE]
        for ranks in (2, 4):
            expected = digest_in(run([*train, "--ranks", str(ranks)]))
            if arguments.launcher == "options":
                master = f"127.0.0.1:{free_port()}"
                with Job() as job:
                    compare("processes", ranks, expected, as_processes(job, [
                        [*train, "--rank", rank, "--world", ranks, "--master", master] for rank in range(ranks)]))
            elif arguments.launcher == "hosts":
                with two_hosts("penstock") as (on_host, addresses, _), Job() as job:
                    master = f"{addresses[0]}:{free_port()}"
                    compare("two hosts", ranks, expected, as_processes(job, [
                        on_host(rank * 2 // ranks, [*train, "--rank", rank, "--world", ranks, "--master", master])
                        for rank in range(ranks)]))
            elif arguments.launcher == "names":
                with two_hosts("penstockn") as (on_host, addresses, _), Job() as job:
                    named = with_names(on_host, folder, ["127.0.1.1", addresses[0]])
                    master = f"node0:{free_port()}"
                    compare("two hosts, by name", ranks, expected, as_processes(job, [
                        named(rank * 2 // ranks, [*train, "--rank", rank, "--world", ranks, "--master", master])
                        for rank in range(ranks)]))
            elif arguments.launcher == "torchrun":
                compare("torchrun", ranks, expected, digest_in(
                    run(["torchrun", "--nproc-per-node", str(ranks), "--no-python", *train])))
            else:
                mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
                as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
                compare("mpirun, TCP", ranks, expected, digest_in(run([*mpirun, *train], **as_root)))
                if arguments.mpi_module:
                    compare("mpirun, MPI", ranks, expected, digest_in(
                        run([*mpirun, *train, "--mpi"], **as_root)))
        if arguments.launcher == "options":
            check_signal(train)
            check_notice(train)
    return 0


raise SystemExit(main())
