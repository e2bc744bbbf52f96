"""Runs parts one after the other, each within its time limit, and reports all of them: a table, and a JSON file that is
complete after each part, so that it survives when the run is killed."""
import argparse
import contextlib
import fcntl
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing

from bundle import Bundle
from session import Failed, Session, Unavailable

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMI_SECONDS_MAX = 30


class Part(typing.NamedTuple):
    name: str
    summary: str
    seconds: float  # its time limit
    # Called with a Session; returns the main figures in words, and all of them.
    run: typing.Callable[[Session], tuple[str, dict]]
    needs_gpu: bool = True


def run_part(part, bundle, scratch, log, seconds):
    """Returns what the report says of a part. The result is passed, failed, unavailable or not run."""
    if seconds <= 0:
        return {"name": part.name, "result": "not run", "seconds": 0.0, "headline": "no time is left", "failures": [],
                "figures": {}}
    log.write(f"\n== {part.name}\n")
    session = Session(bundle, scratch, log, min(part.seconds, seconds))
    began = time.monotonic()
    headline, figures, result = "", {}, "passed"
    try:
        headline, figures = part.run(session)
    except Unavailable as reason:
        headline, result = str(reason), "unavailable"
    except Failed as error:
        session.fail(str(error))
    except Exception as error:  # such as an unexpected format of a program's output: the next part still runs
        session.fail(f"{type(error).__name__}: {error}")
    if session.failures:
        headline, result = session.failures[0], "failed"
    return {"name": part.name, "result": result, "seconds": round(time.monotonic() - began, 1), "headline": headline,
            "failures": session.failures, "figures": figures}


def print_table(report):
    print(f"\n{'part':<11} {'result':<12} {'seconds':>7}  main figures")
    for row in report["parts"]:
        print(f"{row['name']:<11} {row['result']:<12} {row['seconds']:>7.1f}  {row['headline']}")
        for failure in row["failures"][1:]:
            print(f"{'':<33} {failure}")
    print(f"{report['result']}; all figures: {report['file']}, all output: {report['log']}", flush=True)


def list_gpus():
    """Returns how many GPUs nvidia-smi lists, and why there are none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, timeout=SMI_SECONDS_MAX, text=True)
    except OSError as error:
        return 0, f"nvidia-smi cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 0, f"nvidia-smi did not end within {SMI_SECONDS_MAX} s"
    said = (listed.stderr.strip() or listed.stdout.strip() or "nothing").splitlines()[0]
    return listed.stdout.count("GPU "), f"nvidia-smi ended with {listed.returncode}, and said: {said}"


def gpu_count():
    return list_gpus()[0]


class Interrupted(BaseException):
    """A signal that asks the run to end; the programs that it has started then end too."""


def interrupt(number, _):
    raise Interrupted(signal.Signals(number).name)


@contextlib.contextmanager
def report_files(folder):
    """Yields the paths of report and log, and the open log, which no other run writes meanwhile."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "gpu.log", "a", encoding="utf-8") as log:
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sys.exit(f"error: another run writes its report to {folder}\n"
                         "  try     set OUT or --output to another folder")
            log.truncate(0)
            yield folder / "gpu.json", folder / "gpu.log", log
    except OSError as error:
        sys.exit(f"error: the report cannot be written to {folder}: {error.strerror}\n"
                 "  try     set OUT or --output to a folder that can be written")


def seconds(text):
    value = float(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"wanted a number of seconds above 0, got {text}")
    return value


def parse(parts, argv):
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__, allow_abbrev=False,
                                     epilog="scripts/gpu --bundle [--accept-refusal], as the first argument, makes the "
                                     "folder of programs: docs/gpu.md")
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run, in this order (default: all)")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--bundle-folder", type=pathlib.Path, default=ROOT / ".gpu-bundle")
    parser.add_argument("--output", type=pathlib.Path, default=os.environ.get("OUT") or ROOT / "build/gpu-report",
                        help="folder for the report (default: $OUT, else build/gpu-report)")
    parser.add_argument("--seconds", type=seconds, default=570, help="time limit of the whole run (default: 570)")
    arguments = parser.parse_args(argv)
    known = {part.name: part for part in parts}
    for name in arguments.parts:
        if name not in known:
            parser.error(f"no part is called {name}; there are {', '.join(known)}")
    arguments.chosen = [known[name] for name in arguments.parts] or list(parts)
    return arguments


def main(parts, argv=None):
    arguments = parse(parts, argv)
    if arguments.list:
        for part in parts:
            print(f"{part.name:<11} at most {part.seconds:>4.0f} s  {part.summary}")
        return 0
    bundle = Bundle(arguments.bundle_folder)
    gpus, reason = list_gpus()
    if gpus == 0 and any(part.needs_gpu for part in arguments.chosen):
        print(f"error: this machine has no GPU that can be used: {reason}\n"
              "  try     without a GPU, scripts/test; with one, load the NVIDIA driver, and give the container its devices",
              file=sys.stderr)
        return 1
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        return run(arguments, bundle)
    except Interrupted as cause:
        print(f"error: the run was ended by {cause}; what it had found is in {arguments.output}", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run(arguments, bundle):
    with report_files(arguments.output) as (file, log_file, log):
        report = {"commit": bundle.commit, "result": "not complete", "file": str(file), "log": str(log_file), "parts": []}

        def save():
            file.write_text(json.dumps(report, indent=1) + "\n")

        save()  # in place of an earlier run's
        scratch = tempfile.mkdtemp(prefix="penstock-test-", dir=bundle.folder.parent)
        end = time.monotonic() + arguments.seconds
        try:
            for part in arguments.chosen:
                print(f"== {part.name}: {part.summary}", file=sys.stderr, flush=True)
                report["parts"].append(run_part(part, bundle, scratch, log, end - time.monotonic()))
                save()
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        good = all(row["result"] in ("passed", "unavailable") for row in report["parts"])
        report["result"] = "passed" if good else "failed"
        save()
    print_table(report)
    return 0 if good else 1
