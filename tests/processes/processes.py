"""Starts the ranks of a job as processes, and looks how they end."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    """Processes whose output goes to files. Ends them when it ends."""

    def __init__(self):
        self.processes, self.outputs, self.status = [], [], {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def start(self, command, **options):
        output = tempfile.TemporaryFile()
        self.outputs.append(output)
        self.processes.append(subprocess.Popen([str(part) for part in command], stdout=output,
                                               stderr=subprocess.STDOUT, **options))

    def wait(self, ranks, seconds):
        """Returns the ranks that have not ended in time."""
        end = time.monotonic() + seconds
        for rank in ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.status[rank] = self.processes[rank].wait(max(0.01, end - time.monotonic()))
        return [rank for rank in ranks if rank not in self.status]

    def output(self, rank):
        self.outputs[rank].seek(0)
        return self.outputs[rank].read().decode(errors="replace")


class MpiJob:
    """Ranks that mpirun has started and does not end when one of them is lost. Ends them when it ends."""

    SHELL = """
        "$@" >"$0/output.$OMPI_COMM_WORLD_RANK" 2>&1 &
        echo $! >"$0/process.$OMPI_COMM_WORLD_RANK"
        wait $!
        echo $? >"$0/status.$OMPI_COMM_WORLD_RANK"
    """

    def __init__(self, ranks, module, command):
        self.ranks, self.folder, self.status = ranks, tempfile.TemporaryDirectory(), {}
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "--enable-recovery", "-n", ranks]
        self.mpirun = subprocess.Popen(
            [str(part) for part in [*mpirun, "sh", "-c", self.SHELL, self.folder.name, *command]],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "PENSTOCK_MPI": module})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in range(self.ranks):
            process = self.read("process", rank)
            if rank not in self.status and process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
        self.wait(range(self.ranks), 10)
        self.mpirun.terminate()
        try:
            self.mpirun.wait(5)
        except subprocess.TimeoutExpired:  # with --enable-recovery it may wait for ever
            self.mpirun.kill()
            self.mpirun.wait()
        self.folder.cleanup()

    def read(self, what, rank):
        """What the rank's shell has written, if it has."""
        with contextlib.suppress(FileNotFoundError), open(f"{self.folder.name}/{what}.{rank}", errors="replace") as file:
            return file.read()
        return ""

    def wait(self, ranks, seconds):
        """Returns the ranks that have not ended in time."""
        end = time.monotonic() + seconds
        while True:
            for rank in ranks:
                if (status := self.read("status", rank)).endswith("\n"):
                    self.status[rank] = int(status)
            missing = [rank for rank in ranks if rank not in self.status]
            if not missing or time.monotonic() >= end:
                return missing
            time.sleep(0.02)

    def output(self, rank):
        return self.read("output", rank)


@contextlib.contextmanager
def two_hosts(name):
    """Two network namespaces, joined by a cable. Yields a function that runs a command on host 0 or 1, and the
    addresses."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        skip("two hosts need root and the program ip")
    spaces = [f"{name}{os.getpid()}{host}" for host in "ab"]
    ends = [f"pe{os.getpid() % 100000}{host}" for host in "ab"]
    addresses = ["10.213.77.1", "10.213.77.2"]
    run = lambda *command: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        try:
            for space in spaces:
                run("ip", "netns", "add", space)
            run("ip", "link", "add", ends[0], "netns", spaces[0], "type", "veth", "peer", "name", ends[1], "netns",
                spaces[1])
        except subprocess.CalledProcessError as error:
            skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        for space, end, address in zip(spaces, ends, addresses):
            run("ip", "-n", space, "address", "add", f"{address}/24", "dev", end)
            run("ip", "-n", space, "link", "set", end, "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        yield (lambda host, command: ["ip", "netns", "exec", spaces[host], *command]), addresses, ends
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], stderr=subprocess.DEVNULL)
