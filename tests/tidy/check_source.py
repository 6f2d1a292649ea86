#!/usr/bin/env python3
"""Checks which way includes point, that each third-party library is included from its one folder, that large classes say why,
and that the words of the tree are used.

Usage: check_source.py [ROOT]

A broken rule is printed as FILE:LINE: what is wrong and the rule; the exit status is then 1. Files over 500 lines and
functions over 70 are listed and do not fail. Comments and strings are not looked into. Standard library only.
"""

import pathlib
import re
import sys
from typing import Iterator, NamedTuple, Optional

TOP_FOLDERS = ("shared", "trainer_side", "inference_side", "bench", "tests", "deploy")
SUFFIXES = (".h", ".cc", ".c", ".cu", ".h.in")
FILE_LINES = 500
FUNCTION_LINES = 70
CLASS_METHODS = 25
CLASS_LINES = 350  # of methods that are defined outside of the class
# A class over a limit says so and why, in a comment of the file that declares it.
CLASS_REASON = re.compile(r"more than (25 methods|350 lines)", re.IGNORECASE)
# Words that the table in shared/README.md has replaced, as identifiers of the code.
OLD_WORDS = re.compile(
    r"\b(carry_out|let_go|wind_up|tell|tell_\w+|\w*[hH]arvest\w*|\w*[pP]atience\w*|lead_rank|follow_rank|Victim|Story|Children|Wanted"
    r"|BucketDone|bucket_done|k\w*(?:Most|Least)(?![a-z])\w*|most_(?!likely)\w+|(?!at_most)\w+_most|least_\w+|(?!at_least)\w+_least)\b")

# Which folders a folder may include, beside itself. The longest matching prefix of a file's path rules.
MAY_INCLUDE = {
    "shared/base": (),
    "shared/weights": ("shared/base",),
    "shared/loop": ("shared/base",),
    "shared/device": ("shared/base",),
    "shared/broadcast": ("shared/base", "shared/device"),
    "shared/process_group": ("shared/base",),
    "shared/transport": ("shared/base", "shared/loop", "shared/weights"),
    "shared/control": ("shared/base", "shared/loop", "shared/weights"),
    "shared/observe/http": ("shared/base", "shared/weights"),
    "shared/observe/metrics": ("shared/base", "shared/loop", "shared/observe/http"),
    "shared/observe/trace": ("shared/base",),
    "shared/observe/status": ("shared/base", "shared/control", "shared/observe/trace", "shared/weights"),
    "shared/weights/example": ("shared/base", "shared/config", "shared/weights"),
    "shared/command": ("shared/base", "shared/config", "shared/control", "shared/observe", "shared/weights"),
    "shared/config": ("shared/base", "shared/transport"),
    "shared/moe": ("shared/base",),
    "trainer_side": ("shared",),
    "inference_side": ("shared",),
    "bench": ("shared", "trainer_side", "inference_side", "deploy/fleet"),
    "deploy/fleet": ("shared",),
    "deploy": ("shared", "trainer_side", "inference_side", "bench", "deploy/fleet"),
    "tests": TOP_FOLDERS,
}

# Public headers of the C APIs, included by their users as "wsync/engine.h"; they belong to the folder that has them.
C_API_PREFIX = "wsync/"


class Library(NamedTuple):
    name: str
    header: re.Pattern
    folders: tuple
    instead: str = ""


LIBRARIES = (
    Library("fmt", re.compile(r"fmt/"), ("shared/base",), 'include "shared/base/format.h"'),
    Library("spdlog", re.compile(r"spdlog/"), ("shared/base",), 'include "shared/base/log.h"'),
    Library("xxHash", re.compile(r"xxhash\.h|xxh3\.h"), ("shared/base", "bench/peers/scripts"), 'include "shared/base/digest.h"'),
    Library("tl::expected", re.compile(r"tl/expected\.hpp"), ("shared/base",), 'include "shared/base/error.h"'),
    Library("nlohmann-json", re.compile(r"nlohmann/"), ("shared/weights", "shared/observe/trace", "shared/observe/status", "shared/moe", "shared/command", "inference_side/reference_engine", "trainer_side/coordinator/etcd", "trainer_side/coordinator/page", "trainer_side/rollout", "trainer_side/run", "deploy/cli", "deploy/demo", "deploy/fleet", "bench", "tests")),
    Library("libuv", re.compile(r"uv\.h|uv/"), ("shared/loop", "shared/transport/tcp", "shared/transport/tls"), 'include "shared/loop/..."'),
    Library("OpenSSL", re.compile(r"openssl/"), ("shared/observe/http", "shared/transport/tls", "tests/contract/transport")),
    Library("ZeroMQ", re.compile(r"zmq\.hpp|zmq\.h|zmq_addon\.hpp"), ("shared/control/zmq", "bench/baseline", "bench/control")),
    Library("yaml-cpp", re.compile(r"yaml-cpp/"), ("shared/config",), 'include "shared/config/..."'),
    Library("CLI11", re.compile(r"CLI/"), ("shared/command", "inference_side/reference_engine", "trainer_side/run", "deploy/cli", "bench", "tests")),
    Library("zstd", re.compile(r"zstd\.h"), ("shared/weights",)),
    Library("prometheus-cpp", re.compile(r"prometheus/"), ("shared/observe/metrics",)),
    Library("CUDA", re.compile(r"cuda.*\.h(pp)?$"), ("shared/device/cuda", "tests/emulated_cuda", "tests/emulated_nccl",
                                                     "bench/gpu_probe")),
    Library("NCCL", re.compile(r"nccl\.h"), ("shared/broadcast/nccl", "tests/emulated_nccl")),
    Library("nanobind", re.compile(r"nanobind/"), ("deploy/python/extension",)),
    Library("Gloo", re.compile(r"gloo/"), ("shared/process_group/gloo",)),
    Library("UCX", re.compile(r"ucp/|ucs/|uct/"), ("shared/transport/ucx", "bench/peers/scripts")),
    Library("cpp-httplib", re.compile(r"httplib\.h"), ("tests/unit/observe", "tests/unit/reference_engine/http", "tests/unit/rollout"), 'include "shared/observe/http/..."'),
    Library("zlib", re.compile(r"zlib\.h"), ("deploy/cli",), 'include "deploy/cli/archive_file.h"'),
    Library("GoogleTest", re.compile(r"gtest/|gmock/"), ("tests", "bench")),
)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")')
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
DIGIT_SEPARATOR = re.compile(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])")
CONTROL = re.compile(r"^\s*(if|else|for|while|switch|do|try|catch|return)\b")


class Finding(NamedTuple):
    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def folder_of(path: str) -> Optional[str]:
    """The entry of MAY_INCLUDE that rules this file."""
    matches = [folder for folder in MAY_INCLUDE if inside(path, folder)]
    return max(matches, key=len) if matches else None


def without_comments(text: str) -> str:
    """The same lines, comments blanked; strings stay, for they may be the name in an include."""

    def blank(match: re.Match) -> str:
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found

    return NOT_CODE.sub(blank, DIGIT_SEPARATOR.sub("", text))


def check_quoted(root: pathlib.Path, path: str, line: int, target: str) -> Iterator[Finding]:
    if target.startswith(C_API_PREFIX):
        return
    owner, used = folder_of(path), folder_of(target)
    if used is None or not (root / target).is_file():
        yield Finding(path, line, f'"{target}" is no file of the tree; rule: includes start at the root of the tree')
        return
    if owner is None or used == owner or any(inside(used, folder) for folder in MAY_INCLUDE[owner]):
        return
    allowed = ", ".join(MAY_INCLUDE[owner]) or "nothing else of the tree"
    yield Finding(path, line, f'"{target}" must not be included here; rule: {owner} includes {allowed}')


def check_angled(path: str, line: int, target: str) -> Iterator[Finding]:
    for library in LIBRARIES:
        if not library.header.match(target):
            continue
        if not any(inside(path, folder) for folder in library.folders):
            hint = f"; {library.instead}" if library.instead else ""
            where = " and ".join(library.folders)
            yield Finding(path, line, f"<{target}> must not be included here; rule: {library.name} only in {where}{hint}")
        return


def check_includes(root: pathlib.Path, path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(without_comments(text).split("\n"), start=1):
        match = INCLUDE.match(line)
        if match is None:
            continue
        angled, quoted = match.groups()
        if angled is not None:
            yield from check_angled(path, number, angled)
            if angled.split("/")[0] in TOP_FOLDERS:
                yield Finding(path, number, f'<{angled}> is a file of the tree; rule: write "{angled}"')
        else:
            # A library's header in quotes does not slip past its rule.
            found = list(check_angled(path, number, quoted))
            yield from found or check_quoted(root, path, number, quoted)


def long_functions(path: str, text: str) -> Iterator[Finding]:
    """Functions over the limit: braces that follow a `)` outside of any other function."""
    code = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), DIGIT_SEPARATOR.sub("", text))
    code = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", "", code, flags=re.MULTILINE)
    line, depth, head, function_depth, start = 1, 0, "", None, 0
    for char in code:
        if char == "\n":
            line += 1
        if char == "{":
            if function_depth is None and ")" in head and not CONTROL.match(head):
                function_depth, start = depth, line
            depth += 1
            head = ""
        elif char == "}":
            depth -= 1
            head = ""
            if function_depth == depth:
                if line - start > FUNCTION_LINES:
                    yield Finding(path, start, f"a function of {line - start} lines (more than {FUNCTION_LINES})")
                function_depth = None
        elif char == ";":
            head = ""
        else:
            head += char


def code_of(text: str) -> str:
    """The same lines, comments and strings blanked."""
    return NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), DIGIT_SEPARATOR.sub("", text))


def old_words(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(code_of(text).split("\n"), start=1):
        if line.lstrip().startswith("#"):
            continue
        for match in OLD_WORDS.finditer(line):
            yield Finding(path, number, f"'{match.group(0)}' is an old word; rule: the table of words in shared/README.md")


CLASS_HEAD = re.compile(r"\b(?:class|struct)\s+([\w:]+)(?:\s+final)?\s*(?::[^{;]*)?\{")
METHOD = re.compile(r"(?:^|[\s*&~])(?:\w+|operator\S+)\s*\(")
NO_METHOD = re.compile(r"\s*(?:using|typedef|friend|static_assert)\b|.*=\s*default|.*std::function<", re.DOTALL)
DEFINITION = re.compile(r"^(?:[\w:<>,&*\[\] ]+\s)?(\w+)::~?\w+\(", re.MULTILINE)


def body_end(code: str, at: int) -> int:
    """Where the braces end whose first one is before `at`."""
    depth = 1
    while depth and at < len(code):
        depth += (code[at] == "{") - (code[at] == "}")
        at += 1
    return at


def declared_methods(code: str) -> Iterator[tuple]:
    """(class, line, number of methods) of each class; what stands in the bodies of methods is skipped."""
    for head in CLASS_HEAD.finditer(code):
        end = body_end(code, head.end())
        flat, depth = [], 0
        for char in code[head.end() : end - 1]:
            depth -= char == "}"
            if depth == 0:
                flat.append(";" if char in "{}" else char)
            depth += char == "{"
        parts = "".join(flat).split(";")
        count = sum(1 for part in parts if METHOD.search(part) and not NO_METHOD.match(part))
        yield head.group(1).split("::")[-1], code.count("\n", 0, head.start()) + 1, count


def defined_lines(code: str) -> Iterator[tuple]:
    """(class, lines) of each method that is defined outside of its class."""
    for match in DEFINITION.finditer(code):
        brace, semicolon = code.find("{", match.end()), code.find(";", match.end())
        if brace >= 0 and not 0 <= semicolon < brace:
            yield match.group(1), code.count("\n", match.start(), body_end(code, brace + 1)) + 1


def large_classes(texts: dict) -> Iterator[Finding]:
    """Classes over a limit without a reason. Classes of one name in several folders are counted by folder."""
    lines: dict = {}
    for path, text in texts.items():
        for name, count in defined_lines(code_of(text)):
            key = (path.rsplit("/", 1)[0], name)
            lines[key] = lines.get(key, 0) + count
    for path, text in texts.items():
        if CLASS_REASON.search(text):
            continue
        for name, line, methods in declared_methods(code_of(text)):
            total = lines.get((path.rsplit("/", 1)[0], name), 0)
            if methods > CLASS_METHODS or total > CLASS_LINES:
                yield Finding(path, line, f"class {name} has {methods} methods and {total} lines of them; rule: at most "
                              f"{CLASS_METHODS} and {CLASS_LINES}, or a comment with 'more than {CLASS_METHODS} methods' and why")


def sources(root: pathlib.Path) -> Iterator[str]:
    for top in TOP_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            relative = path.relative_to(root).as_posix()
            if path.is_file() and relative.endswith(SUFFIXES) and not inside(relative, "tests/tidy/fixtures"):
                yield relative


def check_tree(root: pathlib.Path) -> tuple:
    """(broken rules, long files and functions, number of files read)"""
    broken, listed, count = [], [], 0
    production = {}
    for path in sources(root):
        text = (root / path).read_text(encoding="utf-8")
        count += 1
        broken.extend(check_includes(root, path, text))
        broken.extend(old_words(path, text))
        if not path.startswith(("tests/", "bench/")):
            production[path] = text
        lines = text.count("\n")
        if lines > FILE_LINES:
            listed.append(Finding(path, 1, f"a file of {lines} lines (more than {FILE_LINES})"))
        listed.extend(long_functions(path, text))
    broken.extend(large_classes(production))
    return broken, listed, count


def main(arguments: list) -> int:
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__)
        return 0 if arguments[0] in ("-h", "--help") else 2
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parents[2]
    broken, listed, count = check_tree(root)
    if count == 0:
        print(f"{root}: no source file found; expected a tree with {', '.join(TOP_FOLDERS)}", file=sys.stderr)
        return 2
    for finding in listed:
        print(f"note: {finding}")
    for finding in broken:
        print(f"error: {finding}")
    print(f"{count} files, {len(broken)} broken rules, {len(listed)} long files and functions")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
