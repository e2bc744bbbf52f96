"""Builds the wheel with scripts/wheel, installs it into a clean virtual environment with numpy alone, and runs python/tests
in a folder outside the source tree.

usage: python_wheel.py SOURCE BUILD; exits with 77 where Python's packages cannot be had.
"""

import os
import pathlib
import shutil
import subprocess
import sys

wheel_size_max = 20 << 20  # bytes


def main(source, build):
    folder = build / "python-wheel"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    python = folder / "environment" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "environment"], check=True)
    packages = subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "numpy", "pytest"],
                              capture_output=True, text=True, check=False)
    if packages.returncode != 0:
        print("numpy and pytest cannot be installed:", packages.stderr)
        return 77
    subprocess.run([source / "scripts" / "wheel", folder / "wheel", sys.executable], check=True)
    (wheel,) = (folder / "wheel").glob("*.whl")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    if wheel.stat().st_size > wheel_size_max:
        print(f"it is larger than {wheel_size_max} bytes")
        return 1
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", wheel], check=True)
    tests = folder / "tests"
    shutil.copytree(source / "python" / "tests", tests, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "docs" / "python.md", tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."], cwd=tests, env=environment,
                          check=False).returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
