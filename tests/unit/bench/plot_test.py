"""bench/plot.py: the statistics of `wsync bench compare` against tables, SciPy and made-up samples; the page of `wsync bench
report`; and what each plot shows."""
import io
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from unittest import mock

try:
    import matplotlib.figure
    import scipy.stats
except ImportError:
    # Another python3 in PATH may have the packages, as wsync-bench looks for it.
    for python in (os.path.join(folder, "python3") for folder in os.get_exec_path()):
        if os.access(python, os.X_OK) and subprocess.run([python, "-c", "import matplotlib.figure, scipy.stats"],
                                                         stderr=subprocess.DEVNULL).returncode == 0:
            os.execv(python, [python, "-B", *sys.argv])
    raise

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(os.path.abspath(__file__)).parents[3] / "bench"))
import plot  # noqa: E402
from plot import Case, Run, Suite  # noqa: E402

BAD = '<i>&"</td><script>'


def normal(source, count, mean):
    return [source.gauss(mean, mean / 50) for _ in range(count)]


def with_baseline(case, samples, name="its floor"):
    """The ratios as bench/harness/result.cc makes them."""
    case.baseline, case.baseline_samples = name, list(samples)
    paired = samples if len(samples) == len(case.samples) else [plot.median(samples)] * len(case.samples)
    case.ratios = [ours / other if case.higher_is_better else other / ours
                   for ours, other in zip(case.samples, paired) if ours > 0 and other > 0]
    return case


def case_with(samples, higher_is_better=False, name="paused", unit=None, baseline=None):
    case = Case(name=name, what="What it measures", unit=unit or ("GiB/s" if higher_is_better else "ms"),
                higher_is_better=higher_is_better, samples=[float(value) for value in samples])
    return with_baseline(case, baseline) if baseline else case


def run_of(cases, suite="sync", name="a.json", **parameters):
    return Run(name, "2026-01-02T03:04:05Z", "9.8.7", {"cpu": "a processor", "memory_bytes": 1 << 30},
               [Suite(suite, parameters, cases, [])])


def compared(a, b, factor=1.05):
    return plot.compare(a, b, factor)


def change_between(a, b, factor=1.05):
    return compared(run_of([a]), run_of([b]), factor)["cases"][0]


class RankSum(unittest.TestCase):
    def test_it_has_the_probabilities_of_the_tables(self):
        low, high = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
        self.assertAlmostEqual(plot.rank_sum_chance(low, high), 2 / 252, delta=1e-12)
        self.assertAlmostEqual(plot.rank_sum_chance(high, low), 2 / 252, delta=1e-12)
        # Of 70 orders of four and four, two have U <= 1.
        self.assertAlmostEqual(plot.rank_sum_chance([1, 2, 3, 5], [4, 6, 7, 8]), 4 / 70, delta=1e-12)
        self.assertAlmostEqual(plot.rank_sum_chance(low[:3], high[:4]), 2 / 35, delta=1e-12)

    def test_without_equal_values_it_is_the_exact_test_of_scipy(self):
        source = random.Random(7)
        for count in (1, 2, 5, 9, 30):
            a, b = normal(source, count, 100), normal(source, min(30, count + 3), 101)
            expected = scipy.stats.mannwhitneyu(a, b, alternative="two-sided", method="exact").pvalue
            self.assertAlmostEqual(plot.rank_sum_chance(a, b), expected, delta=1e-12)

    def test_ties_are_counted_out(self):
        equal = [3.0] * 5
        self.assertEqual(plot.rank_sum_chance(equal, equal), 1)
        self.assertEqual(plot.least_chance(equal, equal), 1)
        self.assertEqual(plot.rank_sum_chance([], equal), 1)
        self.assertEqual(plot.rank_sum_chance([3.0] * 40, [3.0] * 40), 1)
        # One of 20 ways to deal ranks 1.5 1.5 3 | 4.5 4.5 6, to either side.
        self.assertAlmostEqual(plot.rank_sum_chance([1, 1, 2], [3, 3, 4]), 2 / 20, delta=1e-12)
        # Ranks 1 3 | 3 3 5 6: three of 15 ways come to 4, none to less, and one to 11.
        self.assertAlmostEqual(plot.rank_sum_chance([1, 2], [2, 2, 5, 6]), 2 * 3 / 15, delta=1e-12)
        self.assertAlmostEqual(plot.least_chance([1, 2], [2, 2, 5, 6]), 2 * 1 / 15, delta=1e-12)

    def test_the_least_that_small_samples_can_say_is_known(self):
        a, b = [1, 5, 3, 2, 4], [2.5, 3.5, 1.5, 4.5, 5.5]
        self.assertAlmostEqual(plot.least_chance(a, b), 2 / 252, delta=1e-12)
        self.assertGreater(plot.rank_sum_chance(a, b), 0.5)

    def test_long_samples_are_taken_as_normal(self):
        low = list(range(40))
        self.assertGreater(plot.rank_sum_chance(low, [value + 0.5 for value in low]), 0.8)
        self.assertLess(plot.rank_sum_chance(low, [value + 100.5 for value in low]), 1e-12)

    def test_it_calls_equal_distributions_different_as_rarely_as_it_says(self):
        source = random.Random(1)
        called = sum(plot.rank_sum_chance(normal(source, 15, 100), normal(source, 15, 100)) < 0.05 for _ in range(2000))
        self.assertTrue(60 < called < 140, called)  # 100 are expected


class Holm(unittest.TestCase):
    def test_it_steps_down_from_the_least_probable(self):
        # Holm's own rule by hand: 4 * 0.005, 3 * 0.01, 2 * 0.03, then no less than what came before.
        chances = [0.01, 0.04, 0.03, 0.005]
        adjusted, least = plot.adjust_by_holm(chances, [0.001] * 4)
        for found, expected in zip(adjusted, (0.03, 0.06, 0.06, 0.02)):
            self.assertAlmostEqual(found, expected, delta=1e-12)
        for found in least:
            self.assertAlmostEqual(found, 0.004, delta=1e-12)
        # One that could not have been less than 0.02 comes after two that were.
        _, least = plot.adjust_by_holm(chances, [0.001, 0.02, 0.001, 0.001])
        self.assertAlmostEqual(least[1], 0.04, delta=1e-12)
        self.assertEqual(plot.adjust_by_holm([0.7], [0.7]), ([0.7], [0.7]))
        self.assertEqual(plot.adjust_by_holm([], []), ([], []))


class Compare(unittest.TestCase):
    def test_a_change_is_beyond_the_factor_and_beyond_chance(self):
        source = random.Random(2)
        before, slower = case_with(normal(source, 15, 100)), case_with(normal(source, 15, 110))
        self.assertEqual((change_between(before, before)["verdict"], change_between(before, before)["speed"]), (plot.SAME, 1))
        self.assertEqual(change_between(before, slower)["verdict"], plot.WORSE)
        self.assertEqual(change_between(slower, before)["verdict"], plot.BETTER)
        self.assertAlmostEqual(change_between(before, slower)["speed"], 100 / 110, delta=0.02)
        # Certain, and too small to count, unless it is asked for.
        little, many = case_with(normal(source, 200, 103)), case_with(normal(source, 200, 100))
        self.assertLess(change_between(many, little)["chance"], 1e-6)
        self.assertEqual(change_between(many, little)["verdict"], plot.SAME)
        self.assertEqual(change_between(many, little, 1.01)["verdict"], plot.WORSE)
        # Large, and within what such wide samples do by chance.
        wide = change_between(case_with([50, 200, 60, 190, 110]), case_with([55, 210, 230, 100, 150]))
        self.assertGreater(wide["median_b"], 1.3 * wide["median_a"])
        self.assertEqual(wide["verdict"], plot.SAME)

    def test_more_is_better_or_worse_as_the_case_says(self):
        low, high = [10, 10.1, 10.2, 10.3, 10.4], [12, 12.1, 12.2, 12.3, 12.4]
        self.assertEqual(change_between(case_with(low, True), case_with(high, True))["verdict"], plot.BETTER)
        self.assertEqual(change_between(case_with(high, True), case_with(low, True))["verdict"], plot.WORSE)
        self.assertEqual(change_between(case_with(low), case_with(high))["verdict"], plot.WORSE)

    def test_many_cases_of_an_unchanged_program_rarely_raise_an_alarm(self):
        source = random.Random(5)
        alarms = alarms_alone = 0
        for _ in range(100):
            a, b = (run_of([case_with(normal(source, 9, 100), name=str(i)) for i in range(60)]) for _ in "ab")
            cases = compared(a, b, 1.0)["cases"]
            verdicts = [case["verdict"] for case in cases]
            self.assertNotIn(plot.TOO_FEW, verdicts)
            alarms += verdicts.count(plot.SAME) < 60
            alarms_alone += any(case["chance"] < plot.CHANCE_MAX for case in cases)
        self.assertLess(alarms, 12)  # at most 5 are expected
        self.assertGreater(alarms_alone, 80)

    def test_five_rounds_cannot_tell_among_sixty_cases(self):
        five, others = [1, 2, 3, 4, 5], [11, 12, 13, 14, 15]
        a = [case_with(five, name=str(i)) for i in range(60)]
        b = [case_with(five if i else others, name=str(i)) for i in range(60)]
        result = compared(run_of(a), run_of(b))
        self.assertEqual({case["verdict"] for case in result["cases"]}, {plot.TOO_FEW})
        self.assertIn("60 with too few rounds to tell", plot.comparison_text(result))
        # Of one case they can.
        self.assertEqual(change_between(a[0], b[0])["verdict"], plot.WORSE)
        # Values that are all equal are the same, however many cases there are.
        equal = run_of([case_with([2] * 5, name=str(i)) for i in range(60)])
        self.assertEqual({case["verdict"] for case in compared(equal, equal)["cases"]}, {plot.SAME})

    def test_few_samples_say_nothing(self):
        change = change_between(case_with([1] * 4), case_with([2] * 7))
        self.assertEqual((change["verdict"], change["speed"]), (plot.TOO_FEW, 0.5))

    def test_a_machine_that_is_slower_as_a_whole_is_no_change(self):
        source = random.Random(3)
        before, after = case_with(normal(source, 15, 100)), case_with(normal(source, 15, 150))
        self.assertEqual(change_between(before, after)["verdict"], plot.WORSE)
        with_baseline(before, normal(source, 15, 80))
        self.assertEqual(change_between(before, after)["judged_by"], "value")
        with_baseline(after, normal(source, 15, 120))
        change = change_between(before, after)
        self.assertEqual((change["judged_by"], change["verdict"]), ("ratio", plot.SAME))
        self.assertAlmostEqual(change["speed"], 100 / 150, delta=0.03)
        self.assertAlmostEqual(change["judged_speed"], 1, delta=0.04)
        # Slower than its floor became.
        with_baseline(after, normal(source, 15, 80))
        self.assertEqual(change_between(before, after)["verdict"], plot.WORSE)
        # Another baseline under the same case says nothing about shares.
        with_baseline(after, normal(source, 15, 120), "ceiling")
        self.assertEqual(change_between(before, after)["judged_by"], "value")

    def test_cases_of_the_machine_are_judged_by_their_values(self):
        source = random.Random(4)
        before = with_baseline(case_with(normal(source, 15, 100), True), normal(source, 15, 10))
        after = with_baseline(case_with(normal(source, 15, 100), True), normal(source, 15, 20))
        self.assertEqual(change_between(before, after)["verdict"], plot.WORSE)
        # A quicker copy makes no disk slower.
        (change,) = compared(run_of([before], "baseline"), run_of([after], "baseline"))["cases"]
        self.assertEqual(change["verdict"], plot.SAME)

    def test_a_count_that_was_nothing_can_become_worse(self):
        change = change_between(case_with([0] * 6), case_with([3, 4, 5, 6, 7, 8]))
        self.assertEqual((change["speed"], change["verdict"]), (None, plot.WORSE))

    def test_what_is_on_one_side_only_is_listed(self):
        five = [1, 2, 3, 4, 5]
        a, b = run_of([case_with(five), case_with(five, name="load")]), run_of([case_with(five)])
        b.machine["cpu"] = "b"
        b.suites.append(Suite("schedule", {}, [case_with([1])], []))
        result = compared(a, b)
        self.assertEqual((result["only_a"], result["only_b"]), (["sync: load"], ["schedule: paused"]))
        self.assertEqual((result["machine_differs"], result["parameters_differ"]), (['cpu: "a processor" in A, "b" in B'], []))
        text = plot.comparison_text(result)
        for part in ("only in A: sync: load", "only in B: schedule: paused", "machine differs: cpu",
                     "1 case compared: 0 better, 0 worse"):
            self.assertIn(part, text)
        self.assertEqual(result["cases"][0]["verdict"], "no change shown")

    def test_other_parameters_and_other_measures_are_not_compared(self):
        a = run_of([case_with([1, 2, 3])])
        with self.assertRaisesRegex(plot.BadInput, re.escape('sync: {} in A, {"bytes":2} in B')):
            compared(a, run_of([case_with([1, 2, 3])], bytes=2))
        with self.assertRaisesRegex(plot.BadInput, "in A ms and less is better, in B s"):
            compared(a, run_of([case_with([1, 2, 3], unit="s")]))

    def test_a_file_is_not_worse_than_itself_and_its_numbers_fit_json(self):
        extremes = [1e308, 1e308, -1e308, 1e-308, 0, 5e-324]
        a = run_of([case_with(extremes), with_baseline(case_with(extremes, name="load"), [1e-308])])
        b = run_of([case_with([1e-308] * 6), case_with([-1e308, 1e308], name="load")])
        result = compared(a, a)
        self.assertEqual((result["better"], result["worse"], len(result["cases"])), (0, 0, 2))
        for one in (result, compared(a, b), compared(b, a)):
            json.dumps(one, allow_nan=False)
            self.assertIn("cases compared", plot.comparison_text(one))


def paused(engines, milliseconds, floor):
    case = case_with(milliseconds, name="paused, " + plot.counted(engines, "engine"), baseline=floor)
    case.bytes, case.target = engines * 10 ** 9, ("ratio", 0.95)
    return case


def sync_run(name, size):
    return run_of([paused(1, [100, 200, 300], [100, 200, 300]), paused(4, [800], [400])], name=name, bytes=size)


def seconds(name, samples, baseline=None):
    return case_with(samples, name=name, unit="s", baseline=baseline)


def page_of(*runs):
    return plot.report_page(runs, plot.make_plots(runs), {"sync": {"command": "wsync bench sync", "question": "how <long>?"}})


def drawn(*runs):
    return [one.id for one in plot.make_plots(runs) if one.figure]


def plot_named(name, *runs):
    (found,) = [one for one in plot.make_plots(runs) if one.id == name]
    return found


def texts(one):
    """Every text of the picture."""
    root = xml.etree.ElementTree.fromstring(plot.svg_of(one.figure, one.id, one.title))
    return ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]


class Page(unittest.TestCase):
    def test_each_case_is_in_one_row_with_its_figures(self):
        page = page_of(sync_run("a.json", 1 << 20))
        xml.etree.ElementTree.fromstring(page)
        self.assertEqual(page.count('<tr class="case">'), 2)
        for text in ("<td>paused, 1 engine<", "<td>paused, 4 engines<"):
            self.assertEqual(page.count(text), 1)
        for text in (">200<", "100 – 300", ">1 (1 – 1)<", ">its floor<", ">0.5 (0.5 – 0.5)<", "share ≥ 0.95", "✓ met", "✗ missed",
                     "sync: paused, 4 engines", "1 of 2 targets met.", "2026-01-02T03:04:05Z", "9.8.7", "a processor", "1.00 GiB",
                     "1.00 MiB", "<code>wsync bench sync</code>: how &lt;long&gt;?"):
            self.assertIn(text, page)
        # What is measured is said once of cases that measure the same.
        self.assertEqual(page.count("What it measures"), 1)

    def test_targets_are_of_ratios_medians_or_every_sample(self):
        for target, higher, met in ((("median", 2), False, True), (("median", 2), True, True), (("median", 1.9), False, False),
                                    (("median", 2.1), True, False), (("most", 3), False, True), (("most", 2.9), False, False)):
            case = case_with([1, 2, 3], higher)
            case.target = target
            self.assertEqual(case.met(), met, target)

    def test_a_machine_is_told_once_and_files_by_their_letters(self):
        runs = [sync_run(f"{letter}.json", size) for size, letter in enumerate("abc", 1)]
        runs[2].machine["cpu"] = "another"
        page = page_of(*runs)
        self.assertEqual(page.count("a processor"), 1)
        self.assertIn(">Machine 2<", page)
        self.assertNotIn(">Machine 3<", page)
        for text in ("sync (A)", "sync (B)", "sync (C)", "sync: paused, 4 engines (C)"):
            self.assertIn(text, page)
        self.assertEqual([plot.run_letter(index) for index in (0, 25, 26, 27)], ["A", "Z", "AA", "AB"])

    def test_every_text_is_escaped(self):
        run = run_of([case_with([1], name=BAD, unit=BAD, baseline=[2])], BAD, BAD, **{BAD: BAD, "inner": {BAD: BAD}})
        case = run.suites[0].cases[0]
        case.what = case.baseline = run.date = run.version = BAD
        run.suites[0].notes = [BAD]
        run.machine = {BAD: BAD, "list": [BAD]}
        pictured = run_of([seconds("verified copies, " + BAD, [1], [2]), seconds("verified copies, \x01\ufffe$x$", [1])], "peers")
        scaled = run_of([seconds(f"paused, {BAD}, 8 GPUs", [1], [2])], "scale")
        page = page_of(run, pictured, scaled)
        xml.etree.ElementTree.fromstring(page)
        for text in ("<i>", "<script", '&"'):
            self.assertNotIn(text, page)
        # Case, unit, what, baseline, note, three parameters, machine, date, title, version, file, suite ...
        self.assertGreaterEqual(page.count("&lt;i&gt;&amp;"), 16)
        self.assertIn("$x$", page)

    def test_nothing_is_loaded(self):
        runs = [sync_run("a.json", 1), sync_run("b.json", 100)]
        runs[0].suites[0].notes = ["http://example.invalid/a.png"]
        page = page_of(*runs)
        for text in (" src=", "<script", "<link", "<img", "<iframe", "@import", "xlink", "<image", "<metadata"):
            self.assertNotIn(text, page)
        for reference in re.findall(r'url\(.|href=".', page):
            self.assertEqual(reference[-1], "#")
        self.assertIn("default-src 'none'", page)
        self.assertIn("prefers-color-scheme:dark", page)

    def test_ids_are_there_once_and_references_have_one(self):
        page = page_of(sync_run("a.json", 1), sync_run("b.json", 1 << 30))
        ids = re.findall(r'\sid="([^"]+)"', page)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertLessEqual(set(re.findall(r'(?:url\(|href=")#([^")]+)', page)), set(ids))

    def test_the_same_results_make_the_same_page(self):
        self.assertEqual(page_of(sync_run("a.json", 5)), page_of(sync_run("a.json", 5)))


class Plots(unittest.TestCase):
    def test_without_data_each_says_its_command(self):
        run = run_of([case_with([1], name="steps", unit="1/s")], "torn")
        self.assertEqual(drawn(run), [])
        page = page_of(run)
        self.assertNotIn("<svg", page)
        for command in ("wsync bench sync --engines 1,2,4,8 --output FILE", "wsync bench sync --size SIZE",
                        "wsync bench peers --output FILE", "wsync bench scale --output FILE",
                        "wsync bench pipeline --output FILE", "wsync bench baseline --output FILE"):
            self.assertIn(command, page)

    def test_engines_of_one_number_are_no_curve(self):
        self.assertEqual(drawn(run_of([paused(2, [1], [1])])), [])
        self.assertEqual(drawn(sync_run("a", 5)), ["sync-throughput", "sync-share-of-floor"])

    def test_throughput_is_bytes_by_the_pause(self):
        one = plot_named("sync-throughput", sync_run("a", 5 << 20))
        self.assertIn("GB/s, all engines together", texts(one))
        self.assertIn("5.00 MiB", texts(one))
        # 1 GB in 200 ms are 5 GB/s, 4 GB in 800 ms as many; whiskers of the first from 3.33 to 10.
        line, _, (whiskers,) = one.figure.axes[0].containers[0]
        self.assertEqual((list(line.get_xdata()), list(line.get_ydata())), ([1, 4], [5, 5]))
        (_, low), (_, high) = whiskers.get_segments()[0]
        self.assertAlmostEqual(low, 10 / 3)
        self.assertAlmostEqual(high, 10)
        (floor,) = [line for line in one.figure.axes[0].lines if line.get_linestyle() == "--"]
        self.assertEqual(list(floor.get_ydata()), [5, 10])

    def test_lines_at_one_x_stand_beside_each_other_with_other_markers(self):
        one = plot_named("sync-throughput", sync_run("a", 5 << 20), sync_run("b", 6 << 20))
        first, second = (container[0] for container in one.figure.axes[0].containers)
        self.assertNotEqual(first.get_marker(), second.get_marker())
        at = [line.get_transform().transform((1, 5))[0] for line in (first, second)]
        self.assertGreater(at[1], at[0] + 2)

    def test_the_target_is_a_level_with_a_name(self):
        one = plot_named("sync-share-of-floor", sync_run("a", 5))
        self.assertIn("target 0.95", texts(one))
        self.assertIn([0.95, 0.95], [list(line.get_ydata()) for line in one.figure.axes[0].lines])

    def test_pauses_of_several_sizes_are_a_curve_of_one_machine(self):
        runs = [sync_run("a", 1 << 20), sync_run("b", 64 << 20)]
        one = plot_named("sync-paused-by-size", *runs)
        self.assertIn("64.0 MiB", texts(one))
        self.assertEqual((one.figure.axes[0].get_xscale(), one.figure.axes[0].get_yscale()), ("log", "log"))
        runs[1].machine["cpu"] = "another"
        self.assertNotIn("sync-paused-by-size", drawn(*runs))

    def test_scale_has_a_curve_of_each_model(self):
        run = run_of([seconds("published update, Kimi-K2, 16 GPUs", [14], [15]),
                      seconds("checkpoint-engine, Kimi-K2, 16 GPUs", [14], [3]), seconds("paused, Kimi-K2, 16 GPUs", [2], [1]),
                      seconds("paused, Kimi-K2, 10000 GPUs", [3], [1]), seconds("paused, a, b, 8 GPUs", [2], [1]),
                      seconds("paused, nothing that is counted", [2])], "scale")
        self.assertEqual(drawn(run), ["scale-kimi-k2", "scale-a-b", "scale-published"])
        found = texts(plot_named("scale-kimi-k2", run))
        for text in ("checkpoint-engine", "wsync, paused", "floor of the pause", "16", "10000", "published up to here"):
            self.assertIn(text, found)
        self.assertNotIn("wsync, staged", found)

    def test_peers_have_seconds_and_two_ratios(self):
        cases = [seconds("floor", [1, 1]), seconds("verified copies, wsync", [2, 4], [1, 1]),
                 seconds("verified copies, redis", [20, 80], [1, 1]), seconds("staged, wsync", [1.5, 1.75]),
                 case_with([3], name="memory", unit="GiB")]
        run = run_of(cases, "peers")
        self.assertEqual(drawn(run), ["peers", "peers-to-floor", "peers-to-wsync"])
        found = texts(plot_named("peers", run))
        for text in ("floor", "wsync", "redis", "1.625 s staged", "50 s"):
            self.assertIn(text, found)
        self.assertNotIn("memory", found)
        self.assertLess(found.index("floor"), found.index("wsync"))
        # 20 / 2 and 80 / 4, round by round.
        self.assertIn("15 times", texts(plot_named("peers-to-wsync", run)))
        self.assertIn("0.375", texts(plot_named("peers-to-floor", run)))
        # Without wsync there is nothing to compare others with.
        self.assertEqual(drawn(run_of([cases[0], cases[2]], "peers")), ["peers", "peers-to-floor"])

    def test_bars_are_as_long_as_their_values(self):
        run = run_of([case_with([value], True, name=name) for name, value in (("a", 1), ("b", 4))], "baseline")
        first, second = plot_named("baseline", run).figure.axes[0].patches
        self.assertEqual((first.get_width(), second.get_width()), (1, 4))
        self.assertIsNone(plot.bar_plot("", [], ""))
        self.assertIn("nothing", texts(plot.Plot("x", "", plot.bar_plot("", [plot.Row("r", [plot.Bar(None, "nothing", "red")])], ""))))

    def test_the_pipeline_has_predicted_beside_measured(self):
        run = run_of([case_with([1], name="H2D alone, 2 devices"),
                      case_with([8], name="two stages, 2 devices", baseline=[6])], "pipeline")
        found = texts(plot_named("pipeline", run))
        for text in ("two stages, 2 devices", "8 ms", "6 ms", "0.75", "measured"):
            self.assertIn(text, found)
        self.assertNotIn("H2D", "".join(found))

    def test_numbers_at_the_ends_of_their_type_are_drawn(self):
        runs = [sync_run("a", 2 ** 64 - 1), sync_run("b", 1)]
        runs[0].suites[0].cases[0] = paused(1, [1e-300, 1e300, -1e308], [1e308] * 3)
        runs[1].suites[0].cases[1] = paused(4_000_000_000, [0, 5e-324], [1, 1])
        runs.append(run_of([seconds(f"verified copies, {i}", [1e308, 1e-308], [1]) for i in range(100)], "peers"))
        page = page_of(*runs)
        for one in plot.make_plots(runs):
            if one.figure:
                self.assertIsNone(re.search('[ "(]-?(nan|inf)[ ",)]', plot.svg_of(one.figure, one.id, one.title)), one.id)
        self.assertEqual(len(plot_named("peers", *runs).figure.axes[0].patches), 40)
        self.assertEqual(page.count('<tr class="case">'), 104)

    def test_a_logarithmic_axis_has_numbers_at_round_values(self):
        def labels(values):
            points = list(enumerate(values, 1))
            figure = plot.line_plot("t", [plot.Line("", "red", points)], "x", "y", x_log=False, y_log=True, ticks=[(1, "one")])
            return texts(plot.Plot("x", "t", figure))
        for text in ("1e-06", "0.001"):
            self.assertIn(text, labels([0, 1e-6, 1e-3, -1]))
        self.assertGreaterEqual({"100", "200", "500"} & set(labels([150, 300])), {"100", "200", "500"})
        self.assertLess(len(labels([1e-60, 1e60])), 30)

    def test_ticks_that_would_overlap_are_left_out(self):
        figure = plot.line_plot("t", [plot.Line("", "red", [(1, 0), (10, 1), (100, 0)])], "x", "y", x_log=True, y_log=False,
                                ticks=[(1, "one"), (1.01, "too near"), (100, "hundred")])
        found = texts(plot.Plot("x", "t", figure))
        self.assertTrue({"one", "hundred"} <= set(found))
        self.assertNotIn("too near", found)

    def test_texts_that_are_too_long_end_with_an_ellipsis(self):
        self.assertEqual([plot.shortened("äöüß", length) for length in (4, 3, 0)], ["äöüß", "äö…", "…"])
        run = run_of([case_with([1], True, name=200 * "x")], "baseline")
        (name,) = [text for text in texts(plot_named("baseline", run)) if text.startswith("xx")]
        self.assertTrue(len(name) < 100 and name.endswith("…"))

    def test_a_legend_that_is_wide_takes_rows(self):
        for length, columns in ((5, 3), (20, 2), (60, 1)):
            lines = [plot.Line(letter * length, "red", [(1, 1), (2, 2)]) for letter in "abc"]
            figure = plot.line_plot("t", lines, "x", "y", x_log=False, y_log=False, ticks=[(1, "1")])
            self.assertEqual(figure.axes[0].get_legend()._ncols, columns)

    def test_nothing_is_cut_off(self):
        cases = [seconds(f"paused, Kimi-K2, {gpus} GPUs", [2.5], [1]) for gpus in (8, 16, 10000)]
        runs = [sync_run("a", 1 << 20), sync_run("b", 64 << 20), run_of(cases, "scale"),
                run_of([case_with([1, 1.5], True, name="memcpy, 1 thread"), case_with([1e-3], True, name="XXH3")], "baseline")]
        for one in plot.make_plots(runs):
            if one.figure:
                one.figure.draw_without_rendering()
                box, whole = one.figure.get_tightbbox(), one.figure.get_size_inches()
                self.assertTrue(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= whole[0] and box.y1 <= whole[1], (one.id, box))

    def test_ids_are_unique_and_fit_for_files(self):
        run = run_of([seconds("paused, ../<x>, 8 GPUs", [1])], "scale")
        self.assertEqual(drawn(run, run), ["scale-x", "scale-x-2"])

    def test_names_that_count_are_taken_apart(self):
        self.assertEqual(plot.counted_by("4 engines that map", "engine"), (4, "that map"))
        self.assertEqual(plot.counted_by("1 engine, buffers", "engine"), (1, "buffers"))
        for text in ("", "engines", "4", "4 enginesx", "0 engines", "-1 engines", "4engines", "99999999999999999999 engines"):
            self.assertIsNone(plot.counted_by(text, "engine"), text)

    def test_a_users_own_style_has_no_say(self):
        with matplotlib.rc_context({"lines.marker": "x", "axes.facecolor": "black"}):
            self.assertEqual(plot.new_figure("t", 2).add_subplot().get_facecolor(), (1, 1, 1, 1))


class Pictures(unittest.TestCase):
    """The pictures of --svg."""

    def test_who_did_not_take_part_is_named_in_the_picture_of_peers(self):
        peer = {"title": "raw file", "rounds": [8, 16], "skipped": "", "failed": ""}
        details = {"machine": {"cpu": "a", "cores": 2, "virtual_machine": True}, "bytes": 1000, "engines": 2, "rounds": 2,
                   "floor": {"rounds": [1, 2]}, "wsync": {"rounds": [4, 4], "paused_s": {"median": 0.625}},
                   "peers": [peer, peer | {"title": "safetensors", "rounds": [], "skipped": "no torch"},
                             peer | {"title": "disk", "rounds": [40], "failed": "round 2: engine 1: out of <memory>"}]}
        figure = plot.peers_picture(Suite("peers", {}, [], [], details))
        self.assertNotIn("<memory>", plot.svg_of(figure, "p", "p"))
        found = " ".join(texts(plot.Plot("p", "p", figure)))
        for text in ("skipped: no torch", "3.0 x wsync", "failed in round 2", "safetensors", "1000 B", "2 engines", "625.0 ms"):
            self.assertIn(text, found)

    def test_the_picture_of_scale_has_a_panel_of_each_model(self):
        cases = [seconds(f"paused, {model}, {gpus} GPUs", [2], [1]) for model in "ABC" for gpus in (8, 16)]
        figure = plot.scale_picture(Suite("scale", {}, cases, []))
        self.assertEqual([axes.get_title("left") for axes in figure.axes if axes.get_visible()], ["A", "B", "C"])
        self.assertIsNone(plot.scale_picture(Suite("scale", {}, [], [])))


class Commands(unittest.TestCase):
    def call(self, *words, missing=()):
        """(exit code, standard output, standard error) of the program."""
        def without(name, package=None):
            if name in missing:
                raise ImportError(name)
            return real(name, package)
        real = plot.importlib.import_module
        with mock.patch("sys.stdout", io.StringIO()) as out, mock.patch("sys.stderr", io.StringIO()) as err, \
                mock.patch.object(plot.importlib, "import_module", without):
            return plot.main(words), out.getvalue(), err.getvalue()

    def test_a_package_that_is_missing_is_named_with_its_purpose_and_its_installation(self):
        for words, missing, sentence in (
                (["check"], {"matplotlib.figure"}, "drawing a plot needs the Python package matplotlib, which .* does not have; on "
                                            "Debian: apt-get install python3-matplotlib"),
                (["report", "--into", "x", "y"], {"matplotlib.figure"}, "`wsync bench report` needs"),
                (["suite", "--into", "x", "y"], {"matplotlib.figure"}, "--svg needs"),
                (["compare", "x", "y"], {"numpy", "scipy.stats"}, "`wsync bench compare` needs the Python packages numpy and scipy, .*"
                                                            "apt-get install python3-numpy python3-scipy")):
            code, out, err = self.call(*words, missing=missing)
            self.assertEqual((code, out, err.count("\n")), (plot.EXIT_MISSING, "", 1))
            self.assertRegex(err, sentence)
        self.assertEqual(self.call("check")[:2], (0, "{}\n"))

    def test_a_folder_that_is_not_there_is_named(self):
        code, _, err = self.call("report", "--into", "/nonexistent", "/nonexistent/a.json")
        self.assertEqual((code, err), (1, "/nonexistent/a.json: No such file or directory\n"))

    def test_kept_results_are_drawn_and_compared(self):
        results = pathlib.Path(plot.__file__).parent / "results"
        with tempfile.TemporaryDirectory() as folder:
            kept = sorted(str(path) for path in results.glob("2026-11-23-*.json"))
            code, out, err = self.call("report", "--into", folder, "--plots", "--", *kept)
            self.assertEqual((code, err), (0, ""))
            names = [one["name"] for one in json.loads(out)["plots"]]
            self.assertEqual(names, ["sync-throughput", "sync-share-of-floor", "peers", "peers-to-floor", "peers-to-wsync",
                                     "pipeline", "baseline"])
            self.assertEqual(sorted(os.listdir(folder)), sorted(["page.html", *(n + e for n in names for e in (".svg", ".png"))]))
            for name in names:
                xml.etree.ElementTree.parse(os.path.join(folder, name + ".svg"))
            (peers,) = [path for path in kept if "-peers-" in path]
            self.assertEqual(self.call("suite", "--into", folder, peers), (0, "{}\n", ""))
            picture = " ".join(xml.etree.ElementTree.parse(os.path.join(folder, "picture.svg")).getroot().itertext())
            for text in ("UCX", "0.6 x wsync", "wsync pauses engines for 21.6 ms"):
                self.assertIn(text, picture)
        a, b = (path for path in kept if "overhead-30" in path or "overhead-90" in path)
        code, out, _ = self.call("compare", "--factor", "1.05", "--", a, b)
        cases = {case["name"]: case for case in json.loads(out)["result"]["cases"]}
        for name, (verdict, chance, among_all) in EXPECTED.items():
            self.assertEqual(cases[name]["verdict"], verdict)
            self.assertTrue(math.isclose(cases[name]["chance"], chance, rel_tol=1e-9), name)
            self.assertTrue(math.isclose(cases[name]["chance_among_all"], among_all, rel_tol=1e-9), name)


# Verdict, p-value, and p-value among all cases of the kept overhead results with 30 and 90 rounds, by an independent program.
EXPECTED = {
    "scraped and traced": ("no change shown", 0.6043314191465217, 1.0),
    "spans kept, pages served": ("no change shown", 0.045828474947995, 0.13748542484398502),
    "making spans": ("worse", 6.50988013972947e-06, 2.603952055891788e-05),
    "push that traces": ("no change shown", 0.963745004895627, 1.0),
}

if __name__ == "__main__":
    unittest.main()
