#!/usr/bin/env python3
"""The functions that the C headers declare, those of the export map, and those that the library exports are the same.

usage: exported_names.py SOURCE_DIR LIBRARY
"""
import pathlib
import re
import subprocess
import sys


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def declared(root):
    names = set()
    for header in (root / "include/penstock/c").glob("*.h"):
        text = without_comments(header.read_text())
        for declaration in re.findall(r"PENSTOCK_API\b([^;]*);", text):
            names.add(re.search(r"\b(penstock_\w+)\s*\(", declaration).group(1))
        for function in re.findall(r"\b(penstock_\w+)\s*\(", text):
            if function not in names:
                sys.exit(f"{header}: {function}() is declared without PENSTOCK_API")
    return names


def mapped(root):
    text = re.sub(r"#.*", "", (root / "src/c/penstock.map").read_text())
    names = re.findall(r"\b(penstock_\w+);", text)
    if names != sorted(names):
        sys.exit("src/c/penstock.map is not sorted")
    return set(names)


def exported(library):
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in lines.splitlines()}
    return {name for name in names if not name.startswith("PENSTOCK_")}  # the versions


def main():
    root, library = pathlib.Path(sys.argv[1]), sys.argv[2]
    headers, sets = declared(root), {"the export map": mapped(root), library: exported(library)}
    if len(headers) < 40:
        sys.exit(f"only {len(headers)} functions were found in the headers")
    failed = False
    for where, names in sets.items():
        for name in sorted(headers - names):
            failed = print(f"{name}: in the headers, not in {where}") or True
        for name in sorted(names - headers):
            failed = print(f"{name}: in {where}, not in the headers") or True
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
