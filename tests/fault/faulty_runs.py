#!/usr/bin/env python3
"""Runs programs where their file system or their system calls fail, and judges how they end.

    faulty_runs.py fuse  --train GPT_TRAIN --file-system FAULTY_FILE_SYSTEM [--first SEED] [--seeds N]
    faulty_runs.py calls --train GPT_TRAIN
    faulty_runs.py hang  --train GPT_TRAIN --file-system FAULTY_FILE_SYSTEM --penstock PENSTOCK --nvme-swap NVME_SWAP
                         --optimizer-step OPTIMIZER_STEP

fuse, calls: a run of gpt_train may end with status 0 and the digest of a run without faults, or with one error and
status 1, or 2 where its configuration is refused. A wrong digest, a signal, another status or more than --seconds fails
the test. hang: a program whose directory does not answer, when it starts or during the run, names it in an error at its
deadline, and ends when the kernel lets it. Exits with 77 where FUSE or strace is refused.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

SKIPPED = 77
ERROR = re.compile(r"^error: ", re.MULTILINE)
LABEL = re.compile(r"digest of all master weights +([0-9a-f]{32})")

# (kind, operations that it can hit). A request is chosen up to the number that a run makes.
FAULTS = [
    ("eio", {"read": 60, "write": 60, "create": 5, "fallocate": 2, "statfs": 5, "unlink": 5}),
    ("enospc", {"write": 60, "create": 5, "fallocate": 2}),
    ("shorten", {"read": 60, "write": 60}),
    ("flip", {"read": 60}),
    ("lose", {"write": 60}),
    ("delay", {"read": 60, "write": 60, "fallocate": 2, "create": 5}),
    ("hang", {"read": 60, "write": 60, "fallocate": 2, "create": 5, "getattr": 5, "statfs": 5}),
]

# (system call, errors, first number, I/O engine). OpenBLAS starts a thread for each further core before main() and
# ends the process with SIGINT where it cannot.
CALLS = [
    ("fallocate", ["ENOSPC", "EIO", "EINTR"], 1, "io_uring"),
    ("fstatfs", ["EIO"], 1, "io_uring"),
    ("io_uring_setup", ["EPERM", "ENOMEM"], 1, "automatic"),
    ("io_uring_register", ["ENOMEM"], 1, "io_uring"),
    ("io_uring_enter", ["EAGAIN", "EINTR", "EBADF"], 1, "io_uring"),
    ("io_setup", ["EAGAIN"], 1, "libaio"),
    ("io_submit", ["EIO", "EAGAIN"], 1, "libaio"),
    ("eventfd2", ["EMFILE"], 1, "io_uring"),
    ("pread64", ["EIO"], 4, "threads"),
    ("pwrite64", ["EIO", "ENOSPC"], 1, "threads"),
    ("clone3", ["EAGAIN"], os.cpu_count() or 1, "threads"),
    ("madvise", ["ENOMEM"], 1, "io_uring"),
]
NUMBERS = 3  # consecutive calls of each that fail, one run each

# Operations on a directory when a program starts that hang, and how the program says so.
HANGS = ["getattr", "statfs", "create", "fallocate", "read", "flush"]
ENGINES = ["io_uring", "libaio", "threads"]
# Requests during a run without an answer: the operation, and the first of them. Engines that are tried out, and the
# examination of direct I/O, read before.
STALLS = [("write", 0), ("read", 8)]
LARGE = 3000  # MiB: as much as `penstock tune` asks for
DEADLINE_PASSED = re.compile(r"1 s without an answer|did not answer within 1 s")
HANG_SECONDS = 5  # of faulty_file_system.cpp
STEP = re.compile(r"^step ", re.MULTILINE)


class Trainer:
    """A small model on a directory."""

    def __init__(self, program, work, seconds):
        self.program, self.work, self.seconds = program, work, seconds
        self.text = work / "text"
        self.text.write_text("".join(f"the quick brown fox jumps over the lazy dog {i}\n" for i in range(4000)))

    def command(self, swap, engine="automatic", steps=3):
        config = self.work / "config.json"
        nvme = {"device": "nvme", "nvme_path": str(swap)}
        config.write_text(json.dumps({
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
            "penstock": {"io_deadline_seconds": 1, "tile_elements": 16384, "host_budget": "4MiB",
                         "io_engine": engine}}))
        return [str(self.program), "--layers", "1", "--width", "64", "--heads", "2", "--context", "32", "--steps", str(steps),
                "--text", str(self.text), "--config", str(config)]

    def run(self, command):
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, timeout=self.seconds)
        except subprocess.TimeoutExpired as late:
            return None, (late.stdout or b"").decode(errors="replace")
        return done.returncode, done.stdout


def digest(output):
    found = LABEL.search(output)
    return found.group(1) if found else None


def complaint(status, output, reference):
    """Why a run did not end as it should, or None."""
    if status is None:
        return "it did not end in time"
    if status == 0:
        return None if digest(output) == reference else "it succeeded with wrong bits"
    if status not in (1, 2):
        return f"it ended with status {status}"
    if digest(output) is not None:
        return "it failed and printed a digest"
    return None if len(ERROR.findall(output)) == 1 else "it failed without one error"


class FaultyFileSystem:
    """The program, mounted on an empty directory."""

    def __init__(self, program, directory, fault, mib=64):
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.process = subprocess.Popen([str(program), str(directory), *map(str, fault), str(mib)],
                                        stdout=subprocess.PIPE, text=True)
        self.ready = self.process.stdout.readline().strip() == "ready"

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        rest = self.process.communicate()[0]
        if self.process.returncode < 0:
            subprocess.run(["umount", "--lazy", str(self.directory)], check=False)
        found = re.search(r"injected (\d+)", rest)
        return int(found.group(1)) if found else 0


def choose(seed):
    choice = random.Random(seed)
    kind, operations = FAULTS[seed % len(FAULTS)]
    operation = choice.choice(sorted(operations))
    return kind, operation, choice.randrange(operations[operation]), choice.choice([1, 1, 1, 3, 1000]), seed


def judge(name, status, output, reference, failures, counts):
    why = complaint(status, output, reference)
    counts["right" if status == 0 else "error" if status in (1, 2) else "other"] += 1
    if why is None:
        return
    failures.append(name)
    print(f"FAILED {name}: {why}\n{output}", flush=True)


def run_fuse(arguments, trainer, work):
    directory = work / "mounted"
    counts, failures, hits, reference = {"right": 0, "error": 0, "other": 0}, [], 0, None
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for fault in [("none", "none", 0, 0, 0)] + [choose(seed) for seed in seeds]:
        files = FaultyFileSystem(arguments.file_system, directory, fault)
        if not files.ready:
            files.stop()
            print("skipped: FUSE is refused here")
            return SKIPPED
        try:
            status, output = trainer.run(trainer.command(directory))
        finally:
            hit = files.stop()
        if reference is None:
            reference = digest(output)
            if status != 0 or reference is None:
                print(f"a run without faults failed with status {status}\n{output}")
                return 1
            continue
        hits += hit > 0
        judge("{} of {} {}, {} times, seed {}".format(*fault), status, output, reference, failures, counts)
    print(f"{arguments.seeds} runs, {hits} with faults: {counts['right']} right, {counts['error']} with an error")
    if hits * 2 < arguments.seeds:
        print("too few runs met a fault")
        return 1
    return 1 if failures else 0


def run_calls(arguments, trainer, work):
    swap = work / "swap"
    swap.mkdir()
    if shutil.which("strace") is None:
        print("skipped: strace is not installed")
        return SKIPPED
    if subprocess.run(["strace", "-f", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        print("skipped: ptrace is refused here")
        return SKIPPED
    counts, failures = {"right": 0, "error": 0, "other": 0}, []
    reference = digest(trainer.run(trainer.command(swap))[1])
    if reference is None:
        print("a run without faults failed")
        return 1
    log = work / "strace.log"
    for call, errors, first, engine in CALLS:
        for error in errors:
            for number in range(first, first + NUMBERS):
                strace = ["strace", "-f", "-qq", "-o", str(log), f"-einject={call}:error={error}:when={number}",
                          f"-etrace={call}", "-esignal=none"]
                status, output = trainer.run(strace + trainer.command(swap, engine))
                judge(f"{error} of {call} number {number}", status, output, reference, failures, counts)
                if "INJECTED" not in log.read_text(errors="replace"):
                    break  # a run makes fewer of these calls
    print(f"{sum(counts.values())} runs: {counts['right']} right, {counts['error']} with an error")
    return 1 if failures else 0


def starting_programs(arguments, trainer, hung, answering):
    """The command lines of programs that examine the directory `hung` with a deadline of one second."""
    on_hung = ["--path", str(hung), "--io-deadline", "1"]
    return {
        "gpt_train": trainer.command(hung),
        "penstock doctor": [str(arguments.penstock), "doctor", *on_hung, "--path", str(answering)],
        "penstock tune": [str(arguments.penstock), "tune", *on_hung],
        "nvme_swap": [str(arguments.nvme_swap), *on_hung],
        "optimizer_step": [str(arguments.optimizer_step), *on_hung],
    }


def running_programs(arguments, trainer, hung):
    """The command lines of programs that read and write the directory `hung`, with a deadline of one second."""
    on_hung = ["--path", str(hung), "--io-deadline", "1"]
    programs = {f"gpt_train, {engine}": lambda engine=engine: trainer.command(hung, engine) for engine in ENGINES}
    small = ["--file-size", "64MiB", "--rounds", "1", "--seconds", "0.1"]
    for engine in ENGINES:
        command = [str(arguments.nvme_swap), *on_hung, *small, "--engine", engine, "--allow-page-cache"]
        programs[f"nvme_swap, {engine}"] = lambda command=command: command
    programs["penstock tune"] = lambda: [str(arguments.penstock), "tune", *on_hung, "--seconds", "5"]
    programs["optimizer_step"] = lambda: [str(arguments.optimizer_step), *on_hung, "--parameters", "1000000",
                                          "--unit-parameters", "250000", "--rounds", "1"]
    return programs


class Program:
    """A program on a file system. It is given up after `seconds`: its file system ends, and with it the calls that hang,
    because the kernel lets no process end before."""

    def __init__(self, command, files, seconds):
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        self.output, self.given_up = "", False
        self.timer = threading.Timer(seconds, self.give_up, [files])
        self.timer.start()

    def give_up(self, files):
        self.given_up = True
        files.process.kill()

    def read_until(self, pattern):
        """Reads its output up to the first line that matches. Returns the seconds until then."""
        began = time.monotonic()
        for line in self.process.stdout:
            self.output += line
            if pattern.search(line):
                break
        return time.monotonic() - began

    def end(self):
        """Its exit status, None if it was given up."""
        self.output += self.process.communicate()[0]
        self.timer.cancel()
        return None if self.given_up else self.process.returncode


def start_complaint(name, seconds, status, output, hung, answering):
    """Why a program did not give up a directory as it should, or None."""
    if not DEADLINE_PASSED.search(output):
        return "it does not say that the deadline has passed"
    if seconds >= HANG_SECONDS:
        return f"it said so after {seconds:.1f} s, when the directory had answered"
    if str(hung) not in output:
        return "it does not name the directory"
    if name == "penstock doctor":
        if status != 1 or not re.search(f"^unusable  swap files of {re.escape(str(hung))} ", output, re.MULTILINE):
            return f"status {status}, or the directory is not unusable"
        examined = re.search(f"^used  .*swap files of {re.escape(str(answering))} ", output, re.MULTILINE)
        return None if examined else "it does not examine the other directory"
    return None if status in (1, 2) and len(ERROR.findall(output)) == 1 else f"status {status}, or not one error"


def report(run, seconds, output, why):
    """Prints how a run ended. True if it did not end as it should."""
    print(f"FAILED {run}: {why}\n{output}" if why else f"{run}: an error after {seconds:.1f} s", flush=True)
    return why is not None


def hang_at_start(arguments, trainer, hung, answering):
    failures = 0
    for operation in HANGS:
        for name, command in starting_programs(arguments, trainer, hung, answering).items():
            files = FaultyFileSystem(arguments.file_system, hung, ("hang", operation, 0, 1000, 0))
            program = Program(command, files, trainer.seconds)
            seconds = program.read_until(DEADLINE_PASSED)
            files.stop()  # the kernel lets no process end before
            why = start_complaint(name, seconds, program.end(), program.output, hung, answering)
            failures += report(f"{name}, {operation} hangs", seconds, program.output, why)
    return failures


def run_complaint(status, output, hung):
    """Why a program whose requests got no answer did not end as it should, or None."""
    if status is None:
        return "it did not end"
    if status != 1 or len(ERROR.findall(output)) != 1:
        return f"status {status}, or not one error"
    if not DEADLINE_PASSED.search(output):
        return "it does not say that the deadline has passed"
    return None if str(hung) in output else "it does not name the directory"


def stall_requests(arguments, trainer, hung):
    """Requests that get no answer until the kernel interrupts them, because the process ends."""
    failures = 0
    for operation, first in STALLS:
        for name, command in running_programs(arguments, trainer, hung).items():
            files = FaultyFileSystem(arguments.file_system, hung, ("stall", operation, first, 10**6, 0), LARGE)
            program = Program(command(), files, trainer.seconds)
            seconds = program.read_until(DEADLINE_PASSED)
            status = program.end()
            files.stop()
            why = run_complaint(status, program.output, hung)
            failures += report(f"{name}, {operation} {first} gets no answer", seconds, program.output, why)
    return failures


def stop_server(arguments, trainer, hung):
    """The server is stopped in the middle of a run, and killed when the program has said so: closing the swap file gets
    no answer either, and the kernel lets no process end before."""
    failures = 0
    for engine in ENGINES:
        files = FaultyFileSystem(arguments.file_system, hung, ("stall", "none", 0, 0, 0))
        program = Program(trainer.command(hung, engine, steps=10**6), files, trainer.seconds)
        program.read_until(STEP)
        files.process.send_signal(signal.SIGSTOP)
        seconds = program.read_until(DEADLINE_PASSED)
        files.stop(signal.SIGKILL)
        why = run_complaint(program.end(), program.output, hung)
        failures += report(f"gpt_train, {engine}, the server is stopped", seconds, program.output, why)
    return failures


def run_hang(arguments, trainer, work):
    hung, answering = work / "hung", work / "answering"
    answering.mkdir()
    files = FaultyFileSystem(arguments.file_system, hung, ("none", "none", 0, 0, 0))
    files.stop()
    if not files.ready:
        print("skipped: FUSE is refused here")
        return SKIPPED
    failures = hang_at_start(arguments, trainer, hung, answering)
    failures += stall_requests(arguments, trainer, hung)
    failures += stop_server(arguments, trainer, hung)
    return 1 if failures else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fuse", "calls", "hang"])
    parser.add_argument("--train", type=pathlib.Path, required=True)
    for program in ["--file-system", "--penstock", "--nvme-swap", "--optimizer-step"]:
        parser.add_argument(program, type=pathlib.Path)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=70, help="number of runs")
    parser.add_argument("--seconds", type=float, default=30, help="limit of one run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir=os.environ.get("PENSTOCK_TEST_DIR", os.getcwd())) as name:
        work = pathlib.Path(name)
        trainer = Trainer(arguments.train, work, arguments.seconds)
        return {"fuse": run_fuse, "calls": run_calls, "hang": run_hang}[arguments.what](arguments, trainer, work)


if __name__ == "__main__":
    sys.exit(main())
