#!/usr/bin/env python3
"""Checks every #include of the tree against the table of docs/architecture.md.

A module may include itself and the modules that its row names. Examples include public headers only; tools and
benchmarks may include the modules that they measure. A vendor's header may be included only in its adapter.
"""
import pathlib
import re
import sys

ROWS = {
    "base": set(),
    "kernels": {"base"},
    "parallel": {"base"},
    "cpu_adam": {"base", "kernels", "parallel"},
    "tiers": {"base"},
    "swap": {"base", "tiers"},
    "zero": {"base", "kernels", "parallel", "cpu_adam", "tiers", "swap"},
    "c": {"base", "kernels", "parallel", "cpu_adam", "tiers", "swap", "zero"},
}
# Vendor header → the folders whose sources may include it.
VENDORS = {
    r"liburing\.h": {"src/tiers/io"},
    r"libaio\.h": {"src/tiers/io"},
    r"cuda_runtime(_api)?\.h": {"kernels", "src/base/cuda", "src/tiers/device", "examples/gpt", "bench/cuda_bandwidth", "tests"},
    r"asio\.hpp": {"src/zero/launch", "src/zero/comm/process"},
    r"nccl\.h": {"src/zero/comm/nccl", "tests"},
    r"mpi\.h": {"src/zero/comm/mpi", "tests/unit/zero/comm/mpi", "bench/collectives"},
    r"json/.*": {"src/zero/config", "src/zero/estimate", "src/zero/exchange", "src/zero/report", "tests", "tools", "bench"},
    r"(tbb|oneapi)/.*": {"src/parallel"},
    r"xsimd/.*": {"src/cpu_adam"},
    r"fmt/.*": {"tools", "bench", "examples", "src/zero"},
    r"CLI/.*": {"tools/measure"},
    r"benchmark/.*": {"bench/micro"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)


def module_of(path):
    parts = path.parts
    if parts[0] == "kernels":
        return "kernels"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ("include", "penstock") and len(parts) > 3:
        return parts[2]
    return None


def problems(root):
    # Not the whole root: other tests create and remove files in the build folder concurrently.
    folders = ["include", "src", "kernels", "tools", "examples", "bench", "tests"]
    for path in sorted(path for folder in folders for path in (root / folder).rglob("*")):
        relative = path.relative_to(root)
        if path.suffix not in {".cpp", ".hpp", ".cu", ".cuh", ".inl", ".h"}:
            continue
        module = module_of(relative)
        for _, name in INCLUDE.findall(path.read_text()):
            target = re.match(r"(?:penstock/)?(\w+)/", name)
            target = target.group(1) if target else None
            if module and target in ROWS and target != module and target not in ROWS[module]:
                yield f"{relative}: {module} may not include {name}"
            outside = relative.parts[0] == "examples"
            if outside and target in ROWS and not name.startswith("penstock/"):
                yield f"{relative}: only public headers, not {name}"
            for vendor, folders in VENDORS.items():
                if re.fullmatch(vendor, name) and not any(str(relative).startswith(f + "/") for f in folders):
                    yield f"{relative}: {name} belongs in {', '.join(sorted(folders))}"


found = list(problems(pathlib.Path(sys.argv[1])))
print("\n".join(found))
sys.exit(1 if found else 0)
