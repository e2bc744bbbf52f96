"""Runs programs for a part of the GPU run: bounded in time, with everything that they print in one log."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

LOGGED_BYTES_MAX = 256 << 10  # of each stream of a program; the end is kept


class Failed(Exception):
    """The part has failed; the message says why."""


class Unavailable(Exception):
    """This machine does not offer what the part needs; the message says what."""


class Output:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    def error(self):
        """The line that says why it failed: an error line of ours, else the last one."""
        lines = (self.err.strip() or self.out.strip()).splitlines() or ["it printed nothing"]
        return next((line for line in lines if line.startswith("error: ")), lines[-1])[:200]


def end_of(file):
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LOGGED_BYTES_MAX))
    return file.read().decode(errors="replace")


try:
    import ctypes
    LIBC = ctypes.CDLL(None)
except ImportError:  # Python without libffi: a program then outlives a run that gets SIGKILL
    LIBC = None


def end_with_parent():
    """Called in a program before it starts: it is killed when the run is, whatever kills that."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def wait(process, limit, stop_after):
    if stop_after is None or stop_after >= limit:
        return process.wait(limit)
    try:
        return process.wait(max(0, stop_after))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        return process.wait(limit - max(0, stop_after))


class Session:
    """One part's run. `failures` collects what failed; the part goes on after them."""

    def __init__(self, bundle, scratch, log, seconds):
        self.bundle, self.scratch, self.log = bundle, pathlib.Path(scratch), log
        self.deadline = time.monotonic() + seconds
        self.failures = []

    def fail(self, message):
        self.failures.append(message)
        self.write(f"failed: {message}\n")

    def write(self, text):
        self.log.write(text)
        self.log.flush()

    def seconds_left(self):
        return self.deadline - time.monotonic()

    def run(self, command, seconds=None, stop_after=None):
        """Runs `command`, kills it and what it started at the time limit, and returns its Output.

        After `stop_after` seconds it gets a SIGTERM, which it may answer with a report of what it has done."""
        command = [str(word) for word in command]
        left = self.seconds_left()
        limit = left if seconds is None else min(seconds, left)
        name = pathlib.Path(command[0]).name
        if limit <= 0:
            raise Failed(f"{name} was not started: the part's time is over")
        self.write(f"$ {' '.join(command)}\n")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                           env=self.bundle.environment(), start_new_session=True, preexec_fn=end_with_parent)
            except OSError as error:
                raise Failed(f"{name} cannot be started: {error.strerror}") from error
            status = None
            try:
                status = wait(process, limit, stop_after)
            except subprocess.TimeoutExpired:
                pass
            finally:
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # what it left running, too
                except ProcessLookupError:
                    pass
                process.wait()
            output = Output(status, end_of(out), end_of(err))
        self.write(output.out + output.err)
        if status is None:
            raise Failed(f"{name} did not end within {limit:.3g} s")
        return output

    def succeed(self, command, seconds=None):
        """Like run(); raises Failed where the program does not exit with 0."""
        output = self.run(command, seconds)
        if output.status != 0:
            raise Failed(f"{pathlib.Path(command[0]).name} ended with {output.status}: {output.error()}")
        return output

    def succeed_json(self, command, seconds=None):
        """Like succeed(), for a program that prints JSON."""
        output = self.succeed(command, seconds)
        try:
            return json.loads(output.out)
        except ValueError as error:
            raise Failed(f"{pathlib.Path(command[0]).name} printed no JSON: {error}") from error

    def run_tests(self, program, *arguments, seconds=None):
        """Runs a GoogleTest program and returns how many tests passed. One that fails or is skipped is a failure."""
        name, report = pathlib.Path(program).name, self.scratch / "tests.json"
        report.unlink(missing_ok=True)
        output = self.run([program, f"--gtest_output=json:{report}", *arguments], seconds)
        try:
            cases = [(f"{suite['name']}.{case['name']}", case["result"], bool(case.get("failures")))
                     for suite in json.loads(report.read_text())["testsuites"] for case in suite["testsuite"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            text = f"{name} ended with {output.status} and wrote no test report: {output.error()}"
            raise Failed(text) from error
        failed = [case for case, _, has_failed in cases if has_failed]
        skipped = [case for case, result, _ in cases if result != "COMPLETED"]
        for what, names in (("failed", failed), ("skipped", skipped)):
            if names:
                self.fail(f"{name}: {len(names)} of {len(cases)} tests {what}: {', '.join(names[:3])}"
                          + (" …" if len(names) > 3 else ""))
        if not cases:
            self.fail(f"{name} has no tests")
        if output.status != 0 and not failed:
            self.fail(f"{name} ended with {output.status}: {output.error()}")
        return len(cases) - len(set(failed + skipped))
