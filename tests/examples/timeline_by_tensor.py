"""scripts/timeline-by-tensor: each tensor has a track with its reads, updates and writes; the trainer keeps its own.

  timeline_by_tensor.py SCRIPT
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def span(name: str, category: str, begin: float, end: float) -> dict:
    return {"name": name, "cat": category, "ph": "X", "ts": begin, "dur": end - begin, "pid": 3, "tid": 7, "args": {"bytes": 5}}


events = [span("a tile 0", "reads of path 0", 0, 2), span("a tile 1", "reads of path 0", 1, 4), span("step", "trainer", 0, 9),
          span("a tile 0", "updates by the CPU", 2, 3), span("a tile 0", "writes of path 1", 3, 6),
          span("a tile 1", "updates by the CPU", 3, 5), span("disk", "waits", 6, 8)]
expected = {"a tile 0": [("reads of path 0", 0), ("updates by the CPU", 2), ("writes of path 1", 3)],
            "a tile 1": [("reads of path 0", 1)], "a tile 1 2": [("updates by the CPU", 3)],  # at the same time
            "trainer": [("step", 0)], "waits": [("disk", 6)]}


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        given, written = pathlib.Path(directory) / "timeline.json", pathlib.Path(directory) / "by_tensor.json"
        whole = "[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n"
        for text in (whole, whole[:-3], whole[:-3] + ',\n{"name": "step", "ph": "X", '):
            given.write_text(text, encoding="utf-8")
            subprocess.run([sys.executable, sys.argv[1], given, written], check=True)
            tracks, names = {}, {}
            for event in json.loads(written.read_text(encoding="utf-8")):
                assert event["pid"] == 3, event
                if event["name"] == "thread_name":
                    names[event["tid"]] = event["args"]["name"]
                elif event["ph"] == "X":
                    assert event["args"] == {"bytes": 5}, event
                    tracks.setdefault(names[event["tid"]], []).append((event["name"], event["ts"]))
            assert tracks == expected, tracks


if __name__ == "__main__":
    main()
