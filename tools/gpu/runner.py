"""Runs parts one after the other, each within its time limit, and reports all of them: a table, and a JSON file that is
complete after each part, so that it survives when the run is killed."""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import typing

from bundle import Bundle
from session import Failed, Session, Unavailable

ROOT = pathlib.Path(__file__).resolve().parents[2]


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


def gpu_count():
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True).stdout.count(b"GPU ")
    except OSError:
        return 0


def parse(parts, argv):
    parser = argparse.ArgumentParser(prog="scripts/gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts to run, in this order (default: all)")
    parser.add_argument("--list", action="store_true", help="list the parts")
    parser.add_argument("--bundle-folder", type=pathlib.Path, default=ROOT / ".gpu-bundle")
    parser.add_argument("--output", type=pathlib.Path, default=os.environ.get("OUT") or ROOT / "build/gpu-report",
                        help="folder for the report (default: $OUT, else build/gpu-report)")
    parser.add_argument("--seconds", type=float, default=570, help="time limit of the whole run (default: 570)")
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
    if any(part.needs_gpu for part in arguments.chosen) and gpu_count() == 0:
        print("error: no GPU on this machine (nvidia-smi lists none); run scripts/test instead", file=sys.stderr)
        return 1
    arguments.output.mkdir(parents=True, exist_ok=True)
    report = {"commit": bundle.commit, "result": "not complete", "file": str(arguments.output / "gpu.json"),
              "log": str(arguments.output / "gpu.log"), "parts": []}
    scratch = tempfile.mkdtemp(prefix="penstock-test-", dir=bundle.folder.parent)
    end = time.monotonic() + arguments.seconds
    try:
        with open(report["log"], "w", encoding="utf-8") as log:
            for part in arguments.chosen:
                print(f"== {part.name}: {part.summary}", file=sys.stderr, flush=True)
                report["parts"].append(run_part(part, bundle, scratch, log, end - time.monotonic()))
                pathlib.Path(report["file"]).write_text(json.dumps(report, indent=1) + "\n")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    good = all(row["result"] in ("passed", "unavailable") for row in report["parts"])
    report["result"] = "passed" if good else "failed"
    pathlib.Path(report["file"]).write_text(json.dumps(report, indent=1) + "\n")
    print_table(report)
    return 0 if good else 1
