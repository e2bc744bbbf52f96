"""scripts/draw-benchmark draws each figure as a bar of its length, and refuses other files.

  draw_benchmark.py SCRIPT
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

machine = {"cpu": "a<b", "cores": 2, "rounds": 5}


def figure(contestant: str, rate: float, fio: bool = False) -> dict:
    return {"operation": "read", "contestant": contestant, "gb_per_s": {"median": rate, "spread": 0}, "cpu_s_per_gb": 0.01,
            "fio": fio}


def row(name: str, seconds: float) -> dict:
    return {"threads": 2, "name": name, "seconds": seconds, "seconds_spread": 0.25, "bytes_per_parameter": 28, "to_floor": 0.9}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        given, drawn = pathlib.Path(directory) / "bench.json", pathlib.Path(directory) / "bench.svg"

        def run(read: dict) -> subprocess.CompletedProcess:
            given.write_text(json.dumps(read), encoding="utf-8")
            return subprocess.run([sys.executable, sys.argv[1], given, drawn], capture_output=True, text=True, check=False)

        def lengths() -> list[float]:
            return [float(one) for one in re.findall(r'<rect x="390" y="\d+" width="([\d.]+)"', drawn.read_text(encoding="utf-8"))]

        assert run({"bench": "nvme_swap", **machine, "figures": [figure("penstock", 4.0), figure("fio 1", 2.0, True)]}).returncode == 0
        svg = drawn.read_text(encoding="utf-8")
        assert lengths() == [620.0, 310.0] and "a&lt;b" in svg and "2.00 GB/s, 0.010 CPU s/GB" in svg, svg
        assert run({"bench": "cpu_adam", **machine, "elements": 10**9, "rows": [row("fp32", 0.5), row("floor", 0.25)]}).returncode == 0
        assert lengths() == [248.0, 496.0], lengths()  # the longest has its spread beside it
        refused = run({"bench": "other"})
        assert refused.returncode != 0 and "nvme_swap or cpu_adam" in refused.stderr, refused


if __name__ == "__main__":
    main()
