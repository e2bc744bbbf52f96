"""The part that tests the Python package: its extension module is compiled on the GPU machine, against that machine's
Python, and uses the bundle's library."""
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import sysconfig

from session import Failed, Unavailable

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = ["nanobind", "pytest", "torch"]


def find_compiler():
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    header = pathlib.Path(sysconfig.get_path("include")) / "Python.h"
    if not header.exists():
        missing.append(str(header))
    compiler = shutil.which("c++")
    if compiler is None:
        missing.append("a C++ compiler")
    if missing:
        raise Unavailable(f"this machine lacks {', '.join(missing)}")
    return compiler


def build(session, site):
    """Puts the package into `site`."""
    import nanobind
    compiler, package = find_compiler(), site / "penstock"
    shutil.copytree(ROOT / "python/penstock", package)
    nanobind_root = pathlib.Path(nanobind.include_dir()).parent
    flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DNDEBUG",
             f"-I{ROOT}/include", f"-I{ROOT}/python/src", f"-I{session.bundle.folder}/include", f"-I{sysconfig.get_path('include')}",
             f"-I{nanobind.include_dir()}", f"-I{nanobind_root}/ext/robin_map/include"]
    sources = [*sorted((ROOT / "python/src").glob("*.cpp")), nanobind_root / "src/nb_combined.cpp"]
    objects = [site / f"{source.stem}.o" for source in sources]

    def compile_one(source, compiled):
        session.succeed([compiler, *flags, "-c", source, "-o", compiled])

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(compile_one, sources, objects))
    library = next(pathlib.Path(folder) / "libpenstock.so.0" for folder in (session.bundle.unpack(), session.bundle.folder / "lib")
                   if (pathlib.Path(folder) / "libpenstock.so.0").exists())
    module = package / f"_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    session.succeed([compiler, "-shared", *objects, library, "-o", module])


def python(session):
    find_compiler()
    site = session.scratch / "site"
    site.mkdir()
    build(session, site)
    tests = session.scratch / "python-tests"
    shutil.copytree(ROOT / "python/tests/on_gpu", tests / "on_gpu")
    shutil.copy(ROOT / "python/tests/conftest.py", tests)
    output = session.run(["env", "-C", tests, f"PYTHONPATH={site}", sys.executable, "-m", "pytest", "-q", "-rs", "-p",
                          "no:cacheprovider", "--tb=short", "on_gpu"])
    last = (output.out.strip() or output.error()).splitlines()[-1]
    if output.status != 0 or re.search(r"\b(skipped|error)", last):
        raise Failed(f"pytest ended with {output.status}: {last}")
    return f"AdamW, Store and park on tensors of the GPU: {last.strip('= ')}", {"summary": last}
