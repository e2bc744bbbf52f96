#!/usr/bin/env python3
"""Tests the GPU run on fake programs: gpu_run_test.py ROOT"""
import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

ROOT = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(ROOT / "tools/gpu"))

import bundle  # noqa: E402
import parts  # noqa: E402
import phase_floor  # noqa: E402
import runner  # noqa: E402
import session  # noqa: E402
import training  # noqa: E402
from runner import Part  # noqa: E402


def googletest(*results, status=0):
    """A program that reports these results of its tests as GoogleTest does: passed, failed or skipped."""
    cases = [{"name": f"Test{i}", "result": "SKIPPED" if result == "skipped" else "COMPLETED",
              **({"failures": [{"failure": "bad"}]} if result == "failed" else {})} for i, result in enumerate(results)]
    report = json.dumps({"testsuites": [{"name": "Suite", "testsuite": cases}] if cases else []})
    return f"""#!{sys.executable}
import pathlib, sys
pathlib.Path(sys.argv[1].partition("json:")[2]).write_text({report!r})
sys.exit({status})
"""


def shell(text):
    return "#!/bin/sh\n" + textwrap.dedent(text)


def traced(*steps, loss=5.5):
    """A trace and a report of one rank, from (name, begin, end) of the compute stream and ("copy ...", begin, end) of
    another, in seconds, step by step. Beside step k runs a sweep of k seconds."""
    events = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
              for tid, name in ((3, "compute"), (5, "stream 2"))]
    for name, begin, end in (span for step in steps for span in step):
        kind = name.split()[0]
        events.append({"name": name, "cat": {"forward": "compute", "backward": "compute"}.get(kind, kind), "ph": "X",
                       "ts": begin * 1e6, "dur": (end - begin) * 1e6, "pid": 0, "tid": 5 if kind == "copy" else 3})
    report = {"ranks": 1, "micro_batches": 1, "tokens_per_step": 100,
              "steps": [{"loss": loss - k, "update_seconds": k, "read_bytes": 40e9, "written_bytes": 30e9}
                        for k in range(len(steps))],
              "ledger": [{"tier": "device", "actual_bytes": 30}, {"tier": "host", "actual_bytes": 1000}],
              "device": {"budget_bytes": 40, "activation_bytes": 60, "free_at_start_bytes": 300, "free_min_bytes": 190}}
    return {"traceEvents": events}, report


def step_from(begin):
    """2 s of waits, forward of 3 s, backward of 4 s."""
    spans = [("wait for parameters of a", 0, 1), ("forward a", 1, 4), ("wait for room for gradients of a", 4, 5),
             ("backward a", 5, 9), ("wait for step", 9, 10)]
    return [(name, begin + first, begin + last) for name, first, last in spans]


def reporter(seconds, losses=(5.5, 5.25, 5.0)):
    """A training program that reports these losses and, run by run, these median seconds of a step."""
    return f"""#!{sys.executable}
import json, pathlib, sys
arguments = dict(zip(sys.argv, sys.argv[1:]))
runs = pathlib.Path(sys.argv[0] + ".runs")
run = int(runs.read_text()) if runs.exists() else 0
runs.write_text(str(run + 1))
pathlib.Path(arguments["--json"]).write_text(json.dumps({{
    "median_step_seconds": {list(seconds)!r}[run], "steps": [{{"loss": loss}} for loss in {list(losses)!r}]}}))
"""


def trainer(trace, report, trap=False, untraced=None):
    """A gpt_train that writes these, without --trace only `untraced`, or prints that a check passed."""
    return f"""#!{sys.executable}
import json, pathlib, signal, sys, time
arguments = dict(zip(sys.argv, sys.argv[1:]))
if "--check" in sys.argv:
    print("check passed: on disk 12ab, in memory 12ab")
    sys.exit(0)
def write(*_):
    if "--trace" in arguments:
        pathlib.Path(arguments["--trace"]).write_text(json.dumps({trace!r}))
    pathlib.Path(arguments["--json"]).write_text(json.dumps({report!r} if "--trace" in arguments else {untraced!r}))
    sys.exit({143 if trap else 0})
{"signal.signal(signal.SIGTERM, write); time.sleep(60)" if trap else "write()"}
"""


class PhaseFloor(unittest.TestCase):
    def figures(self, *copies):
        copies = [(name, begin + 10, end + 10) for name, begin, end in copies]  # of the second step
        return phase_floor.step_figures(*traced(step_from(0), step_from(10) + copies, step_from(20)[:-1]))

    def test_is_the_longest_of_each_phase_of_all_steps_but_the_first_and_the_last(self):
        figures = self.figures()

        self.assertEqual(figures["steps"], 1)
        self.assertEqual([round(figures[name], 9) for name in ("seconds", "forward", "backward", "sweep", "floor")],
                         [10, 3, 4, 1, 7])
        self.assertEqual([round(figures[f"wait_for_{cause}"], 9) for cause in ("parameters", "gradients", "step")],
                         [1, 1, 1])
        self.assertAlmostEqual(figures["to_floor"], 10 / 7)
        self.assertAlmostEqual(figures["compute_busy"], 0.7)
        self.assertAlmostEqual(figures["tokens_per_s"], 10)

    def test_counts_copies_of_each_direction_once_and_in_the_phase_in_which_they_ran(self):
        cases = [  # copies, the floor
            ([("copy to device 1 B", 0, 3.5)], 7.5),
            ([("copy to device 1 B", 0, 3.5), ("copy to device 1 B", 0, 3)], 7.5),  # on two streams at once
            ([("copy to host 1 B", 0, 4)], 7),  # a forward waits for no copy to the host
            ([("copy to host 1 B", 4, 9.5)], 8.5),
            ([("copy to device 1 B", 3, 10)], 9),  # 1 s in the forward, 6 s in the backward
            ([("copy to device 1 B", 4, 7), ("copy to host 1 B", 6, 9)], 7)]  # two directions
        for copies, floor in cases:
            with self.subTest(copies=copies):
                self.assertAlmostEqual(self.figures(*copies)["floor"], floor)

    def test_counts_the_sweep_in_the_first_forward_of_a_step_only(self):
        spans = [step_from(10 * i) for i in range(5)]
        trace, report = traced(*spans, step_from(50)[:-1])
        report["micro_batches"] = 2
        report["steps"][1]["update_seconds"] = 3.5

        figures = phase_floor.step_figures(trace, report)

        self.assertEqual((figures["steps"], figures["floor"], figures["seconds"]), (1, 14.5, 20))

    def test_sums_the_times_of_the_kernels_in_a_step(self):
        trace, report = traced(step_from(0), step_from(10), step_from(20), step_from(30)[:-1])
        for name, begin in (("Adam 1.0 MiB", 1), ("Adam 1.0 MiB", 11), ("Adam 2 B", 12), ("square sums 1 B", 21),
                            ("Adam 2 B", 31)):
            trace["traceEvents"].append({"name": name, "cat": "kernel", "ph": "X", "ts": begin * 1e6, "dur": 0.5e6,
                                         "pid": 0, "tid": 5})

        figures = phase_floor.step_figures(trace, report)

        self.assertEqual((figures["steps"], figures["kernels"]), (2, {"Adam": 0.5, "square sums": 0.25}))

    def test_needs_three_steps_and_one_rank(self):
        with self.assertRaisesRegex(phase_floor.TraceError, "2 steps were trained"):
            phase_floor.step_figures(*traced(step_from(0), step_from(10)[:-1]))
        trace, report = traced(step_from(0), step_from(10), step_from(20)[:-1])
        with self.assertRaisesRegex(phase_floor.TraceError, "one rank"):
            phase_floor.step_figures(trace, {**report, "ranks": 2})

    def test_compares_what_the_device_lost_with_budget_and_activations(self):
        self.assertEqual(phase_floor.device_memory(traced()[1]),
                         {"taken_bytes": 110, "ledger_bytes": 30, "budget_bytes": 40, "activation_bytes": 60,
                          "to_budget": 1.1})


class GpuRun(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_parts(self, the_parts, programs, *arguments):
        """Returns the exit status, the report, the table and the log of a run of the bundle with these programs."""
        (self.folder / "bundle/bin").mkdir(parents=True, exist_ok=True)
        for name, text in programs.items():
            path = self.folder / "bundle/bin" / name
            path.write_text(text)
            path.chmod(0o755)
        (self.folder / "bundle/manifest.json").write_text(json.dumps(
            {"commit": "c", "tests": list(programs), "tools": [], "libraries": {}, "cuda_libraries": [],
             "checksums": {f"bin/{name}": bundle.checksum(self.folder / "bundle/bin" / name) for name in programs}}))
        table = io.StringIO()
        with contextlib.redirect_stdout(table), contextlib.redirect_stderr(io.StringIO()):
            status = runner.main(the_parts, ["--bundle-folder", str(self.folder / "bundle"), "--output",
                                             str(self.folder / "out"), *arguments])
        report = json.loads((self.folder / "out/gpu.json").read_text())
        return status, report, table.getvalue(), (self.folder / "out/gpu.log").read_text()

    def run_tests(self, programs, seconds=20):
        return self.run_parts([Part("tests", "all", seconds, parts.tests, needs_gpu=False)], programs)

    def test_passes_where_every_test_of_every_program_passes(self):
        programs = {"a_test": googletest("passed", "passed"), "b_test": googletest("passed")}

        status, report, table, _ = self.run_tests(programs)

        self.assertEqual((status, report["result"], report["parts"][0]["result"]), (0, "passed", "passed"))
        self.assertEqual(report["parts"][0]["figures"]["passed"], {"a_test": 2, "b_test": 1})
        self.assertIn("3 tests of 2 programs passed", table)

    def test_leaves_out_what_needs_two_gpus_where_there_is_one(self):
        says = googletest("passed") + "print(sys.argv[2:])\n"
        says = says.replace("sys.exit(0)\n", "")
        for gpus, filtered in ((1, True), (2, False)):
            with self.subTest(gpus=gpus), unittest.mock.patch.object(runner, "gpu_count", return_value=gpus):
                status, _, table, log = self.run_tests({"a_test": says})
                self.assertEqual((status, "CudaTwoDevices" in log, "two GPUs" in table), (0, filtered, filtered))

    def test_leaves_out_nccls_programs_where_there_is_none(self):
        programs = {"a_test": googletest("passed"), "nccl_test": googletest("passed")}
        for has_nccl in (False, True):
            with self.subTest(has_nccl=has_nccl), unittest.mock.patch.object(parts, "has_nccl", return_value=has_nccl):
                status, report, table, _ = self.run_tests(programs)
                self.assertEqual((status, "nccl_test" in report["parts"][0]["figures"]["passed"], "NCCL" in table),
                                 (0, has_nccl, not has_nccl))

    def test_fails_for_each_program_that_did_not_pass_all_tests_and_runs_the_others(self):
        status, report, table, log = self.run_tests({
            "skips_test": googletest("passed", "skipped"),
            "fails_test": googletest("failed", "passed", status=1),
            "empty_test": googletest(),
            "dies_test": googletest("passed", status=3),
            "rubbish_test": shell(r"printf '\377\376{]'; exit 0"),
            "half_a_report_test": shell("echo '{\"testsuites\": [' >${1#*json:}"),
            "good_test": googletest("passed")})

        self.assertEqual((status, report["result"]), (1, "failed"))
        self.assertEqual(report["parts"][0]["figures"]["passed"]["good_test"], 1)
        failures = report["parts"][0]["failures"]
        for said in ("skips_test: 1 of 2 tests skipped: Suite.Test1", "fails_test: 1 of 2 tests failed: Suite.Test0",
                     "empty_test has no tests", "dies_test ended with 3",
                     "rubbish_test ended with 0 and wrote no test report",
                     "half_a_report_test ended with 0 and wrote no"):
            self.assertTrue(any(one.startswith(said) for one in failures), f"{said} in {failures}")
            self.assertIn(said, table)
        self.assertEqual(len(failures), 6, failures)
        self.assertIn("{]", log)

    def test_ends_a_program_and_its_children_at_the_limit_and_runs_the_next_part(self):
        marker = self.folder / "child"
        programs = {"hangs_test": shell(f"echo begun; (sleep 2; touch {marker}) & sleep 60"),
                    "good_test": googletest("passed")}

        def run_program(name):
            return lambda one: ("fine", {"n": one.run_tests(one.bundle.program(name))})

        hanging = Part("hangs", "", 0.5, run_program("hangs_test"), needs_gpu=False)
        good = Part("good", "", 20, run_program("good_test"), needs_gpu=False)

        began = time.monotonic()
        status, report, _, log = self.run_parts([hanging, good], programs)

        self.assertLess(time.monotonic() - began, 10)
        self.assertEqual([row["result"] for row in report["parts"]], ["failed", "passed"])
        self.assertEqual(report["parts"][0]["failures"], ["hangs_test did not end within 0.5 s"])
        self.assertEqual((status, report["parts"][1]["figures"]), (1, {"n": 1}))
        self.assertIn("begun", log)
        time.sleep(2.5)
        self.assertFalse(marker.exists())

    def run_apart(self, *arguments, **environment):
        """Starts a run of the bundle that the last call of run_parts() has made, of all parts."""
        return subprocess.Popen(
            [sys.executable, ROOT / "tools/gpu/run.py", "--bundle-folder", self.folder / "bundle", "--output",
             self.folder / "out", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment})

    def sleeping_bundle(self):
        self.run_parts([], {"sleeps_test": shell('''\
            echo $$ > "$(dirname "$0")/pid"
            sleep 60
            ''')})
        return self.folder / "bundle/bin/pid"

    def test_a_run_that_is_killed_ends_what_it_has_started(self):
        pid = self.sleeping_bundle()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
            pid.unlink(missing_ok=True)
            run = self.run_apart("check")
            while not (pid.exists() and pid.read_text().strip()):
                self.assertIsNone(run.poll(), "it ended before it started the program")
                time.sleep(0.02)
            program = int(pid.read_text())
            run.send_signal(number)
            _, said = run.communicate()
            while pathlib.Path(f"/proc/{program}").exists() and "Z" not in pathlib.Path(
                    f"/proc/{program}/stat").read_text().split()[2]:
                time.sleep(0.02)  # for ever, if it goes on
            if number != signal.SIGKILL:
                self.assertIn(f"error: the run was ended by {number.name}", said)
                self.assertEqual(list(self.folder.glob("penstock-test-*")), [])

    def test_two_runs_do_not_write_one_report(self):
        pid = self.sleeping_bundle()
        first = self.run_apart("check")
        while not pid.exists():
            time.sleep(0.02)
        second = self.run_apart("check")
        self.assertIn("another run writes its report to", second.communicate()[1])
        first.terminate()
        first.communicate()

    def test_names_what_it_cannot_use(self):
        self.run_parts([], {"one_test": googletest("passed")})
        for options, said in ((["--output", "/proc/nope"], "the report cannot be written to /proc/nope"),
                              (["--output", "/dev/null"], "the report cannot be written to /dev/null"),
                              (["--seconds", "nan"], "wanted a number of seconds above 0, got nan"),
                              (["--seconds", "-5"], "wanted a number of seconds above 0, got -5")):
            self.assertIn(said, self.run_apart("check", *options).communicate()[1])
        tools = self.folder / "tools"
        tools.mkdir()
        (tools / "nvidia-smi").write_text(shell("echo could not communicate with the driver >&2; exit 9"))
        (tools / "nvidia-smi").chmod(0o755)
        self.assertIn("nvidia-smi ended with 9, and said: could not communicate with the driver",
                      self.run_apart("facts", PATH=f"{tools}:{os.environ['PATH']}").communicate()[1])
        (self.folder / "bundle/bin/one_test").write_text("another")
        self.assertIn("missing or not those of its manifest: bin/one_test", self.run_apart("check").communicate()[1])

    def test_reports_a_defect_of_a_part_and_what_a_machine_refuses(self):
        def refused(_):
            raise session.Unavailable("no such tool")

        status, report, table, _ = self.run_parts(
            [Part("refused", "", 5, refused, needs_gpu=False),
             Part("defect", "", 5, lambda _: {}["key"], needs_gpu=False)], {})

        self.assertEqual([row["result"] for row in report["parts"]], ["unavailable", "failed"])
        self.assertEqual(status, 1)
        self.assertIn("no such tool", table)
        self.assertIn("KeyError: 'key'", table)

    def test_does_not_start_parts_after_the_limit_of_the_run(self):
        slow = Part("slow", "", 60, lambda one: one.run(["sleep", "30"]), needs_gpu=False)

        status, report, _, _ = self.run_parts([slow, Part("late", "", 60, parts.tests, needs_gpu=False)], {},
                                              "--seconds", "0.3")

        self.assertEqual([row["result"] for row in report["parts"]], ["failed", "not run"])
        self.assertIn("sleep did not end within 0.", report["parts"][0]["headline"])
        self.assertEqual(status, 1)

    def test_runs_the_chosen_parts_in_the_given_order(self):
        made = [Part(name, "", 5, lambda _: ("done", {}), needs_gpu=False) for name in ("a", "b", "c")]

        status, report, _, _ = self.run_parts(made, {}, "c", "a")

        self.assertEqual(([row["name"] for row in report["parts"]], status), (["c", "a"], 0))

    def test_finds_cuda_libraries_of_the_toolkit_and_of_python_packages(self):
        toolkit, package = self.folder / "cuda-13/lib64", self.folder / "site/nvidia/cu13/lib"
        for folder in (toolkit, package):
            folder.mkdir(parents=True)
        (package / "libcublasLt.so.13").touch()
        places = {"folders": [self.folder / "cuda*/lib64"], "packages": [self.folder / "site"]}

        self.assertEqual(bundle.find_cuda_library("libcublasLt.so.13", **places), package)
        (toolkit / "libcublasLt.so.13").touch()
        self.assertEqual(bundle.find_cuda_library("libcublasLt.so.13", **places), toolkit)
        self.assertIsNone(bundle.find_cuda_library("libcublasLt.so.12", **places))

    def test_reads_the_rates_and_the_digest_of_a_training_and_requires_its_check(self):
        def trained(verdict):
            return shell(f"""
                echo 'step 1/1  loss 5.5  2.00 k tok/s  read 0.00 GB'
                echo 'optimizer updates moved 1.00 GB in 0.5 s: 2.00 GB/s, 90 % of the limit'
                echo 'step 1/1  loss 5.5  4.00 k tok/s  read 0.00 GB'
                echo 'check {verdict}: on disk 12ab, in memory 12ab'
                """)
        demo = [Part("demo", "", 5, training.demo, needs_gpu=False)]

        _, report, table, _ = self.run_parts(demo, {"gpt_train": trained("passed")})
        _, unchecked, _, _ = self.run_parts(demo, {"gpt_train": trained("FAILED")})

        self.assertIn("digests equal; 2.00 k tok/s on disk, 4.00 in memory", table)
        self.assertEqual(report["parts"][0]["figures"]["digest"], "12ab")
        self.assertIn("did not print that its check passed", unchecked["parts"][0]["headline"])

    def run_training(self, part, *trained, seconds=300, trap=False):
        program = trainer(*traced(*trained), trap)
        status, report, table, log = self.run_parts([Part("p", "", seconds, part, needs_gpu=False)],
                                                    {"gpt_train": program})
        return status, report["parts"][0], table, log

    def test_a_training_reports_its_step_its_floor_and_its_losses(self):
        three = (step_from(0), step_from(10), step_from(20)[:-1])

        status, part, table, log = self.run_training(training.one_billion, *three)

        self.assertEqual((status, part["figures"]["to_floor"]), (0, 10 / 7), part)
        for said in ("step 10.00 s, 1.43 of its floor", "compute busy 70.0% (waits: parameters 10.0%",
                     "1.100 of budget and activations", "loss 5.500 to 3.500, 3 of 8 steps"):
            self.assertIn(said, table)
        self.assertIn("--preset 1b --context 16384 --steps 8 --checkpoint-activations", log)
        self.assertIn("--ranks 1 --cuda", log)

    def test_a_training_with_too_few_steps_fails(self):
        _, part, _, _ = self.run_training(training.one_billion_long, step_from(0), step_from(10)[:-1])

        self.assertIn("2 steps were trained", part["headline"])

    def test_a_slow_training_is_asked_to_end_and_its_figures_count(self):
        three = (step_from(0), step_from(10), step_from(20)[:-1])

        status, part, _, _ = self.run_training(training.one_billion, *three, seconds=32, trap=True)

        self.assertEqual((status, part["figures"]["steps"]), (0, 1), part)

    def run_against_plain(self, engine, plain, memory=80 << 30, clock=None):
        for old in self.folder.glob("bundle/bin/*.runs"):
            old.unlink()
        clock = clock or time
        with unittest.mock.patch.object(training, "device_memory_bytes", return_value=memory), \
                unittest.mock.patch.object(training, "time", clock):
            status, report, table, log = self.run_parts(
                [Part("p", "", 300, training.against_plain_buffers, needs_gpu=False)],
                {"gpt_train": engine, "gpt_plain": plain})
        return status, report["parts"][0], table, log

    def test_the_engine_runs_in_turns_with_the_loop_on_plain_buffers(self):
        status, part, table, log = self.run_against_plain(reporter([1.01, 1.5, 1.03, 1.0, 1.01]), reporter([1] * 5))

        self.assertEqual(status, 0, part)
        self.assertAlmostEqual(part["figures"]["overhead"], 0.01)
        self.assertEqual((len(part["figures"]["turns"]), part["figures"]["within_bar"]), (5, True))
        self.assertIn("engine's overhead +1.0%, within the bar of 2% (+0.0% to +50.0% in 5 turns)", table)
        commands = [line for line in log.splitlines() if line.startswith("$ ")]
        self.assertEqual([line.split()[1].rpartition("/")[2] for line in commands[:4]],
                         ["gpt_train", "gpt_plain", "gpt_plain", "gpt_train"])
        for word, counts in (("--preset 1b --context 8192", (1, 1)), ("--ranks 1", (1, 0)), ("--nvme-path", (1, 0)),
                             ("--cuda", (1, 1))):
            self.assertEqual((commands[0].count(word), commands[1].count(word)), counts, word)

    def test_an_overhead_above_the_bar_is_said_and_fails_nothing(self):
        status, part, table, _ = self.run_against_plain(reporter([1.03] * 5), reporter([1] * 5))

        self.assertEqual((status, part["figures"]["within_bar"]), (0, False))
        self.assertIn("engine's overhead +3.0%, ABOVE the bar of 2%", table)

    def test_losses_that_differ_from_those_on_plain_buffers_fail(self):
        _, part, _, _ = self.run_against_plain(reporter([1] * 5), reporter([1] * 5, losses=(5.5, 5.250001)))

        self.assertEqual(part["failures"][0], "the losses of step 2 differ: 5.25 of gpt_train, 5.250001 of gpt_plain")

    def test_a_loss_that_is_not_finite_fails_a_training_and_a_comparison(self):
        diverged = traced(step_from(0), step_from(10), step_from(20)[:-1])
        diverged[1]["steps"][1]["loss"] = None
        _, report, _, _ = self.run_parts(
            [Part("p", "", 300, training.one_billion, needs_gpu=False)], {"gpt_train": trainer(*diverged)})
        self.assertEqual(report["parts"][0]["headline"], "the loss of step 2 of gpt_train is not finite")
        losses = (5.5, 5.25, None)
        _, part, _, _ = self.run_against_plain(reporter([1] * 5, losses), reporter([1] * 5, losses))
        self.assertEqual(part["headline"], "the loss of step 3 of gpt_train is not finite")

    def test_the_comparison_needs_three_steps_of_each_program(self):
        _, part, _, _ = self.run_against_plain(reporter([1] * 5), reporter([0], losses=(5.5, 5.25)))

        self.assertIn("gpt_plain trained 2 steps, and the figures need 3", part["headline"])

    def test_the_comparison_starts_no_turn_for_which_the_time_is_too_short(self):
        clock = unittest.mock.Mock(monotonic=unittest.mock.Mock(side_effect=range(0, 10000, 240)))

        _, part, _, _ = self.run_against_plain(reporter([1] * 5), reporter([1] * 5), clock=clock)

        self.assertEqual(len(part["figures"]["turns"]), 2)

    def test_a_smaller_model_is_compared_where_the_device_has_little_memory(self):
        _, part, _, log = self.run_against_plain(reporter([1] * 5), reporter([1] * 5), memory=24 << 30)

        self.assertEqual(part["figures"]["preset"], "124m")
        self.assertIn("--preset 124m --context 1024", log)

    def test_seven_billion_on_disk_has_the_results_of_seven_billion_on_the_device(self):
        trace, report = traced(step_from(0), step_from(10), step_from(20)[:-1])
        report |= {"median_step_seconds": 10, "digest": "12ab"}
        other_loss = {**report, "steps": [{**step, "loss": 5.5} for step in report["steps"]]}
        usage = unittest.mock.Mock(free=1 << 40)
        cases = [  # the device's memory, the seconds that are needed, its report, failures, what the table says
            (80, 100, report, [], "the same losses as on the device"),
            (80, 100, {**report, "digest": "34cd"}, ["the digests differ: 12ab on disk, 34cd on the device"], ""),
            (80, 100, other_loss, ["the losses of step 2 differ: 4.5 of the run on disk, 5.5 of the run on the device"],
             ""),
            (40, 100, other_loss, [], "not compared with a run on the device"),
            (80, 500, other_loss, [], "not compared with a run on the device")]
        for memory, needed, on_device, failures, said in cases:
            with self.subTest(memory=memory, needed=needed, failures=failures), \
                    unittest.mock.patch.object(training.shutil, "disk_usage", return_value=usage), \
                    unittest.mock.patch.object(training, "device_memory_bytes", return_value=memory << 30), \
                    unittest.mock.patch.object(training, "SEVEN_BILLION_DEVICE_SECONDS", needed):
                _, run, table, _ = self.run_parts([Part("p", "", 300, training.seven_billion, needs_gpu=False)],
                                                  {"gpt_train": trainer(trace, report, untraced=on_device)})
            self.assertEqual(run["parts"][0]["failures"], failures)
            self.assertIn(said, table)

    def test_seven_billion_needs_disk_space_equal_digests_and_a_falling_loss(self):
        three = (step_from(0), step_from(10), step_from(20)[:-1])
        usage = unittest.mock.Mock(free=48 << 30)
        with unittest.mock.patch.object(training.shutil, "disk_usage", return_value=usage), \
                unittest.mock.patch.object(training, "device_memory_bytes", return_value=24 << 30):
            status, part, table, _ = self.run_training(training.seven_billion, *three)
            self.assertEqual((status, part["figures"]["small_digest"]), (0, "12ab"), part)
            self.assertIn("a step reads 40.0 GB and writes 30.0; not compared with a run on the device", table)
            rising = traced(*three)
            rising[1]["steps"][-1]["loss"] = 6
            status, report, _, _ = self.run_parts(
                [Part("p", "", 300, training.seven_billion, needs_gpu=False)], {"gpt_train": trainer(*rising)})
            self.assertEqual(report["parts"][0]["failures"], ["the loss did not fall: 5.500 to 6.000"])
            in_memory = traced(*three)
            in_memory[1]["steps"][1]["read_bytes"] = 0
            _, report, _, _ = self.run_parts(
                [Part("p", "", 300, training.seven_billion, needs_gpu=False)], {"gpt_train": trainer(*in_memory)})
            self.assertEqual(report["parts"][0]["failures"],
                             ["the steps read 0 bytes and wrote 30000000000: the states were not on disk"])
            usage.free = 40 << 30
            _, part, _, log = self.run_training(training.seven_billion, *three)
        self.assertRegex(part["headline"],
                         r"^the disk has too little space: 47\d{9} bytes are needed in .* and 42949672960 are free$")
        self.assertNotIn("$ ", log)

    def test_states_from_disk_are_compared_with_the_disks_mixed_limit_and_must_be_on_disk(self):
        trace, report = traced(step_from(0), step_from(10), step_from(20)[:-1])
        report |= {"digest": "34cd"}
        swap = shell("echo '{\"figures\": [{\"gb_per_s\": {\"median\": 80}}]}'")
        part = [Part("p", "", 300, training.one_billion_from_disk, needs_gpu=False)]
        usage = unittest.mock.Mock(free=48 << 30)
        with unittest.mock.patch.object(training.shutil, "disk_usage", return_value=usage):
            status, run, table, log = self.run_parts(part, {"gpt_train": trainer(trace, report), "nvme_swap": swap})
            self.assertEqual((status, run["parts"][0]["figures"]["small_digest"]), (0, "12ab"), run)
            self.assertIn("reads 40.0 GB and writes 30.0, 70.00 GB/s of its sweep, 0.88 of the disk's mixed limit (80.00 "
                          "before, 80.00 after); digest 34cd", table)
            report["steps"][1]["written_bytes"] = 0
            _, run, _, _ = self.run_parts(part, {"gpt_train": trainer(trace, report), "nvme_swap": swap})
            self.assertEqual(run["parts"][0]["failures"],
                             ["the steps read 40000000000 bytes and wrote 0: the states were not on disk"])
            usage.free = 14 << 30
            _, run, _, _ = self.run_parts(part, {"gpt_train": trainer(trace, report)})
            self.assertIn("the disk has too little space: 1577", run["parts"][0]["headline"])

    def test_the_parts_of_each_call_fit_into_its_time(self):
        limits = {part.name: part.seconds for part in parts.PARTS}
        self.assertLessEqual(sum(limits[name] for name in ("1b", "1b-device", "1b-plain", "1b-64k")), 570)
        self.assertLessEqual(limits["7b"], 540)

    def test_a_sanitizer_that_refuses_the_device_is_unavailable_and_one_that_finds_errors_fails(self):
        def output(text):
            return session.Output(0, text, "")

        with self.assertRaisesRegex(session.Unavailable, "refuses this device"):
            parts.sanitizer_summary(output("========= Error: Device not supported\n"))
        with self.assertRaisesRegex(session.Failed, "printed no summary"):
            parts.sanitizer_summary(output("rubbish"))
        self.assertEqual(parts.sanitizer_summary(output("========= ERROR SUMMARY: 2 errors\n")), "2 errors")


if __name__ == "__main__":
    unittest.main()
