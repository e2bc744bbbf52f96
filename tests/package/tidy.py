#!/usr/bin/env python3
"""Checks the tree against rules that are visible in the text, one rule per call:

  tidy.py ROOT format       sources are formatted as by clang-format 14 (Debian 12's); no line is longer than 120
  tidy.py ROOT functions    no function of src/ and kernels/ is longer than 70 lines
  tidy.py ROOT callers      each public function has a caller in tests, tools, benchmarks or examples
  tidy.py ROOT arguments    tests/unit/arguments calls each public function that takes arguments with bad ones
  tidy.py ROOT errors       docs/troubleshooting.md explains each error code, and no other
  tidy.py ROOT quotes       a program that a document quotes (<!-- quotes PATH --> before its block) is that file

Related checks: include_table.py, for #include lines; the target public_headers, which compiles each public header alone;
tests/unit/zero/config/consumer_test.cpp, which checks that each configuration key is read.

Exits with 1 and a line for each violation, or with 77 if a rule cannot be checked here.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

FUNCTION_LINES_MAX = 70
LINE_MAX = 120  # clang-format does not divide comments

SUFFIXES = {".c", ".cpp", ".h", ".hpp", ".cu", ".inl"}
CANNOT_CHECK = 77
# Keywords at the start of a statement with parentheses and a block that is not a function.
NO_FUNCTION = re.compile(r"\s*(if|else|for|while|switch|do|try|catch|namespace|class|struct|union|enum|return)\b")


def sources(root, folders):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in SUFFIXES:
                yield path


def check_format(root):
    name = next((n for n in ("clang-format-14", "clang-format") if shutil.which(n)), None)
    version = subprocess.run([name, "--version"], capture_output=True, text=True).stdout if name else ""
    if "version 14." not in version:
        print("skipped: clang-format 14 is not installed, other versions differ; found " + (version.strip() or "none"))
        sys.exit(CANNOT_CHECK)

    def violations(paths):
        done = subprocess.run([name, "--dry-run", "-Werror", *paths], capture_output=True, text=True)
        return re.findall(r"^(.+?):\d+:\d+: error: code should be clang-formatted", done.stderr, re.M)

    paths = list(sources(root, ["include", "src", "kernels", "tools", "examples", "bench", "tests"]))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        chunks = [paths[at : at + 25] for at in range(0, len(paths), 25)]
        for path in sorted({path for found in pool.map(violations, chunks) for path in found}):
            yield f"{pathlib.Path(path).relative_to(root)}: run {name} -i"
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > LINE_MAX:
                yield f"{path.relative_to(root)}:{number}: {len(line)} characters"


def blank(match):
    """Replaces all characters except newlines with spaces, so that offsets and lines stay the same."""
    return re.sub(r"[^\n]", " ", match.group())


def code_of(path):
    """The text with comments, literals and preprocessor lines blanked."""
    text = re.sub(r'R"(\w*)\((?s:.*?)\)\1"', blank, path.read_text())
    text = re.sub(r"//[^\n]*|/\*(?s:.*?)\*/|\"(\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(\\.|[^'\\\n])+'", blank, text)
    return re.sub(r"^[ \t]*#(?:.*\\\n)*.*", blank, text, flags=re.M)


def blocks(code):
    """Yields for each pair of braces whose closing brace begins a line: the text before it, and both offsets."""
    open_braces, begin = [], 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group() == "{":
            open_braces.append((begin, at))
            begin = at + 1
        elif match.group() == ";":
            begin = at + 1
        elif open_braces:
            head, opening = open_braces.pop()
            if code[:at].rpartition("\n")[2].strip():
                begin = head  # an initializer within a statement
                continue
            yield head, opening, at
            begin = at + 1


def function_name(head):
    """Of the function that `head` begins; none where it begins something else, such as a table or a lambda."""
    if NO_FUNCTION.match(head) or "=" in re.sub(r"\([^()]*\)|operator\W+", "", re.sub(r"\([^()]*\)", "", head)):
        return None
    found = re.search(r"([\w:~]+|operator\W+)\s*\(", re.sub(r"__attribute__\(\([^)]*\)\)|requires\s*\(", "", head))
    return found.group(1) if found and "](" not in head else None


def check_functions(root):
    for path in sources(root, ["src", "kernels"]):
        code = code_of(path)
        for head, opening, closing in blocks(code):
            name = function_name(re.sub(r"^\s*(public|private|protected|case [\w:]+|default):", "", code[head:opening]))
            start = len(code[:opening]) - len(code[head:opening].lstrip())
            lines = code[start:closing].count("\n") + 1
            if name and lines > FUNCTION_LINES_MAX:
                yield f"{path.relative_to(root)}: {name} has {lines} lines, at most {FUNCTION_LINES_MAX} are allowed"


def declarations(code):
    """The functions of a public header: class or none, name, and the declaration."""
    scopes = []  # of each open brace: the class, "" for a namespace, None for what holds no declarations
    public = []  # beside it
    begin = 0
    for match in re.finditer(r"[{};]|\b(public|private|protected):", code):
        at, token = match.start(), match.group()
        statement = re.sub(r"^template <[^>]*(<[^>]*>)*[^>]*> ", "", " ".join(code[begin:at].split()))
        inside = None not in scopes and all(public)
        is_function = token in "{;" and inside and re.match(r"[^=]*\w\s*\(", statement) and not re.match(
            r"(using|friend|static_assert|typedef|PENSTOCK_)", statement)
        if is_function and not re.search(r"= (delete|default)$", statement):
            yield (scopes[-1] if scopes else ""), statement
        if token == "{":
            kind = re.match(r"(?:inline )?(namespace|class|struct|union)\b", statement)
            name = re.search(r"(?:class|struct|union)(?: \[\[\w+\]\])? (\w+)", statement)
            scopes.append(None if not kind else "" if kind.group(1) == "namespace" else name.group(1) if name else None)
            public.append(not kind or kind.group(1) != "class")
        elif token == "}" and scopes:
            scopes.pop(), public.pop()
        elif token.endswith(":") and public:
            public[-1] = token == "public:"
        begin = match.end()


def public_functions(root):
    for path in sources(root, ["include"]):
        for owner, statement in declarations(code_of(path)):
            found = re.search(r"([~\w]+)\s*\(", re.sub(r"\b(requires|noexcept|alignas|explicit)\s*\([^()]*\)", "", statement))
            name = found.group(1) if found else None
            # std::function<void()> is no function named void.
            if not name or name in (owner, "void") or name.startswith("~") or "operator" in statement:
                continue
            yield path, owner, name, bool(re.match(r".*\b(virtual|override)\b", statement))


# Public functions whose arguments cannot be bad, or that only the library calls.
ANY_VALUE = "every value of its arguments is good"
CALLED_BY_LIBRARY = "an embedder implements it, and only the library calls it"
WITHOUT_BAD_ARGUMENTS = {
    "check_failed": "it is there to abort",
    "ByteCount::ByteCount": ANY_VALUE, "ElementCount::ElementCount": ANY_VALUE, "FileOffset::FileOffset": ANY_VALUE,
    "to_exact_string": ANY_VALUE, "Result::Result": ANY_VALUE, "BadResult::BadResult": ANY_VALUE,
    "BasicHostSpan::BasicHostSpan": "it keeps what it gets; the rows of other functions pass bad spans",
    "DeviceSpan::DeviceSpan": "it keeps what it gets; the rows of other functions pass bad spans",
    "Error::wanted": ANY_VALUE, "Error::got": ANY_VALUE, "Error::at": ANY_VALUE, "Error::object": ANY_VALUE,
    "Error::reason": ANY_VALUE, "Error::where": ANY_VALUE, "Error::advice": ANY_VALUE, "Error::note": ANY_VALUE,
    "StreamHandle::of": ANY_VALUE, "optimizer_of": ANY_VALUE,
    "BlockObserver::before_update": CALLED_BY_LIBRARY, "BlockObserver::after_update": CALLED_BY_LIBRARY,
    "StreamObserver::begin": CALLED_BY_LIBRARY, "StreamObserver::end": CALLED_BY_LIBRARY,
}


def has_arguments(statement, name):
    """Whether a declaration has parameters; an object of its own class, to copy or move from, is none."""
    found = re.search(rf"\b{name}\s*\((.*)", statement)
    return found and not re.match(rf"\s*\)|\s*(const )?{name}\s*&", found.group(1))


def check_arguments(root):
    """A function that overrides one with rows needs none: the rows call every implementation."""
    rows = set()
    for path in sources(root, ["tests/unit/arguments"]):
        rows |= set(re.findall(r'"((?:\w+::)?\w+)"', path.read_text()))
    bases = {}
    for path in sources(root, ["include"]):
        bases.update(re.findall(r"class (\w+)(?: final)? : public (\w+)", code_of(path)))
    derived = {base: {name for name, of in bases.items() if of == base} for base in bases.values()}
    for path in sources(root, ["include"]):
        for owner, statement in declarations(code_of(path)):
            found = re.search(r"([~\w]+)\s*\(", re.sub(r"\b(requires|noexcept|alignas|explicit)\s*\([^()]*\)", "", statement))
            name = found.group(1) if found else None
            if not name or name in ("void",) or name.startswith("~") or "operator" in statement:
                continue
            if "std::function<" in statement.partition(name)[0] or not has_arguments(statement, name):
                continue
            known = f"{owner}::{name}" if owner else name
            family = {known, f"{bases.get(owner)}::{name}", *(f"{one}::{name}" for one in derived.get(owner, ()))}
            if known not in WITHOUT_BAD_ARGUMENTS and not family & rows:
                yield f"{path.relative_to(root)}: {known}() has no row in tests/unit/arguments"


def included_files(root):
    """A function from a file to the set of files of the tree that it includes, directly or not, and itself."""
    folders = [root / "include", root / "src", root / "tests", root]
    known = {}

    def files_of(path):
        if path not in known:
            known[path] = found = {path}
            for name in re.findall(r'^#include [<"]([^">]+)[">]', path.read_text(), re.M):
                file = next((f / name for f in [path.parent, *folders] if (f / name).is_file()), None)
                if file:
                    found |= files_of(file.resolve())
        return known[path]

    return lambda path: files_of(path.resolve())


def check_callers(root):
    """A file calls a function if it uses the name and includes the header; a member, if the name follows . -> :: or &."""
    files_of = included_files(root)
    callers = []
    for path in sources(root, ["tests", "tools", "bench", "examples"]):
        code = code_of(path)
        functions = set(re.findall(r"\b(\w+)(?:<[\w:]+>)?\(", code)) | set(re.findall(r"&(?:\w+::)*(\w+)", code))
        callers.append((files_of(path), functions, set(re.findall(r"(?:\.|->|::|&)(\w+)", code))))
    # An interface is called by the library itself.
    within = set(re.findall(r"(?:\.|->)(\w+)\(", "\n".join(map(code_of, sources(root, ["src", "kernels"])))))
    for path, owner, name, is_virtual in public_functions(root):
        called = any(path.resolve() in files and name in (members if owner else functions)
                     for files, functions, members in callers)
        if called or (is_virtual and name in within):
            continue
        known = f"{owner}::{name}" if owner else name
        yield f"{path.relative_to(root)}: {known}() has no caller in tests, tools, bench or examples"


def check_errors(root):
    enum = re.search(r"enum class ErrorCode[^{]*{(.*?)};", code_of(root / "include/penstock/base/result.hpp"), re.S)
    codes = set(re.findall(r"\w+", enum[1]))
    explained = re.findall(r"^\| `(\w+)` \|", (root / "docs/troubleshooting.md").read_text(), re.M)
    for code in sorted(codes.symmetric_difference(explained)):
        yield f"docs/troubleshooting.md: {code} is {'not explained' if code in codes else 'no error code'}"


def check_quotes(root):
    quotes = 0
    for document in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        for path, quoted in re.findall(r"<!-- quotes (\S+) -->\n```cpp\n(.*?)```", document.read_text(), re.S):
            quotes += 1
            if quoted != (root / path).read_text():
                yield f"{document.relative_to(root)}: its quotation differs from {path}"
    if quotes == 0:
        yield "no document quotes a program"


RULES = {"format": check_format, "functions": check_functions, "callers": check_callers,
         "arguments": check_arguments, "errors": check_errors, "quotes": check_quotes}

if __name__ == "__main__":
    found = list(RULES[sys.argv[2]](pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    sys.exit(1 if found else 0)
