"""scripts/draw-timeline draws the steps of a trace, and refuses one that has too few.

  draw_timeline.py SCRIPT
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def span(name: str, category: str, begin: float, seconds: float, row: int) -> dict:
    return {"name": name, "cat": category, "ph": "X", "ts": begin * 1e6, "dur": seconds * 1e6, "pid": 0, "tid": row}


def trace() -> dict:
    """Steps of 1 s: half of it forward, half backward; the disk is busy in the first quarter."""
    events = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": name}}
              for tid, name in ((0, "disk 1"), (1, "compute"))]
    for step in range(4):
        events += [span("wait for step", "wait", step, 0, 1), span("forward a<b", "compute", step, 0.5, 1),
                   span("backward a<b", "compute", step + 0.5, 0.5, 1), span("read 1 MiB", "disk", step, 0.25, 0)]
    return {"traceEvents": events}


def timeline() -> list:
    """The same, as a library's timeline: the steps end with step()."""
    parts = {"forward a<b": ("forward", "trainer"), "backward a<b": ("backward", "trainer"), "wait for step": ("step", "trainer"),
             "read 1 MiB": ("a<b", "reads of path 0")}
    of_tracks = [event | dict(zip(("name", "cat"), parts[event["name"]])) if event["ph"] == "X" else event
                 for event in trace()["traceEvents"]]
    of_tensors = [{"name": "thread_name", "ph": "M", "pid": 1000000, "tid": 2, "args": {"name": "left out"}},
                  span("reads of path 0", "tensor", 1, 0.25, 2) | {"pid": 1000000}]
    return of_tracks + of_tensors


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        given, drawn = pathlib.Path(directory) / "trace.json", pathlib.Path(directory) / "trace.svg"
        given.write_text(json.dumps(trace()), encoding="utf-8")

        def run(*more: str) -> subprocess.CompletedProcess:
            return subprocess.run([sys.executable, sys.argv[1], given, drawn, *more], capture_output=True, text=True, check=False)

        assert run("--step", "2").returncode == 0
        svg = drawn.read_text(encoding="utf-8")
        assert svg.count("forward a&lt;b, 500.00 ms") == 2 and "1000 ms, step 3" in svg and "2000 ms" in svg, svg
        # Of 1100 pixels for two steps, the disk's quarter of the first.
        assert '<rect x="90.00" y="88" width="137.50"' in svg, svg
        refused = run("--step", "3")
        assert refused.returncode != 0 and "has 4 steps" in refused.stderr, refused
        assert run("--rank", "1").returncode != 0
        given.write_text(json.dumps(timeline()), encoding="utf-8")
        assert run("--step", "2").returncode == 0
        svg = drawn.read_text(encoding="utf-8")
        assert svg.count("forward, 500.00 ms") == 2 and "1000 ms, step 3" in svg and svg.count("a&lt;b, 250.00 ms") == 2, svg
        assert "disk reads and writes" in svg and "left out" not in svg, svg
        drawn.unlink()
        text = given.read_text(encoding="utf-8")
        given.write_text(text[:text.rindex("{") + 9], encoding="utf-8")  # of a run that was killed: the last event is cut
        assert run("--step", "2").returncode == 0 and drawn.exists()
        for other in ("no timeline", "5", "[5]", "{}", '[{"ph": "X"}]', '[{"ph": "M", "name": "a", "pid": "x", "tid": 1}]'):
            given.write_text(other, encoding="utf-8")
            refused = run()
            assert refused.returncode == 1 and "error: this is no timeline" in refused.stderr, refused
        assert run("--steps", "0").returncode == 2


if __name__ == "__main__":
    main()
