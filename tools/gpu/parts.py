"""The parts of the GPU run, in the order in which its time is worth most. A new one is a function and a row of PARTS."""
import glob
import os
import pathlib
import re
import shutil

import python_package
import runner
import training
from bundle import SYSTEM_LIBRARIES, find_cuda_library, has_nccl, is_cuda_library
from session import Failed, Unavailable

GPU_FACTS = ["name", "driver_version", "memory.total", "pcie.link.gen.current", "pcie.link.gen.max",
             "pcie.link.width.current", "pcie.link.width.max", "clocks.max.sm", "clocks.max.mem", "power.limit",
             "ecc.mode.current", "persistence_mode", "mig.mode.current"]
TEST_SECONDS_MAX = 60  # of a program, so that one that hangs does not keep the others from running
SMALL_MODEL = ["--layers", 1, "--width", 64, "--heads", 2, "--context", 32, "--steps", 2]


def first_line(path):
    try:
        return pathlib.Path(path).read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return "unknown"


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def facts(session):
    rows = session.succeed(["nvidia-smi", f"--query-gpu={','.join(GPU_FACTS)}", "--format=csv,noheader,nounits"], 60).out
    gpu = dict(zip(GPU_FACTS, [value.strip() for value in rows.splitlines()[0].split(",")]))
    session.run(["nvidia-smi", "-q"], 60)  # for the log
    pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
    findings = session.succeed_json([session.bundle.program("penstock"), "doctor", "--json", "--path", session.scratch])
    figures = {
        "gpu": gpu, "cores": os.cpu_count(), "memory_bytes": memory_bytes(), "kernel": " ".join(os.uname()[::2]),
        "glibc": os.confstr("CS_GNU_LIBC_VERSION"),
        "transparent_hugepage": {name: first_line(pages / name) for name in ("enabled", "defrag", "shmem_enabled")},
        "disk_free_bytes": shutil.disk_usage(session.scratch).free,
        "file_system": session.run(["stat", "-f", "-c", "%T", session.scratch]).out.strip(),
        "cuda_libraries": {name: str(find_cuda_library(name)) for name in session.bundle.cuda_libraries},
        "tools": {tool: shutil.which(tool) for tool in ("nvcc", "compute-sanitizer", "ncu", "cmake", "ninja")},
        "doctor": findings,
    }
    thp = figures["transparent_hugepage"]["enabled"]
    return (f"{gpu['name']}, driver {gpu['driver_version']}, PCIe {gpu['pcie.link.gen.current']} of "
            f"{gpu['pcie.link.gen.max']} x{gpu['pcie.link.width.current']}, {figures['cores']} cores, "
            f"{memory_bytes() / 2**30:.0f} GiB, {figures['file_system']} with "
            f"{figures['disk_free_bytes'] / 2**30:.0f} GiB free, THP {thp}"), figures


def resolve_libraries(session, program):
    """Returns library → the file that the dynamic linker takes for it, and notes those that it must not take."""
    output = session.run(["env", "LD_TRACE_LOADED_OBJECTS=1", program], 30).out
    found = dict(re.findall(r"^\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", output, re.M))
    for name, path in found.items():
        # lib/ of the bundle or what was unpacked from it, wherever a program's RUNPATH leads
        inside = pathlib.Path(path).parent.resolve() in (session.bundle.folder / "lib",
                                                         pathlib.Path(session.bundle.unpack()).resolve())
        if path == "not found":
            session.fail(f"{program.name} needs {name}, which is not found")
        elif name in session.bundle.libraries and not inside:
            session.fail(f"{program.name} takes {name} from {path}, not from the bundle")
        elif not inside and name not in SYSTEM_LIBRARIES and not is_cuda_library(name):
            session.fail(f"{program.name} needs {name} of this machine, {path}")
    return found


def check(session):
    bundle, libraries = session.bundle, {}
    for name in [*bundle.tests, *bundle.tools]:
        program = bundle.program(name)
        libraries.update(resolve_libraries(session, program))
        output = session.run([program, "--gtest_list_tests" if name in bundle.tests else "--help"], 60)
        if output.status != 0 or not output.out:
            session.fail(f"{name} does not start, status {output.status}: {output.error()}")
    trained = training.train(session, SMALL_MODEL)
    session.succeed(training.program_command(session, "gpt_plain", SMALL_MODEL))
    training.check_report(session, SMALL_MODEL)
    places = {}
    for name, path in sorted(libraries.items()):
        places.setdefault(str(pathlib.Path(path).parent), []).append(name)
    for folder, names in sorted(places.items()):
        session.write(f"libraries from {folder}: {' '.join(names)}\n")
    of_bundle = sum(name in bundle.libraries for name in libraries)
    return (f"{len(bundle.tests)} test programs and {len(bundle.tools)} tools start; {of_bundle} libraries from the "
            f"bundle, {len(libraries) - of_bundle} of this machine"), {"libraries": libraries, "training": trained}


def tests(session):
    passed, gpus = {}, runner.gpu_count()
    # These tests would be skipped, and that would be a failure.
    filters = [] if gpus > 1 else ["--gtest_filter=-CudaTwoDevices*"]
    left_out = [] if gpus > 1 else ["without those that need two GPUs"]
    names = [name for name in session.bundle.tests if has_nccl() or "nccl" not in name]
    if len(names) < len(session.bundle.tests):
        left_out.append("without those of NCCL, which this machine lacks")
    for name in names:
        try:
            passed[name] = session.run_tests(session.bundle.program(name), *filters, seconds=TEST_SECONDS_MAX)
        except Failed as error:
            session.fail(str(error))
    return ("; ".join([f"{sum(passed.values())} tests of {len(passed)} programs passed", *left_out]),
            {"passed": passed, "gpus": gpus})


def find_sanitizer():
    found = [shutil.which("compute-sanitizer"), *glob.glob("/usr/local/cuda*/bin/compute-sanitizer")]
    if not any(found):
        raise Unavailable("compute-sanitizer is not installed")
    return next(filter(None, found))


def sanitizer_summary(output):
    text = output.out + output.err
    if re.search(r"Device not supported|Unable to find injection library|not supported on this", text):
        raise Unavailable("compute-sanitizer refuses this device")
    found = re.search(r"(?:ERROR|RACECHECK) SUMMARY: (.+)", text)
    if not found:
        raise Failed(f"compute-sanitizer printed no summary and ended with {output.status}: {output.error()}")
    return found[1]


def sanitizer(session):
    program, summaries = find_sanitizer(), {}
    programs = {"cuda_kernels_test": [session.bundle.program("cuda_kernels_test")],
                "gpt_train": training.training_command(session, ["--cuda", "--ranks", 1, *SMALL_MODEL])}
    for tool in ("memcheck", "racecheck"):
        for name, command in programs.items():
            try:
                output = session.run([program, "--tool", tool, "--error-exitcode", "86", *command], 100)
                summaries[f"{tool} of {name}"] = sanitizer_summary(output)
                if output.status != 0 or "[  SKIPPED ]" in output.out:
                    session.fail(f"{tool} of {name} ended with {output.status}: {output.error()}")
            except Failed as error:
                session.fail(str(error))
    return "; ".join(f"{what}: {summary}" for what, summary in summaries.items()), summaries


def copies(session):
    figures = session.succeed_json([session.bundle.program("cuda_bandwidth"), "--json", "--only", "copies"])
    largest = max(row["bytes"] for row in figures["copies"])
    return ", ".join(f"{row['direction']} {row['penstock_gb_per_s']:.1f} GB/s ({row['ratio']:.3f} of bare)"
                     for row in figures["copies"] if row["bytes"] == largest), figures


def kernels(session):
    figures = session.succeed_json([session.bundle.program("cuda_bandwidth"), "--json", "--only", "kernels"])
    return ", ".join(f"{row['name']} {row['gb_per_s']:.0f} GB/s ({row['to_copy']:.2f})"
                     for row in figures["kernels"]), figures


PARTS = [
    runner.Part("facts", "GPU, link, memory, pages, disk", 60, facts),
    runner.Part("check", "every program of the bundle starts; where its libraries are", 90, check, needs_gpu=False),
    runner.Part("tests", "the tests that need a GPU; a skipped test is a failure", 180, tests),
    runner.Part("python", "the Python package with PyTorch on the GPU, compiled here", 120, python_package.python),
    runner.Part("sanitizer", "compute-sanitizer, memcheck and racecheck: kernel test, short training", 200, sanitizer),
    runner.Part("link", "copies to the device, to the host and both at once, against bare cudaMemcpyAsync", 60, copies),
    runner.Part("kernels", "bandwidth of the CUDA kernels, against copies on the device of as many bytes", 60, kernels),
    runner.Part("demo", "the demonstration on CUDA, on disk and in memory, digests compared", 180, training.demo),
    runner.Part("1b", "1 B parameters, 16 k tokens, states in host memory: timeline, floor of the phases", 140,
                training.one_billion),
    runner.Part("1b-streamed", "the same, where the GPU updates the states in host memory", 80,
                training.one_billion_streamed),
    runner.Part("1b-nvme", "the same, where the states are on disk and pass through the GPU", 150,
                training.one_billion_from_disk),
    runner.Part("1b-device", "the same with everything on the device", 80, training.one_billion_on_device),
    runner.Part("1b-plain", "the same against the same loop on plain buffers, in turns", 130,
                training.against_plain_buffers),
    runner.Part("1b-64k", "1 B parameters, 64 k tokens, states in host memory", 220, training.one_billion_long),
    runner.Part("7b", "7 B parameters in split_q8 on disk; a small model: the same bits as in memory", 540,
                training.seven_billion),
]
