#!/usr/bin/env python3
"""Proves that the tests can see: each planted fault of the source makes the test fail that faults.tsv names for it.

Usage: check.py BUILD_FOLDER [FAULT...]   runs them all, or the named ones, in a build made with -DWSYNC_PLANTED=ON
       check.py BUILD_FOLDER --share K/N  runs the K-th of N shares of those whose tests are built there, and names the others' number
       check.py --list                    only compares faults.tsv with the faults in the source

A fault is caught when its test passes without it, and with it fails and says the words of the column `says`: so it was
seen by the check that is about it, not by a crash somewhere else. Exit: 0 all caught, 1 one was not, 2 wrong usage.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Dict, Iterator, List, NamedTuple, Sequence

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE_FOLDERS = ("shared", "trainer_side", "inference_side", "deploy")
PLANTED = re.compile(r'\bplanted\("([^"]+)"\)')
LIMIT_S = 300  # only ends what hangs: on a busy machine a test takes many times as long
OUTPUT_LINES = 30
# Ten times the seeds of the simulation that show a fault; the suite runs two thousand.
ENVIRONMENT = {"WSYNC_SIM_RUNS": "200"}


class Case(NamedTuple):
    fault: str
    executable: str  # a GoogleTest executable of the build, or a file of tests/scenario or tests/soak
    test: str  # the filter, or the name for unittest
    says: str  # what the failing check prints
    bug: str  # for people


class Run(NamedTuple):
    verdict: str  # "passed", "failed", or what else happened
    output: str


def read_cases() -> List[Case]:
    cases = []
    for number, line in enumerate((HERE / "faults.tsv").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("#"):
            continue
        columns = line.split("\t")
        if len(columns) != len(Case._fields) or not all(columns):
            raise SystemExit(f"faults.tsv:{number}: expected {len(Case._fields)} columns, none empty: {line!r}")
        cases.append(Case(*columns))
    return cases


def check_list(cases: List[Case]) -> int:
    listed = [case.fault for case in cases]
    source = set()
    problems = [f"faults.tsv: '{fault}' has two lines" for fault in sorted(set(listed)) if listed.count(fault) > 1]
    for folder in SOURCE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            for fault in PLANTED.findall(path.read_text(encoding="utf-8")):
                source.add(fault)
                if fault not in listed:
                    problems.append(f"{path.relative_to(ROOT)}: fault '{fault}' has no line in faults.tsv")
    problems += [f"faults.tsv: fault '{fault}' is nowhere in the source" for fault in listed if fault not in source]
    print("\n".join(problems) if problems else f"{len(listed)} planted faults, each in the source and in faults.tsv")
    return 1 if problems else 0


def command_of(case: Case, build: pathlib.Path) -> List[str]:
    if case.executable.endswith(".py"):
        wsync = str(build / "deploy" / "cli" / "wsync")
        soak = ROOT / "tests" / "soak" / case.executable
        if soak.is_file():
            return [sys.executable, "-B", str(soak), case.test, wsync, str(build / "tests" / "soak" / "wsync_soak")]
        return [sys.executable, "-B", str(ROOT / "tests" / "scenario" / case.executable), case.test, wsync]
    built = [str(path) for path in build.glob(f"tests/**/{case.executable}") if path.is_file()]
    return [*built, f"--gtest_filter={case.test}"] if built else []


@functools.lru_cache(maxsize=None)
def environments(build: pathlib.Path) -> Dict[str, Dict[str, str]]:
    """What the build sets for each of its tests, by executable: where the emulated libraries are, for example."""
    listed = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"], check=True, stdout=subprocess.PIPE,
                            timeout=LIMIT_S).stdout
    found: Dict[str, Dict[str, str]] = {}
    for test in json.loads(listed)["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", ())}
        if test.get("command") and pathlib.Path(test["command"][0]).name == test["name"]:
            found[test["command"][0]] = dict(word.split("=", 1) for word in properties.get("ENVIRONMENT", ()))
    return found


def run(build: pathlib.Path, command: Sequence[str], fault: str) -> Run:
    environment = {**os.environ, **environments(build).get(os.path.abspath(command[0]), {}), **ENVIRONMENT, "WSYNC_PLANT": fault}
    try:
        done = subprocess.run(command, env=environment, timeout=LIMIT_S, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except subprocess.TimeoutExpired as expired:
        return Run(f"did not end within {LIMIT_S} s", (expired.output or b"").decode(errors="replace"))
    output = done.stdout.decode(errors="replace")
    if re.search(r"^\[==========\] Running 0 tests", output, re.MULTILINE):
        return Run("matches no test", output)
    return Run("failed" if done.returncode else "passed", output)


def why_not_caught(build: pathlib.Path, case: Case, command: Sequence[str], without: "Future[Run]") -> str:
    """'' when the fault is caught."""
    clean = without.result()
    if clean.verdict != "passed":
        return f"without the fault it {clean.verdict}:\n{clean.output}"
    planted = run(build, command, case.fault)
    if planted.verdict != "failed":
        return f"with the fault it {planted.verdict}:\n{planted.output}"
    if case.says not in planted.output:
        return f"with the fault it fails without saying '{case.says}':\n{planted.output}"
    return ""


def problems_of(build: pathlib.Path, cases: List[Case]) -> Iterator[str]:
    """why_not_caught() of each case. A test that several faults name runs without them once."""
    commands = [tuple(command_of(case, build)) for case in cases]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # All of these begin before the first of those that wait for one of them.
        without = {command: pool.submit(run, build, command, "") for command in dict.fromkeys(commands) if command}
        found = [pool.submit(why_not_caught, build, case, command, without[command]) if command else None
                 for case, command in zip(cases, commands)]
        for case, problem in zip(cases, found):
            yield problem.result() if problem else f"{case.executable} is not built under {build}"


def check_faults(build: pathlib.Path, cases: List[Case]) -> int:
    width = max(len(case.fault) for case in cases)
    missed = []
    for case, problem in zip(cases, problems_of(build, cases)):
        if problem:
            missed.append(case.fault)
        verdict = "MISSED" if problem else "caught"
        print(f"{verdict}  {case.fault:<{width}}  {case.executable} {case.test}", flush=True)
        reason, _, output = problem.partition("\n")
        for line in [reason, *output.splitlines()[-OUTPUT_LINES:]] if problem else []:
            print(f"        {line}")
    print(f"{len(cases)} planted faults, {len(cases) - len(missed)} caught" +
          (f"; missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def share_of(build: pathlib.Path, cases: List[Case], share: str) -> List[Case]:
    """The K-th of N shares of what is built: neighbours in faults.tsv, which are of one test, go to different shares."""
    number, of = (int(part) for part in share.split("/"))
    built = [case for case in cases if case.executable.endswith(".py") and (build / "deploy" / "cli" / "wsync").is_file() or
             not case.executable.endswith(".py") and command_of(case, build)]
    chosen = built[number - 1::of]
    print(f"share {share}: {len(chosen)} of the {len(built)} faults whose tests are built; {len(cases) - len(built)} others need more of the build")
    return chosen


def main(arguments: List[str]) -> int:
    cases = read_cases()
    if arguments == ["--list"]:
        return check_list(cases)
    share = ""
    if len(arguments) == 3 and arguments[1] == "--share":
        share = arguments.pop()
        arguments.pop()
        parts = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", share)
        if not parts or int(parts[1]) > int(parts[2]):
            print(f"--share {share}: expected K/N, K from 1 to N", file=sys.stderr)
            return 2
    faults = set(arguments[1:])
    unknown = faults - {case.fault for case in cases}
    if not arguments or arguments[0].startswith("-") or unknown:
        print(__doc__ if not unknown else f"no such fault: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    build = pathlib.Path(arguments[0])
    cache = build / "CMakeCache.txt"
    if not cache.is_file() or not re.search(r"^WSYNC_PLANTED:\w+=ON$", cache.read_text(encoding="utf-8"), re.MULTILINE):
        print(f"{build} was not configured with -DWSYNC_PLANTED=ON", file=sys.stderr)
        return 2
    cases = [case for case in cases if not faults or case.fault in faults]
    if not (build / "tests" / "emulated_cuda" / "libcuda.so.1").exists():
        without = [case.fault for case in cases if case.executable.endswith("_gpu")]
        cases = [case for case in cases if case.fault not in without]
        print("".join(f"not run: {fault} needs a build with CUDA\n" for fault in without), end="")
    if share:
        cases = share_of(build, cases, share)
        if not cases:
            print(f"{build} has none of their tests", file=sys.stderr)
            return 1
    return check_faults(build, cases)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
