#!/usr/bin/env python3
"""Draws and compares the result files of `wsync bench`.

`wsync bench report`, `wsync bench compare` and the option --svg of suites start this program. They have already
checked the result files (bench/harness/read_result.h), and they copy its output to the location that the user chose.

    plot.py check                                    reports whether the packages for drawing are installed
    plot.py report --into DIR -- RESULT...           page.html, and each plot as ID.svg and ID.png
    plot.py suite --into DIR -- RESULT               picture.svg: the picture of the single suite in the file
    plot.py compare [--factor FACTOR] -- A B         reports what has changed from A to B

Every command prints one JSON object on standard output. Exit codes: 0 done; 1 failed; 2 the files cannot be compared;
3 a Python package is missing. On failure the last line on standard error is a sentence for the user.
"""
from __future__ import annotations

import argparse
import bisect
import dataclasses
import functools
import html
import importlib
import io
import json
import math
import os
import re
import sys
import textwrap
from typing import TYPE_CHECKING, Any, Callable, Iterable, Optional, Sequence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EXIT_BAD_INPUT = 2
EXIT_MISSING = 3


class BadInput(Exception):
    """The files cannot be used. The message is a sentence for the user."""


class MissingPackage(Exception):
    """A Python package that the command needs is not installed. The message is a sentence for the user."""


def require(modules: dict[str, str], purpose: str) -> None:
    """Imports `modules` (module -> Debian's package), or raises MissingPackage with all modules that are missing."""
    missing = []
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError:
            missing.append(module)
    if missing:
        packages = " ".join(modules[module] for module in missing)
        names = " and ".join(module.partition(".")[0] for module in missing)
        raise MissingPackage(f"{purpose} needs the Python package{'s' * (len(missing) > 1)} {names}, which "
                             f"{sys.executable} does not have; on Debian: apt-get install {packages}")


# ---- Result files


@dataclasses.dataclass
class Case:
    """One measured figure of a suite. `ratios` are shares of the baseline's speed, round by round: 1 is as fast."""
    name: str
    what: str
    unit: str
    higher_is_better: bool
    samples: list[float]
    bytes: int = 0
    baseline: str = ""  # name of the baseline
    baseline_samples: list[float] = dataclasses.field(default_factory=list)
    ratios: list[float] = dataclasses.field(default_factory=list)
    target: Optional[tuple[str, float]] = None  # "ratio", "median" or "most", and the value

    def met(self) -> bool:
        """Whether the target is reached; true without a target."""
        if self.target is None:
            return True
        of, value = self.target
        if of == "ratio":
            return median(self.ratios) >= value
        if of == "most":
            return max(self.samples) <= value
        return median(self.samples) >= value if self.higher_is_better else median(self.samples) <= value


@dataclasses.dataclass
class Suite:
    """What one suite measured with one set of parameters."""
    name: str
    parameters: dict[str, Any]
    cases: list[Case]
    notes: list[str]
    details: Any = None


@dataclasses.dataclass
class Run:
    """One result file, and the name that the user gave for it."""
    name: str
    date: str
    version: str
    machine: dict[str, Any]
    suites: list[Suite]


def read_samples(holder: dict[str, Any]) -> list[float]:
    return [float(value) for value in holder["samples"]]


def read_case(data: dict[str, Any]) -> Case:
    baseline = data.get("baseline")
    return Case(name=data["name"], what=data["what"], unit=data["unit"], higher_is_better=data["higher_is_better"],
                samples=read_samples(data["value"]), bytes=data.get("bytes", 0),
                baseline=baseline["name"] if baseline else "",
                baseline_samples=read_samples(baseline["value"]) if baseline else [],
                ratios=read_samples(data["ratio"]) if "ratio" in data else [],
                target=(data["target"]["of"], data["target"]["value"]) if "target" in data else None)


def read_run(path: str) -> Run:
    """Reads a result file that has already been checked."""
    with open(path, encoding="utf-8-sig") as file:
        data = json.load(file)
    suites = [Suite(one["suite"], one["parameters"], [read_case(case) for case in one["cases"]], one["notes"],
                    one.get("details")) for one in data["suites"]]
    return Run(os.path.basename(path), data["date"], data["wsync_version"], data["machine"], suites)


# ---- Statistics


def median(values: Sequence[float]) -> float:
    """The middle value, or the mean of the two middle values. 0 if there are none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low + (high - low) / 2


EXACT_SAMPLES_MAX = 30  # per side; with more samples the rank sum is treated as normally distributed


@functools.lru_cache(maxsize=64)
def rank_sum_ways(doubled_ranks: tuple[int, ...], count: int) -> Any:
    """ways[s]: in how many ways `count` of these ranks have the doubled sum s.

    Ranks are doubled because equal values share the mean of their ranks, which may be a half. SciPy's exact distribution
    does not hold for equal values; this one does (B. Streitberg and J. Roehmel, "Exact Distributions for Permutation and
    Rank Tests", Statistical Software Newsletter 12, 1986). Without equal values it is the same.
    """
    import numpy
    ways = numpy.zeros((count + 1, sum(sorted(doubled_ranks)[-count:]) + 1))
    ways[0, 0] = 1
    for rank in doubled_ranks:
        if rank < ways.shape[1]:
            # NumPy reads the right-hand side before it writes, so each rank is used at most once.
            ways[1:, rank:] += ways[:-1, :ways.shape[1] - rank]
    return ways[count]


def rank_sum_chance(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of the test of Mann and Whitney: the probability of ranks that differ at least as much
    if both samples come from the same distribution. 1 if a sample is empty."""
    import scipy.stats
    if not a or not b:
        return 1.0
    pool = [*a, *b]
    if min(pool) == max(pool):
        return 1.0  # SciPy's normal approximation would divide by a variance of 0
    ordered = sorted(pool)
    ranks = [bisect.bisect_left(ordered, value) + bisect.bisect_right(ordered, value) + 1 for value in pool]  # doubled
    if max(len(a), len(b)) > EXACT_SAMPLES_MAX:
        # Uses the ranks instead of the values: the result is the same, and their sums never overflow.
        return float(scipy.stats.mannwhitneyu(ranks[:len(a)], ranks[len(a):], alternative="two-sided",
                                              method="asymptotic").pvalue)
    ways = rank_sum_ways(tuple(sorted(ranks)), len(a))
    found = sum(ranks[:len(a)])
    return min(1.0, 2 * float(min(ways[:found + 1].sum(), ways[found:].sum()) / ways.sum()))


def least_chance(a: Sequence[float], b: Sequence[float]) -> float:
    """The minimum p-value of samples with these sizes and ties: all values of one side are below those of the other. Small
    samples prove little, however different they are."""
    pool = sorted([*a, *b])
    return min(rank_sum_chance(pool[:len(a)], pool[len(a):]), rank_sum_chance(pool[len(b):], pool[:len(b)]))


def adjust_by_holm(chances: Sequence[float], least: Sequence[float]) -> tuple[list[float], list[float]]:
    """Both lists, adjusted for the number of tests by the step-down procedure of Holm (Scandinavian Journal of Statistics
    6, 1979): below a level, that level bounds the probability of any false alarm, however the cases depend on each other.

    `least` is adjusted as if that test alone had its least p-value and the others had what they have.
    """
    ordered = sorted(range(len(chances)), key=chances.__getitem__)
    adjusted = [1.0] * len(chances)
    steps: list[float] = []  # adjusted p-values in ascending order
    for rank, index in enumerate(ordered):
        # A test counts only if all tests with smaller p-values count.
        steps.append(max([*steps[-1:], (len(ordered) - rank) * chances[index]]))
        adjusted[index] = min(1.0, steps[-1])
    lowest = []
    for value in least:
        rank = sum(chance < value for chance in chances)
        own = (len(ordered) - min(rank, len(ordered) - 1)) * value
        lowest.append(min(1.0, max([*steps[:rank][-1:], own])))
    return adjusted, lowest


# ---- Comparison of two result files

CHANCE_MAX = 0.05  # probability of any false alarm in a comparison
JUDGED_SAMPLES_MIN = 5  # per side
MACHINE_SUITE = "baseline"  # its cases measure the machine itself, so their ratios to one of them are not used
SAME, BETTER, WORSE, TOO_FEW = "no change shown", "better", "worse", "too few rounds to tell"


def speed_of(a: float, b: float, higher_is_better: bool) -> Optional[float]:
    """Speed of B divided by that of A. None if a median is not above 0 and they differ."""
    if a == b:
        return 1.0
    if not (a > 0 and b > 0):
        return None
    return b / a if higher_is_better else a / b


@dataclasses.dataclass
class Judged:
    """A case that is in both files: the compared values, and the test's result for it alone and among all cases."""
    suite: str
    a: Case
    b: Case
    chance: float = 1.0
    least: float = 1.0
    chance_among_all: float = 1.0
    least_among_all: float = 1.0

    def __post_init__(self) -> None:
        # A case with a baseline is judged by its ratios, so that a slower machine alone is not reported as a change.
        self.by_ratio = (self.suite != MACHINE_SUITE and bool(self.a.ratios) and bool(self.b.ratios)
                         and self.a.baseline == self.b.baseline)
        self.of_a = self.a.ratios if self.by_ratio else self.a.samples
        self.of_b = self.b.ratios if self.by_ratio else self.b.samples
        self.higher_is_better = self.by_ratio or self.a.higher_is_better
        self.speed = speed_of(median(self.a.samples), median(self.b.samples), self.a.higher_is_better)
        self.judged_speed = speed_of(median(self.of_a), median(self.of_b), self.higher_is_better)

    def has_samples(self) -> bool:
        return min(len(self.of_a), len(self.of_b)) >= JUDGED_SAMPLES_MIN

    def verdict(self, factor: float) -> str:
        """A change exceeds `factor` and what chance explains among all cases of the comparison."""
        if not self.has_samples():
            return TOO_FEW
        if len({*self.of_a, *self.of_b}) == 1:
            return SAME
        if self.least_among_all >= CHANCE_MAX:
            return TOO_FEW
        beyond = self.judged_speed is None or not 1 / factor <= self.judged_speed <= factor
        if not beyond or self.chance_among_all >= CHANCE_MAX:
            return SAME
        return BETTER if (median(self.of_b) > median(self.of_a)) == self.higher_is_better else WORSE

    def to_json(self, factor: float) -> dict[str, Any]:
        return {"suite": self.suite, "name": self.a.name, "unit": self.a.unit,
                "median_a": finite(median(self.a.samples)), "median_b": finite(median(self.b.samples)),
                "judged_by": "ratio" if self.by_ratio else "value", "chance": self.chance,
                "chance_among_all": self.chance_among_all, "verdict": self.verdict(factor),
                "speed": finite(self.speed), "judged_speed": finite(self.judged_speed)}


def finite(value: Optional[float]) -> Optional[float]:
    """JSON has no number for infinity."""
    return value if value is not None and math.isfinite(value) else None


def same_suite(run: Run, suite: Suite) -> Optional[Suite]:
    return next((one for one in run.suites if (one.name, one.parameters) == (suite.name, suite.parameters)), None)


def same_case(suite: Optional[Suite], name: str) -> Optional[Case]:
    return next((one for one in suite.cases if one.name == name), None) if suite else None


def pairs_of(a: Run, b: Run) -> list[Judged]:
    """Suites are matched by name and parameters, cases by name. BadInput if a case has another unit or
    direction in B."""
    pairs = []
    for suite in a.suites:
        other = same_suite(b, suite)
        for one in suite.cases:
            same = same_case(other, one.name)
            if same is None:
                continue
            if (same.unit, same.higher_is_better) != (one.unit, one.higher_is_better):
                better = {True: "more", False: "less"}
                raise BadInput(f"{suite.name}: {one.name}: in A {one.unit} and {better[one.higher_is_better]} is better, in "
                               f"B {same.unit} and {better[same.higher_is_better]}: these figures cannot be compared")
            pairs.append(Judged(suite.name, one, same))
    return pairs


def judge_together(pairs: list[Judged]) -> None:
    """Sets the p-values of all pairs. Pairs with too few samples are not part of the family of tests."""
    family = [pair for pair in pairs if pair.has_samples()]
    for pair in pairs:
        pair.chance, pair.least = rank_sum_chance(pair.of_a, pair.of_b), least_chance(pair.of_a, pair.of_b)
    adjusted, least = adjust_by_holm([pair.chance for pair in family], [pair.least for pair in family])
    for index, pair in enumerate(family):
        pair.chance_among_all, pair.least_among_all = adjusted[index], least[index]


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def machine_differences(a: Run, b: Run) -> list[str]:
    def said(run: Run, key: str) -> str:
        return compact(run.machine[key]) if key in run.machine else "nothing"
    keys = sorted(a.machine) + sorted(b.machine.keys() - a.machine.keys())
    return [f"{key}: {said(a, key)} in A, {said(b, key)} in B" for key in keys if said(a, key) != said(b, key)]


def parameter_differences(a: Run, b: Run) -> list[str]:
    return [f"{suite.name}: {compact(suite.parameters)} in A, {compact(other.parameters)} in B"
            for suite in a.suites if same_suite(b, suite) is None
            for other in b.suites if other.name == suite.name]


def cases_left(run: Run, other: Run) -> list[str]:
    """Suites and cases that are in `run` but not in `other`."""
    return [f"{suite.name}: {one.name}" for suite in run.suites for one in suite.cases
            if same_case(same_suite(other, suite), one.name) is None]


def compare(a: Run, b: Run, factor: float) -> dict[str, Any]:
    """The object that `wsync bench compare --json` prints. BadInput if no case is in both files."""
    pairs = pairs_of(a, b)
    different = parameter_differences(a, b)
    if not pairs:
        raise BadInput("; ".join(["the files have no common case with the same parameters, so nothing can be compared", *different]))
    judge_together(pairs)
    cases = [pair.to_json(factor) for pair in pairs]
    return {"a": {"date": a.date, "wsync_version": a.version}, "b": {"date": b.date, "wsync_version": b.version},
            "factor": factor, "cases": cases, "chance_most": CHANCE_MAX,
            "better": sum(case["verdict"] == BETTER for case in cases),
            "worse": sum(case["verdict"] == WORSE for case in cases),
            "only_a": cases_left(a, b), "only_b": cases_left(b, a),
            "machine_differs": machine_differences(a, b), "parameters_differ": different}


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def comparison_text(result: dict[str, Any]) -> str:
    """The same as text."""
    def speed(value: Optional[float]) -> str:
        return "-" if value is None else f"{value:.3f}"

    def number(value: Optional[float]) -> str:
        return "-" if value is None else f"{value:.4g}"
    lines = [f"{letter.upper()}: wsync {result[letter]['wsync_version']}, {result[letter]['date']}" for letter in "ab"]
    lines += ["machine differs: " + one for one in result["machine_differs"]]
    lines += ["parameters differ, not compared: " + one for one in result["parameters_differ"]]
    width = max(4, *(len(one["suite"]) + len(one["name"]) + 2 for one in result["cases"]))
    row = "{:<{}} {:>12} {:>12} {:<6} {:>7} {:>7} {:<6} {:>8} {:>8}  {}"
    lines += ["", row.format("case", width, "A", "B", "", "speed", "judged", "by", "chance", "of all", "")]
    for one in result["cases"]:
        lines.append(row.format(
            f"{one['suite']}: {one['name']}", width, number(one["median_a"]), number(one["median_b"]), one["unit"],
            speed(one["speed"]), speed(one["judged_speed"]), one["judged_by"], f"{one['chance']:.2g}",
            f"{one['chance_among_all']:.2g}", one["verdict"]))
    lines += ["", *("only in A: " + one for one in result["only_a"]), *("only in B: " + one for one in result["only_b"])]
    too_few = sum(one["verdict"] == TOO_FEW for one in result["cases"])
    lines.append(f"{counted(len(result['cases']), 'case')} compared: {result['better']} better, {result['worse']} worse, "
                 f"{too_few} with too few rounds to tell; speed is B / A")
    lines.append(f"A case has changed if its medians differ by more than {result['factor']:.3g} times and its samples by more "
                 f"than chance explains (Mann and Whitney's rank sums, over all cases by Holm's procedure: the probability of "
                 f"any false alarm is at most {CHANCE_MAX:g}). A slower machine in one of the runs may appear as a change.")
    return "\n".join(lines) + "\n"


# ---- Text


def plain(text: str) -> str:
    """The text without characters that XML or a picture cannot contain."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text)


def escaped(text: str) -> str:
    return html.escape(plain(text))


def shortened(text: str, length: int) -> str:
    text = plain(text)
    return text if len(text) <= length else text[:max(0, length - 1)] + "\u2026"


def figure_text(value: float) -> str:
    """A number with four digits."""
    return f"{value:.0f}" if 1e3 <= abs(value) < 1e9 else f"{value:.4g}"


def bytes_text(count: float) -> str:
    """Bytes with three digits: "1.00 GiB"."""
    if count < 1024:
        return f"{count:.0f} B"
    unit = 0
    while count >= 1023.5 and unit < 6:
        count /= 1024
        unit += 1
    digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{digits}f} {['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'][unit]}"


def run_letter(index: int) -> str:
    """The labels of a report's files: A, B, ... Z, AA ..."""
    letter = chr(ord("A") + index % 26)
    return letter if index < 26 else run_letter(index // 26 - 1) + letter


def of_run(runs: Sequence[Run], index: int) -> str:
    """" (B)" if there are several files."""
    return f" ({run_letter(index)})" if len(runs) > 1 else ""


def counted_by(text: str, noun: str) -> Optional[tuple[int, str]]:
    """(2, "that map") of "2 engines that map". None unless it begins with a number above 0 and the noun."""
    match = re.fullmatch(rf"([0-9]{{1,19}}) {noun}s?(?:[ ,]+(.*))?", text)
    if match is None or int(match[1]) == 0:
        return None
    return int(match[1]), match[2] or ""


def split_name(name: str) -> tuple[str, str]:
    """The measurement and its variant: ("paused", "2 engines that map")."""
    what, _, rest = name.partition(", ")
    return what, rest


def id_text(text: str) -> str:
    """Letters, digits and dashes, for a file name."""
    return re.sub("[^a-z0-9]+", "-", text[:64].lower()).strip("-")


# ---- Drawing

# Distinguishable for readers with red-green colour blindness (after Okabe and Ito, 2008). Used in this order.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b5629a", "#8a7a00", "#808080"]
MARKERS = "osD^vP"
FLOOR_COLOUR = "#808080"
INK, DIM, GRID = "#1b1f24", "#57606a", "#dfe3e8"
WIDTH = 5.6  # inches per plot; two fit side by side on a page
CHARACTER = 0.073  # approximate inches per character of the small font
LINES_MAX = 12  # per plot; the tables contain the others
ROWS_MAX = 40  # rows of bars per plot; the tables contain the others
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # behind text, so that no line crosses it
DRAWN_MAX = 1e60  # greater numbers are drawn as this one; Matplotlib overflows only far above it

STYLE = {"font.family": "DejaVu Sans", "font.size": 9, "axes.edgecolor": "#a8b0b8", "axes.labelcolor": INK,
         "axes.linewidth": 0.8, "axes.axisbelow": True, "axes.grid": True, "axes.unicode_minus": False, "grid.color": GRID,
         "grid.linewidth": 0.7, "xtick.color": "#a8b0b8", "ytick.color": "#a8b0b8", "xtick.labelcolor": INK,
         "ytick.labelcolor": INK, "legend.frameon": False, "legend.fontsize": 8.5, "text.color": INK, "text.parse_math": False,
         "svg.fonttype": "none", "savefig.facecolor": "white"}


@dataclasses.dataclass
class Plot:
    """A picture of a report. `figure` is None if the files lack its data, which `command` produces."""
    id: str
    title: str
    figure: Optional[Figure] = None
    note: str = ""
    command: str = ""
    wide: bool = False  # across the whole page


@dataclasses.dataclass
class Line:
    """Points of a line by ascending x, each with a whisker from the minimum to the maximum sample."""
    name: str  # empty: not in the legend
    colour: str
    points: list[tuple[float, float]]
    whiskers: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    dashed: bool = False


@dataclasses.dataclass
class Bar:
    """A bar from 0. `value` None: only the text."""
    value: Optional[float]
    text: str
    colour: str
    whisker: Optional[tuple[float, float]] = None
    name: str = ""  # for the legend; empty: not in it


@dataclasses.dataclass
class Row:
    """Bars that belong together, under one name."""
    name: str
    bars: list[Bar]


def drawable(value: float) -> float:
    return max(-DRAWN_MAX, min(DRAWN_MAX, value)) if not math.isnan(value) else 0.0


def new_figure(title: str, height: float, width: float = WIDTH) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure
    matplotlib.rcdefaults()  # ignore the user's own style
    matplotlib.rcParams.update(STYLE)
    lines = textwrap.wrap(plain(title), int(width / 0.115)) or [""]
    figure = Figure(figsize=(width, height + 0.2 * len(lines)), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.07, h_pad=0.07)
    figure.suptitle("\n".join(lines), x=0.02, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def number_axis(axis: Any, low: float, high: float, logarithmic: bool) -> None:
    """Tick values of an axis from `low` to `high`. A logarithmic axis has powers of ten, and 2 and 5 times those if it is
    short."""
    from matplotlib import ticker
    if not logarithmic:
        axis.set_major_locator(ticker.MaxNLocator(5))
    else:
        decades = math.log10(high / low)
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        step = max(1, math.ceil((last - first) / 6))
        values = [factor * 10.0 ** power for power in range(first, last + 1, step)
                  for factor in ((1, 2, 5) if decades < 2.5 else (1,))]
        axis.set_major_locator(ticker.FixedLocator(values))
        axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: figure_text(value)))


def round_out(low: float, high: float) -> tuple[float, float]:
    """The nearest 1, 2 or 5 times a power of ten below and above, so that a logarithmic axis has at least two numbers."""
    def steps(value: float) -> list[float]:
        power = 10.0 ** math.floor(math.log10(value))
        return [power * factor for factor in (0.5, 1, 2, 5, 10, 20)]
    return max(s for s in steps(low) if s <= low * 0.9), min(s for s in steps(high) if s >= high * 1.15)


def named_ticks(axes: Axes, ticks: Iterable[tuple[float, str]]) -> None:
    """Ticks of the horizontal axis, without those whose text would overlap the previous one."""
    from matplotlib import ticker
    logarithmic = axes.get_xscale() == "log"

    def place(value: float) -> float:
        low, high = axes.get_xlim()
        if logarithmic:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return (value - low) / (high - low) * (WIDTH - 0.9)
    kept: list[tuple[float, str]] = []
    for value, text in sorted(set(ticks)):
        if not kept or place(value) - place(kept[-1][0]) > (len(text) + len(kept[-1][1]) + 2) / 2 * CHARACTER:
            kept.append((value, text))
    axes.xaxis.set_major_locator(ticker.FixedLocator([value for value, _ in kept]))
    axes.xaxis.set_major_formatter(ticker.FixedFormatter([text for _, text in kept]))
    axes.xaxis.set_minor_locator(ticker.NullLocator())


def draw_line(axes: Axes, line: Line, place: float, marker: str) -> None:
    """`place`: points to the right, so that whiskers of lines at the same x do not overlap."""
    from matplotlib.transforms import ScaledTranslation
    moved = axes.transData + ScaledTranslation(place / 72, 0, axes.figure.dpi_scale_trans)
    x, y = [drawable(p[0]) for p in line.points], [drawable(p[1]) for p in line.points]
    if line.dashed:
        axes.plot(x, y, color=line.colour, linestyle=(0, (4, 3)), linewidth=1.2, label=plain(line.name) or "_", transform=moved)
        return
    errors = None
    if line.whiskers:
        errors = [[max(0.0, at - drawable(low)) for at, (low, _) in zip(y, line.whiskers)],
                  [max(0.0, drawable(high) - at) for at, (_, high) in zip(y, line.whiskers)]]
    axes.errorbar(x, y, yerr=errors, color=line.colour, marker=marker, markersize=5, linewidth=1.6, elinewidth=1, capsize=3,
                  label=shortened(line.name, 70) or "_", transform=moved)


def draw_lines(axes: Axes, lines: list[Line], x_label: str, y_label: str, *, x_log: bool, y_log: bool,
               ticks: list[tuple[float, str]], levels: Sequence[tuple[float, str]] = ()) -> None:
    """Lines on one pair of axes. A vertical axis that is not logarithmic begins at 0."""
    xs = [drawable(x) for line in lines for x, _ in line.points]
    ys = [drawable(y) for line in lines for y in [p[1] for p in line.points] + [w for pair in line.whiskers for w in pair]]
    ys += [value for value, _ in levels]
    edge = 1.12 * (max(xs) / min(xs)) ** 0.03 if x_log else 0.05 * (max(xs) - min(xs)) or 1
    axes.set_xscale("log" if x_log else "linear")
    axes.set_xlim(*((min(xs) / edge, max(xs) * edge) if x_log else (min(xs) - edge, max(xs) + edge)))
    if y_log:
        above = [y for y in ys if y > 1 / DRAWN_MAX]
        low, high = round_out(min(above), max(above)) if above else (0.1, 10.0)
        axes.set_yscale("log", nonpositive="mask")
    else:
        low, high = 0.0, 1.08 * max([*ys, 0]) or 1.0
    axes.set_ylim(low, high)
    number_axis(axes.yaxis, low, high, y_log)
    solid = [line for line in lines if not line.dashed]
    for line in lines:
        at = solid.index(line) if line in solid else 0
        draw_line(axes, line, 0 if line.dashed else 3.5 * (at - (len(solid) - 1) / 2) if line.whiskers else 0,
                  MARKERS[at % len(MARKERS)])
    for value, name in levels:
        axes.axhline(value, color=DIM, linestyle=(0, (2, 2)), linewidth=1, label=name)
    named_ticks(axes, ticks)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def legend_entries(axes: Axes) -> tuple[list[Any], list[str]]:
    """Handles and names. Lines without markers come last."""
    handles, names = axes.get_legend_handles_labels()
    order = sorted(range(len(names)), key=lambda at: isinstance(handles[at], tuple), reverse=True)
    return [handles[at] for at in order], [names[at] for at in order]


def legend_above(axes: Axes) -> None:
    """A legend between the title and the axes, in as many columns as fit."""
    handles, names = legend_entries(axes)
    if names:
        inches = axes.figure.get_figwidth() - 0.8
        columns = max(1, min(len(names), int(inches / (max(map(len, names)) * CHARACTER + 0.5))))
        axes.legend(handles, names, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.3,
                    columnspacing=1.4)


def line_plot(title: str, lines: list[Line], x_label: str, y_label: str, **options: Any) -> Figure:
    figure = new_figure(title, 2.75 + 0.16 * len(lines))
    axes = figure.add_subplot()
    draw_lines(axes, lines, x_label, y_label, **options)
    legend_above(axes)
    return figure


NAME_HEIGHT, BAR_HEIGHT, ROW_GAP = 0.2, 0.17, 0.07  # inches


def rows_height(rows: Sequence[Row]) -> float:
    return sum(NAME_HEIGHT + BAR_HEIGHT * len(row.bars) + ROW_GAP for row in rows)


def bar_end(bar: Bar) -> float:
    return max(0.0, *(drawable(v) for v in (bar.value or 0.0, *(bar.whisker or ()))))


def draw_bars(axes: Axes, rows: Sequence[Row], x_label: str, levels: Sequence[tuple[float, str]], inches: float) -> None:
    """Rows of bars from the top. The vertical axis is in inches; `inches` is the approximate width of the axes."""
    bars = [bar for row in rows for bar in row.bars]
    # Leaves space to the right of each bar for its text.
    ends = [bar_end(bar) / (1 - min(0.7, (len(bar.text) * CHARACTER + 0.15) / inches)) for bar in bars]
    most = max([*ends, *(value * 1.06 for value, _ in levels)]) or 1.0
    axes.set_xlim(0, most)
    axes.set_ylim(rows_height(rows), 0)
    top = 0.0
    legend: dict[str, Any] = {}
    for row in rows:
        axes.text(0.005, top + NAME_HEIGHT * 0.55, shortened(row.name, int(inches / CHARACTER)), va="center",
                  transform=axes.get_yaxis_transform(), fontsize=9, bbox=PAPER)
        for index, bar in enumerate(row.bars):
            y = top + NAME_HEIGHT + BAR_HEIGHT * (index + 0.5)
            if bar.value is not None:
                value = max(0.0, drawable(bar.value))
                drawn = axes.barh(y, value, height=BAR_HEIGHT * 0.8, color=bar.colour)
                if bar.name:
                    legend.setdefault(bar.name, drawn)
                if bar.whisker:
                    low, high = (max(0.0, drawable(end)) for end in bar.whisker)
                    axes.errorbar(value, y, xerr=[[max(0.0, value - low)], [max(0.0, high - value)]], color=INK, elinewidth=1,
                                  capsize=2.5)
            axes.annotate(plain(bar.text), (bar_end(bar), y), (4, 0), textcoords="offset points", va="center", fontsize=8.5,
                          bbox=PAPER)
        top += NAME_HEIGHT + BAR_HEIGHT * len(row.bars) + ROW_GAP
    for value, name in levels:
        axes.axvline(value, color=DIM, linestyle=(0, (2, 2)), linewidth=1)
        axes.text(value, 1.0, name, transform=axes.get_xaxis_transform(), ha="center" if value > most / 10 else "left",
                  va="bottom", color=DIM, fontsize=8.5)
    number_axis(axes.xaxis, 0, most, False)
    axes.yaxis.set_visible(False)
    axes.set_xlabel(x_label)
    if legend:
        axes.legend(legend.values(), legend.keys(), loc="lower left", bbox_to_anchor=(0, 1.0), ncols=len(legend),
                    borderaxespad=0.3)


def bar_plot(title: str, rows: Sequence[Row], x_label: str, levels: Sequence[tuple[float, str]] = (), width: float = WIDTH,
             subtitle: str = "") -> Optional[Figure]:
    """Returns None if there are no rows."""
    rows = rows[:ROWS_MAX]
    if not rows:
        return None
    figure = new_figure(title, rows_height(rows) + 0.75 + (0.2 if subtitle else 0), width)
    axes = figure.add_subplot()
    draw_bars(axes, rows, x_label, levels, width - 0.3)
    axes.set_title(plain(subtitle), loc="left", fontsize=9, color=DIM)
    return figure


def bar_of(samples: Sequence[float], unit: str, colour: str, name: str = "") -> Bar:
    return Bar(median(samples), f"{figure_text(median(samples))} {unit}".strip(), colour, (min(samples), max(samples)), name)


def svg_of(figure: Figure, plot_id: str, title: str) -> str:
    """The picture as an <svg> element without external references. Its ids begin with the plot's id, so that one page can
    contain several pictures. The same figure gives the same text."""
    import matplotlib
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": plot_id}):
        figure.savefig(stream, format="svg", metadata={"Creator": None, "Date": None, "Format": None, "Type": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg"):], flags=re.DOTALL)
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "").replace("xlink:href=", "href=")
    text = re.sub(r'(?<=\sid=")|(?<=href="#)|(?<=url\(#)', plot_id + "-", text)
    return text.replace("<svg ", f'<svg role="img" aria-label="{escaped(title)}" ', 1)


# ---- Plots of the suites


def suites_named(runs: Sequence[Run], name: str) -> list[tuple[int, Suite]]:
    return [(index, suite) for index, run in enumerate(runs) for suite in run.suites if suite.name == name]


@dataclasses.dataclass
class Paused:
    """One case "paused" of the suite sync."""
    run: int
    engines: int
    model_bytes: int  # 0: not in the parameters
    how: str  # "that map on 2 devices"; empty: they copy
    model: str  # name; empty: a demo model
    case: Case

    def size(self) -> str:
        return (self.model + ", " if self.model else "") + (bytes_text(self.model_bytes) if self.model_bytes else "model")


def all_paused(runs: Sequence[Run]) -> list[Paused]:
    found = []
    for index, suite in suites_named(runs, "sync"):
        size, model = suite.parameters.get("bytes"), suite.parameters.get("model")
        for case in suite.cases:
            what, rest = split_name(case.name)
            engines = counted_by(rest, "engine")
            if what == "paused" and case.unit == "ms" and engines:
                found.append(Paused(index, engines[0], size if isinstance(size, int) and size > 0 else 0, engines[1],
                                    model if isinstance(model, str) else "", case))
    return found


def group_lines(points: Sequence[Paused], key: Callable[[Paused], Any], x: Callable[[Paused], int],
                rank: Callable[[Paused], int], name: Callable[[Paused], str]) -> list[tuple[str, list[Paused]]]:
    """Named lines of the points with one key, ordered by rank. Points at a single x do not form a line."""
    groups: dict[Any, list[Paused]] = {}
    for point in points:
        groups.setdefault(key(point), []).append(point)
    lines = [sorted(group, key=x) for group in groups.values() if len({x(point) for point in group}) > 1]
    lines = sorted(lines, key=lambda line: rank(line[0]))[:LINES_MAX]
    names = [name(line[0]) for line in lines]
    # Lines with the same name get the labels of their files.
    return [(text if names.count(text) == 1 else f"{text} ({run_letter(line[0].run)})", line)
            for text, line in zip(names, lines)]


def lines_by_engines(points: Sequence[Paused]) -> list[tuple[str, list[Paused]]]:
    return group_lines(points, key=lambda p: (p.run, p.model_bytes, p.model, p.how), x=lambda p: p.engines,
                       rank=lambda p: p.model_bytes, name=lambda p: p.size() + (", " + p.how if p.how else ""))


def engine_ticks(lines: list[tuple[str, list[Paused]]]) -> list[tuple[float, str]]:
    return [(p.engines, str(p.engines)) for _, line in lines for p in line]


def gigabytes_per_second(case: Case, milliseconds: float) -> float:
    return case.bytes / 1e6 / milliseconds if milliseconds > 0 else 0.0


ENGINES_COMMAND = "wsync bench sync --engines 1,2,4,8 --output FILE"


def throughput_plot(points: list[Paused]) -> Plot:
    plot = Plot("sync-throughput", "sync: throughput by number of engines", command=ENGINES_COMMAND,
                note="Bytes that all engines load together, divided by the time of the pause. Dashed: the floor, which is a "
                     "plain copy of the same bytes in the same rounds.")
    groups = [(name, line) for name, line in lines_by_engines(points) if line[0].case.bytes]
    lines = []
    for index, (name, group) in enumerate(groups):
        colour = COLOURS[index % len(COLOURS)]
        lines.append(Line(name, colour, [(p.engines, gigabytes_per_second(p.case, median(p.case.samples))) for p in group],
                          [(gigabytes_per_second(p.case, max(p.case.samples)),
                            gigabytes_per_second(p.case, min(p.case.samples))) for p in group]))
        floor = [(float(p.engines), gigabytes_per_second(p.case, median(p.case.baseline_samples)))
                 for p in group if p.case.baseline]
        if floor:
            lines.append(Line("floor of " + name if index == 0 and len(groups) == 1 else "", colour, floor, dashed=True))
    if lines:
        plot.figure = line_plot(plot.title, lines, "Engines", "GB/s, all engines together", x_log=True, y_log=False,
                                ticks=engine_ticks(groups))
    return plot


def share_plot(points: list[Paused]) -> Plot:
    plot = Plot("sync-share-of-floor", "sync: speed relative to the floor by number of engines", command=ENGINES_COMMAND,
                note="Time of the floor divided by the time of the pause, round by round. An update that costs nothing but "
                     "the copy of its bytes has 1.")
    groups = [(name, line) for name, line in lines_by_engines(points) if all(p.case.ratios for p in line)]
    lines = [Line(name, COLOURS[index % len(COLOURS)], [(p.engines, median(p.case.ratios)) for p in group],
                  [(min(p.case.ratios), max(p.case.ratios)) for p in group]) for index, (name, group) in enumerate(groups)]
    targets = {p.case.target[1] for _, group in groups for p in group if p.case.target and p.case.target[0] == "ratio"}
    if lines:
        plot.figure = line_plot(plot.title, lines, "Engines", "Floor / pause (1: as fast as the floor)", x_log=True, y_log=False,
                                ticks=engine_ticks(groups),
                                levels=[(value, f"target {figure_text(value)}") for value in sorted(targets)[:1]])
    return plot


def size_plot(runs: Sequence[Run], points: list[Paused]) -> Plot:
    plot = Plot("sync-paused-by-size", "sync: time of the pause by model size",
                note="From PAUSED of the last rank to RESUME.",
                command="wsync bench sync --size SIZE --output SIZE.json, once for each size, and all of those files in one report")
    machines = [next(i for i, run in enumerate(runs) if run.machine == other.machine) for other in runs]
    # A line between two machines would have no meaning.
    groups = group_lines([p for p in points if p.model_bytes], key=lambda p: (machines[p.run], p.engines, p.how),
                         x=lambda p: p.model_bytes, rank=lambda p: p.engines,
                         name=lambda p: counted(p.engines, "engine") + (", " + p.how if p.how else ""))
    if not groups:
        return plot
    lines = [Line(name, COLOURS[index % len(COLOURS)], [(p.model_bytes, median(p.case.samples)) for p in group],
                  [(min(p.case.samples), max(p.case.samples)) for p in group]) for index, (name, group) in enumerate(groups)]
    sizes = [p.model_bytes for _, group in groups for p in group]
    times = [t for line in lines for pair in line.whiskers for t in pair if t > 0]
    # Both axes are logarithmic or neither is, so that time proportional to bytes is a straight line.
    logarithmic = max(sizes) >= 10 * min(sizes) or bool(times) and max(times) >= 10 * min(times)
    plot.figure = line_plot(plot.title, lines, "Bytes of the model", "Paused, ms", x_log=logarithmic, y_log=logarithmic,
                            ticks=[(size, bytes_text(size)) for size in sizes])
    return plot


def sync_plots(runs: Sequence[Run]) -> list[Plot]:
    points = all_paused(runs)
    return [throughput_plot(points), share_plot(points), size_plot(runs, points)]


def contenders_of(suite: Suite) -> list[tuple[str, Case, list[Case]]]:
    """(name, total time, parts of that time) of each peer, the fastest first."""
    found: dict[str, tuple[Case, list[Case]]] = {}
    for case in suite.cases:
        if case.unit == "s":
            what, rest = split_name(case.name)
            if (rest or what) in found:
                found[rest or what][1].append(case)
            else:
                found[rest or what] = (case, [])
    return sorted(((name, whole, parts) for name, (whole, parts) in found.items()), key=lambda one: median(one[1].samples))


def ratios_of(ours: Sequence[float], others: Sequence[float]) -> list[float]:
    """Ratios round by round if both have as many samples, otherwise to the median of the others. Samples of 0 have no
    ratio."""
    paired = others if len(others) == len(ours) else [median(others)] * len(ours)
    return [one / other for one, other in zip(ours, paired) if one > 0 and other > 0]


def peers_of(suite: Suite, of: str) -> list[Plot]:
    everybody = contenders_of(suite)
    wsync = next((whole for name, whole, _ in everybody if name == "wsync"), None)
    seconds, floor, ours = [], [], []
    for name, whole, parts in everybody:
        colour = COLOURS[0] if name == "wsync" else COLOURS[1] if whole.ratios else FLOOR_COLOUR
        bars = [bar_of(whole.samples, "s", colour)]
        for part in parts:
            bars.append(bar_of(part.samples, "s", COLOURS[5]))
            bars[-1].text += " " + split_name(part.name)[0]
        seconds.append(Row(name, bars))
        if whole.ratios:
            floor.append(Row(name, [bar_of(whole.ratios, "", colour)]))
            if wsync is not None and whole is not wsync and (times := ratios_of(whole.samples, wsync.samples)):
                ours.append(Row(name, [bar_of(times, "times", colour)]))
    command = "wsync bench peers --output FILE"
    plots = [Plot("peers", "peers: time until every engine has the model" + of, command=command),
             Plot("peers-to-floor", "peers: speed relative to the floor" + of, command=command),
             Plot("peers-to-wsync", "peers: time relative to wsync" + of, command=command)]
    plots[0].figure = bar_plot(plots[0].title, seconds, "Seconds")
    plots[1].figure = bar_plot(plots[1].title, floor, "Floor / time of the peer (1: as fast as the floor)", [(1, "floor")])
    plots[2].figure = bar_plot(plots[2].title, ours, "Times as long as wsync", [(1, "wsync")] if ours else [])
    return plots


def peer_plots(runs: Sequence[Run]) -> list[Plot]:
    plots = [plot for index, suite in suites_named(runs, "peers") for plot in peers_of(suite, of_run(runs, index)) if plot.figure]
    return plots or peers_of(Suite("peers", {}, [], []), "")[:1]


@dataclasses.dataclass
class Scaled:
    """One case of the suite scale: "checkpoint-engine, Kimi-K2, 256 GPUs"."""
    what: str
    model: str
    gpus: int
    case: Case


def scaled_cases(suite: Suite) -> list[Scaled]:
    found = []
    for case in suite.cases:
        what, rest = split_name(case.name)
        model, _, last = rest.rpartition(", ")
        gpus = counted_by(last, "GPU")
        if gpus and case.unit == "s":
            found.append(Scaled(what, model, gpus[0], case))
    return found


def draw_model(axes: Axes, cases: list[Scaled], model: str) -> None:
    """The curves of one model: simulated seconds by the number of GPUs."""
    curves = [("checkpoint-engine", "checkpoint-engine", COLOURS[1], False), ("wsync, staged", "staged", COLOURS[2], False),
              ("wsync, paused", "paused", COLOURS[0], False), ("floor of the pause", "paused", FLOOR_COLOUR, True)]
    lines = []
    for name, what, colour, of_baseline in curves:
        points = sorted((one.gpus, median(one.case.baseline_samples if of_baseline else one.case.samples))
                        for one in cases if (one.model, one.what) == (model, what) and (one.case.baseline or not of_baseline))
        if points:
            lines.append(Line(name, colour, points, dashed=of_baseline))
    draw_lines(axes, lines, "GPUs", "Seconds", x_log=True, y_log=True,
               ticks=[(x, str(x)) for line in lines for x, _ in line.points])
    published = max((one.gpus for one in cases if one.what == "published update"), default=0)
    if published and axes.get_xlim()[0] < published < axes.get_xlim()[1]:
        axes.axvline(published, color=DIM, linestyle=(0, (2, 2)), linewidth=1)
        axes.annotate("published up to here", (published, 0.97), (4, 0), xycoords=axes.get_xaxis_transform(),
                      textcoords="offset points", color=DIM, fontsize=8.5, va="top")


def scaled_models(cases: list[Scaled]) -> list[str]:
    return list(dict.fromkeys(one.model for one in cases if one.what != "published update"))


def model_plot(cases: list[Scaled], model: str, of: str) -> Plot:
    plot = Plot("scale-" + id_text(model), f"scale: {model}, simulated time of an update by number of GPUs{of}",
                note="All times are simulated. Engines stop for a whole update of checkpoint-engine, and for the pause of wsync. "
                     "They serve while wsync stages.")
    plot.figure = new_figure(plot.title, 3.0)
    axes = plot.figure.add_subplot()
    draw_model(axes, cases, model)
    legend_above(axes)
    return plot


def published_plot(cases: list[Scaled], of: str) -> Plot:
    plot = Plot("scale-published", "scale: checkpoint-engine, published and simulated" + of,
                note="One constant of the simulation is fitted, to one of these rows.")
    rows = []
    for one in cases:
        if one.what == "published update" and one.case.baseline:
            bars = [bar_of(one.case.baseline_samples, "s", FLOOR_COLOUR, "published"),
                    bar_of(one.case.samples, "s", COLOURS[1], "simulated")]
            rows.append(Row(f"{one.model}, {one.gpus} GPUs", [dataclasses.replace(bar, whisker=None) for bar in bars]))
    plot.figure = bar_plot(plot.title, rows, "Seconds")
    return plot


def scale_plots(runs: Sequence[Run]) -> list[Plot]:
    plots = []
    for index, suite in suites_named(runs, "scale"):
        cases, of = scaled_cases(suite), of_run(runs, index)
        plots += [model_plot(cases, model, of) for model in scaled_models(cases)[:max(0, LINES_MAX - len(plots))]]
        published = published_plot(cases, of)
        plots += [published] if published.figure else []
    return plots or [Plot("scale", "scale: simulated updates by number of GPUs", command="wsync bench scale --output FILE")]


def pipeline_plot(suite: Suite, of: str) -> Plot:
    plot = Plot("pipeline", "pipeline: predicted and measured times" + of, wide=True, command="wsync bench pipeline --output FILE",
                note="Predicted from the times of each stage alone in the same round. The target is an error of at most 10 %.")
    cases = [case for case in suite.cases if case.baseline and case.ratios and case.unit == "ms"][:ROWS_MAX]
    if not cases:
        return plot
    times = [Row(case.name, [bar_of(case.samples, "ms", COLOURS[0], "measured"),
                             bar_of(case.baseline_samples, "ms", FLOOR_COLOUR, "predicted")]) for case in cases]
    # An empty bar keeps the rows of both sides at the same height.
    ratios = [Row(case.name, [bar_of(case.ratios, "", COLOURS[0]), Bar(None, "", "")]) for case in cases]
    plot.figure = new_figure(plot.title, rows_height(times) + 0.95, 2 * WIDTH)
    left, right = plot.figure.subplots(1, 2)
    draw_bars(left, times, "Milliseconds", [], WIDTH - 0.3)
    draw_bars(right, ratios, "Predicted / measured (1: as predicted)", [(0.9, "0.9"), (1.1, "1.1")], WIDTH - 0.3)
    return plot


def baseline_plot(suite: Suite, of: str) -> Plot:
    plot = Plot("baseline", "baseline: highest rates of this machine" + of, command="wsync bench baseline --output FILE",
                note="Figures of other suites are shares of these.")
    plot.figure = bar_plot(plot.title, [Row(case.name, [bar_of(case.samples, case.unit, COLOURS[2])])
                                        for case in suite.cases if case.unit == "GiB/s"], "GiB/s")
    return plot


def one_of_each(runs: Sequence[Run], name: str, make: Callable[[Suite, str], Plot]) -> list[Plot]:
    """A plot of each suite with that name. If there is none, the plot that says how to produce its data."""
    plots = [make(suite, of_run(runs, index)) for index, suite in suites_named(runs, name)]
    return [plot for plot in plots if plot.figure] or [make(Suite(name, {}, [], []), "")]


def make_plots(runs: Sequence[Run]) -> list[Plot]:
    """All plots of a page in order, including those without data. Ids are unique."""
    plots = [*sync_plots(runs), *peer_plots(runs), *scale_plots(runs), *one_of_each(runs, "pipeline", pipeline_plot),
             *one_of_each(runs, "baseline", baseline_plot)]
    used: set[str] = set()
    for plot in plots:
        names = (plot.id if count == 1 else f"{plot.id}-{count}" for count in range(1, len(plots) + 1))
        plot.id = next(name for name in names if name not in used)
        used.add(plot.id)
    return plots


# ---- The picture of one suite, for --svg


def peers_picture(suite: Suite) -> Optional[Figure]:
    """Bars of all peers, with the reason instead of a bar if a peer was skipped or failed."""
    details = suite.details
    sides = [("floor of the copies", details["floor"]["rounds"], "", FLOOR_COLOUR), ("wsync", details["wsync"]["rounds"], "", COLOURS[0])]
    sides += [(peer["title"], peer["rounds"], "skipped: " + peer["skipped"] if peer["skipped"] else
               "failed in " + peer["failed"] if peer["failed"] else "", COLOURS[1]) for peer in details["peers"]]
    rows = []
    for name, samples, reason, colour in sides:
        if not samples:
            rows.append(Row(name, [Bar(None, shortened(reason, 110), colour)]))
            continue
        bar = bar_of(samples, "s", colour)
        if reason:
            bar.text += ", " + shortened(reason, 50)
        elif colour == COLOURS[1]:
            bar.text += f", {median(ratios_of(samples, details['wsync']['rounds'])):.1f} x wsync"
        rows.append(Row(name, [bar]))
    machine = details["machine"]
    return bar_plot(f"{bytes_text(details['bytes'])} from the trainer's memory into that of {counted(details['engines'], 'engine')}, "
                    "verified", rows, "Seconds until the last engine has the verified bytes", width=9.6,
                    subtitle=f"{machine['cpu']}{' (virtual machine)' if machine['virtual_machine'] else ''}, "
                             f"{counted(machine['cores'], 'core')}; median, minimum and maximum of "
                             f"{counted(details['rounds'], 'round')}; wsync pauses engines for "
                             f"{1e3 * details['wsync']['paused_s']['median']:.1f} ms of it")


def scale_picture(suite: Suite) -> Optional[Figure]:
    """One panel per model."""
    cases = scaled_cases(suite)
    models = scaled_models(cases)
    if not models:
        return None
    columns = min(2, len(models))
    rows = math.ceil(len(models) / columns)
    figure = new_figure("Simulated time of an update by number of GPUs", 2.8 * rows + 0.3, WIDTH * columns)
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for index, axes in enumerate(panels):
        if index >= len(models):
            axes.set_visible(False)
            continue
        draw_model(axes, cases, models[index])
        axes.set_title(plain(models[index]), loc="left", fontsize=10)
        if index == 0:
            axes.legend(*legend_entries(axes), loc="upper left", fontsize=8)
    return figure


PICTURES = {"peers": peers_picture, "scale": scale_picture}


# ---- The page

PAGE_STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--dim:#57606a;--line:#d5dae0;--field:#f6f8fa;--good:#00664a;--bad:#a33200;--accent:#0b5c94}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14181d;--ink:#e3e7ec;--dim:#9aa4af;--line:#363d46;--field:#1b2027;--good:#4fcf9f;--bad:#ff9a6b;--accent:#6db8ea}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 20px 48px}h1{font-size:1.7rem;margin:0 0 4px}
h2{font-size:1.3rem;margin:40px 0 8px;padding-top:12px;border-top:1px solid var(--line)}h3{font-size:1rem;margin:20px 0 6px}
p{margin:6px 0;max-width:80ch}a{color:var(--accent)}nav ul{list-style:none;margin:8px 0;padding:0}
nav li{display:inline-block;margin:0 16px 4px 0}.dim,.what,dt{color:var(--dim)}.what{font-size:.84rem;max-width:52ch}
code{font:.9em/1.4 ui-monospace,monospace;background:var(--field);border:1px solid var(--line);border-radius:4px;padding:0 4px;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%;margin:10px 0;font-size:.93rem}
th,td{text-align:left;vertical-align:top;padding:6px 14px 6px 0;border-bottom:1px solid var(--line);overflow-wrap:anywhere}
th{font-weight:600;color:var(--dim);overflow-wrap:normal}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;overflow-wrap:normal;white-space:nowrap}
.cases td:first-child{font-weight:600}.cases .what{font-weight:400}.met{color:var(--good);font-weight:600}
.missed{color:var(--bad);font-weight:600}
dl{display:grid;grid-template-columns:minmax(9em,max-content) 1fr;gap:2px 16px;margin:8px 0;font-size:.93rem}
dd{margin:0;overflow-wrap:anywhere}
.notes{margin:8px 0;padding:8px 12px 8px 30px;background:var(--field);border-left:3px solid var(--bad);overflow-wrap:anywhere}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,520px),1fr));gap:20px;align-items:start}
figure{margin:0;padding:8px 10px 12px;background:#fff;border:1px solid var(--line);border-radius:6px;break-inside:avoid}
figure.wide{grid-column:1/-1}figure svg{display:block;width:100%;height:auto;max-width:600px;margin:0 auto}
figure.wide svg{max-width:1160px}figcaption{font-size:.84rem;padding:0 6px;color:#57606a}@media (max-width:700px){
main{padding:16px 12px 32px}thead{position:absolute;left:-9999px}table,tbody,tr,td{display:block}
tr{padding:8px 0;border-bottom:1px solid var(--line)}td,td.n{border:0;padding:1px 0;text-align:left;white-space:normal}
td:empty{display:none}td.n.m,td.u{display:inline-block;margin-right:.4em}
td[data-is]::before{content:attr(data-is) ": ";color:var(--dim)}dl{grid-template-columns:8em 1fr}figure{padding:6px 2px 10px}}
@media print{body{font-size:11px}main{max-width:none;padding:0}h2{break-after:avoid}tr{break-inside:avoid}
.plots{grid-template-columns:1fr 1fr}nav{display:none}}
"""


def element(name: str, text: str, attributes: str = "") -> str:
    return f"<{name}{attributes}>{escaped(text)}</{name}>\n"


def key_text(key: str) -> str:
    """"memory" of "memory_bytes"."""
    return re.sub("(_bytes_per_s|_bytes)$", "", key).replace("_", " ")


def value_text(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)) and key.endswith(("bytes", "bytes_per_s")) and 0 <= value < 2 ** 63:
        return bytes_text(value) + ("/s" if key.endswith("per_s") else "")
    return compact(value)


def facts(object_: dict[str, Any]) -> str:
    """A list of names and values. Values of nested objects are listed with the values of the outer object."""
    text = ""
    for key, value in sorted(object_.items()):
        inner = value if isinstance(value, dict) else None
        for name, part in sorted(inner.items()) if inner is not None else [("", value)]:
            text += element("dt", key_text(key) + (", " + key_text(name) if inner is not None else ""))
            text += element("dd", value_text(name or key, part))
    return f"<dl>\n{text}</dl>\n" if text else ""


def head(runs: Sequence[Run]) -> str:
    """The policy prevents a browser from loading anything, because the page is complete."""
    return ('<!DOCTYPE html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">\n<head>\n<meta charset="utf-8"/>\n'
            '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'"/>\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
            '<meta name="color-scheme" content="light dark"/>\n'
            + element("title", f"wsync bench, {runs[-1].date}") + f"<style>{PAGE_STYLE}</style>\n</head>\n")


def summary(runs: Sequence[Run]) -> str:
    """The number of cases, and the missed targets."""
    cases = [(index, suite, case) for index, run in enumerate(runs) for suite in run.suites for case in suite.cases]
    suites = sum(len(run.suites) for run in runs)
    text = element("h1", "wsync bench")
    text += element("p", f"{counted(len(cases), 'case')} of {counted(suites, 'suite')} in {counted(len(runs), 'result file')}.")
    targets = sum(case.target is not None for _, _, case in cases)
    missed = [f"{suite.name}: {case.name}{of_run(runs, index)}" for index, suite, case in cases if not case.met()]
    if not targets:
        return text + element("p", "No case has a target.")
    text += element("p", f"{targets - len(missed)} of {counted(targets, 'target')} met.", "" if missed else ' class="met"')
    if missed:
        text += '<p class="missed">Missed:</p>\n<ul>\n' + "".join(element("li", one) for one in missed) + "</ul>\n"
    return text


def suite_id(run: int, suite: int) -> str:
    return f"suite-{run + 1}-{suite + 1}"


def contents(runs: Sequence[Run]) -> str:
    links = "".join(f'<li><a href="#{suite_id(i, k)}">{escaped(suite.name + of_run(runs, i))}</a></li>\n'
                    for i, run in enumerate(runs) for k, suite in enumerate(run.suites))
    return f'<nav><ul>\n<li><a href="#plots">Plots</a></li>\n{links}</ul></nav>\n'


def plots_part(plots: Sequence[Plot]) -> str:
    drawn = left_out = ""
    for plot in plots:
        if plot.figure is None:
            left_out += f"<li>{escaped(plot.title)}: <code>{escaped(plot.command)}</code></li>\n"
            continue
        wide = ' class="wide"' if plot.wide else ""
        drawn += f'<figure id="plot-{plot.id}"{wide}>\n'
        drawn += svg_of(plot.figure, plot.id, plot.title)
        drawn += (element("figcaption", plot.note) if plot.note else "") + "</figure>\n"
    text = '<h2 id="plots">Plots</h2>\n'
    if drawn:
        text += ('<p class="dim">Points and bars are medians. Whiskers go from the smallest to the largest sample.</p>\n'
                 f'<div class="plots">\n{drawn}</div>\n')
    if left_out:
        text += ("<h3>Left out</h3>\n<p>These files do not have the data of the following plots. The command produces it.</p>\n"
                 f"<ul>\n{left_out}</ul>\n")
    return text


def origins(runs: Sequence[Run]) -> str:
    """The files, and each machine only once."""
    machines: list[dict[str, Any]] = []
    rows = ""
    for index, run in enumerate(runs):
        if run.machine not in machines:
            machines.append(run.machine)
        cells = (("file", run.name), ("date", run.date), ("wsync", run.version), ("machine", str(machines.index(run.machine) + 1)),
                 ("suites", ", ".join(suite.name for suite in run.suites)))
        rows += f"<tr><td>{run_letter(index)}</td>"
        rows += "".join(f'<td data-is="{name}">{escaped(value)}</td>' for name, value in cells) + "</tr>\n"
    text = ('<h2 id="files">Files and machines</h2>\n<table class="files">\n<thead><tr><th></th><th>File</th><th>Date</th>'
            f"<th>wsync</th><th>Machine</th><th>Suites</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n")
    return text + "".join(element("h3", f"Machine {number}") + facts(machine) for number, machine in enumerate(machines, 1))


def range_text(values: Sequence[float]) -> str:
    return f"{figure_text(min(values))} \u2013 {figure_text(max(values))}"


def target_text(case: Case) -> str:
    if case.target is None:
        return ""
    of, value = case.target
    at_least = of == "ratio" or (of == "median" and case.higher_is_better)
    name = {"ratio": "share", "median": "median", "most": "every sample"}[of]
    return f"{name} {'≥' if at_least else '≤'} {figure_text(value)}"


def case_row(case: Case, says_what: bool) -> str:
    text = f'<tr class="case"><td>{escaped(case.name)}'
    text += element("div", case.what, ' class="what"') if says_what else ""
    text += (f'</td>\n<td class="n m" data-is="median">{figure_text(median(case.samples))}</td><td class="u">{escaped(case.unit)}'
             f'</td><td class="n" data-is="min – max">{range_text(case.samples)}</td>')
    if case.ratios:
        text += (f'<td class="n s" data-is="share">{figure_text(median(case.ratios))} ({range_text(case.ratios)})</td>'
                 f'<td class="b" data-is="of">{escaped(case.baseline)}</td>')
    else:
        text += '<td class="n"></td><td></td>'
    if case.target is None:
        return text + "<td></td><td></td></tr>\n"
    verdict = '<td class="met">✓ met</td>' if case.met() else '<td class="missed">✗ missed</td>'
    return text + f'<td data-is="target">{target_text(case)}</td>{verdict}</tr>\n'


def suite_part(suite: Suite, title: str, identifier: str, known: dict[str, dict[str, str]]) -> str:
    text = f'<section>\n<h2 id="{identifier}">{escaped(title)}</h2>\n'
    if suite.name in known:
        text += f"<p><code>{escaped(known[suite.name]['command'])}</code>: {escaped(known[suite.name]['question'])}</p>\n"
    text += facts(suite.parameters)
    if suite.notes:
        text += '<ul class="notes">\n' + "".join(element("li", note) for note in suite.notes) + "</ul>\n"
    text += ('<table class="cases">\n<thead><tr><th>Case</th><th class="n">Median</th><th>Unit</th><th class="n">Min – max</th>'
             '<th class="n">Share of its baseline</th><th>Baseline</th><th>Target</th><th></th></tr></thead>\n<tbody>\n')
    said: set[str] = set()
    for case in suite.cases:
        text += case_row(case, case.what not in said)  # a description that several cases share appears once
        said.add(case.what)
    return text + "</tbody>\n</table>\n</section>\n"


def report_page(runs: Sequence[Run], plots: Sequence[Plot], known: dict[str, dict[str, str]]) -> str:
    """One HTML page, which is XML as well. `known`: suite -> {"command", "question"} of the catalogue."""
    text = head(runs) + "<body>\n<main>\n" + summary(runs) + contents(runs) + plots_part(plots) + origins(runs)
    text += ('<p class="dim">A share is speed relative to the speed of the baseline in the same round. 1 is as fast as the '
             "baseline, and more is better, whatever the unit.</p>\n")
    for index, run in enumerate(runs):
        for number, suite in enumerate(run.suites):
            text += suite_part(suite, suite.name + of_run(runs, index), suite_id(index, number), known)
    return text + "</main>\n</body>\n</html>\n"


# ---- Commands

DRAWING = {"matplotlib.figure": "python3-matplotlib"}
STATISTICS = {"numpy": "python3-numpy", "scipy.stats": "python3-scipy"}


def write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def command_check(_: argparse.Namespace) -> dict[str, Any]:
    require(DRAWING, "drawing a plot")
    return {}


def command_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Prints the plots on the page, and the omitted ones."""
    require(DRAWING, "`wsync bench report`")
    runs = [read_run(path) for path in arguments.results]
    plots = make_plots(runs)
    write(arguments.into, "page.html", report_page(runs, plots, json.loads(arguments.suites)))
    for plot in plots:
        if plot.figure and arguments.plots:
            write(arguments.into, plot.id + ".svg", '<?xml version="1.0" encoding="utf-8"?>\n' + svg_of(plot.figure, plot.id, plot.title))
            plot.figure.savefig(os.path.join(arguments.into, plot.id + ".png"), dpi=200)
    return {"plots": [{"name": plot.id, "title": plot.title} for plot in plots if plot.figure],
            "left_out": [{"name": plot.id, "title": plot.title, "command": plot.command} for plot in plots if not plot.figure]}


def command_suite(arguments: argparse.Namespace) -> dict[str, Any]:
    require(DRAWING, "--svg")
    (suite,) = read_run(arguments.result).suites
    figure = PICTURES[suite.name](suite)
    if figure is None:
        raise BadInput(f"{suite.name}: the suite has no case that can be drawn")
    write(arguments.into, "picture.svg", '<?xml version="1.0" encoding="utf-8"?>\n' + svg_of(figure, suite.name, suite.name))
    return {}


def command_compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Prints {"result": what --json prints, "text": the same as text}."""
    require(STATISTICS, "`wsync bench compare`")
    result = compare(read_run(arguments.a), read_run(arguments.b), arguments.factor)
    return {"result": result, "text": comparison_text(result)}


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    commands.add_parser("check").set_defaults(run=command_check)
    report = commands.add_parser("report")
    report.add_argument("--into", required=True)
    report.add_argument("--plots", action="store_true", help="also write each plot to a separate file")
    report.add_argument("--suites", default="{}", help='JSON: suite -> {"command", "question"}')
    report.add_argument("results", nargs="+")
    report.set_defaults(run=command_report)
    suite = commands.add_parser("suite")
    suite.add_argument("--into", required=True)
    suite.add_argument("result")
    suite.set_defaults(run=command_suite)
    comparison = commands.add_parser("compare")
    comparison.add_argument("--factor", type=float, default=1.05)
    comparison.add_argument("a")
    comparison.add_argument("b")
    comparison.set_defaults(run=command_compare)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    arguments = parse(words)
    try:
        print(json.dumps(arguments.run(arguments), allow_nan=False))
    except MissingPackage as error:
        print(error, file=sys.stderr)
        return EXIT_MISSING
    except BadInput as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_INPUT
    except OSError as error:
        print(f"{error.filename or 'a file'}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
