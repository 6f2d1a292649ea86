"""Ranks as real processes compute what one process with plain loops does: the loss of each step, and every byte of the
saved state, in every layout; also from a state on, and over TCP."""
import itertools
import os
import signal
import sys
import unittest

from training import FILES, TINY, TrainingFleet, digests, what_ranks_compute

WSYNC = sys.argv.pop()

SIZES = ((1, 1, 4), (2, 2, 4), (4, 2, 8), (2, 3, 6))  # pp, vpp, micro-batches
REPLICAS = ((1, 1), (2, 1), (2, 2))  # dp, ep
BOOLS = (False, True)
STEPS = 3


def run_of(pp, vpp, microbatches, dp=1, ep=1, **more):
    return TINY | {"parallel.pp": pp, "parallel.vpp": vpp, "parallel.dp": dp, "parallel.ep": ep,
                   "model.layers": pp * vpp, "schedule.microbatches": microbatches, "steps": STEPS} | more


class Reference:
    """What a run in one process makes, once for all the layouts that must equal it."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.known = {}

    def of(self, values):
        same = tuple(values.get(key) for key in ("model.layers", "schedule.microbatches", "parallel.dp",
                                                 "model.tied_embeddings"))
        if same not in self.known:
            directory = self.fleet.path(f"reference{len(self.known)}")
            result = self.fleet.trained(values | {"save.directory": directory}, "--sequential")
            self.known[same] = what_ranks_compute(result), digests(f"{directory}/step_{STEPS}")
        return self.known[same]


class Bitwise(unittest.TestCase):
    def each_equals_the_reference(self, sizes, replicas, offloads, delays, ties=(False,)):
        with TrainingFleet(WSYNC) as fleet:
            reference = Reference(fleet)
            count = 0
            for (pp, vpp, m), (dp, ep), offload, delay, tied in itertools.product(sizes, replicas, offloads, delays, ties):
                for overlap in BOOLS if ep > 1 and vpp > 1 else (False,):
                    count += 1
                    directory = fleet.path(str(count))
                    values = run_of(pp, vpp, m, dp, ep) | {
                        "schedule.offload": offload, "schedule.delay_wgrad": delay, "schedule.overlap": overlap,
                        "model.tied_embeddings": tied, "save.directory": directory}
                    with self.subTest(pp=pp, vpp=vpp, m=m, dp=dp, ep=ep, offload=offload, delay=delay, overlap=overlap,
                                      tied=tied):
                        result = fleet.trained(values)
                        steps, files = reference.of(values)
                        self.assertEqual(set(files), set(FILES))
                        self.assertEqual(what_ranks_compute(result), steps)
                        self.assertEqual(len(steps), STEPS)
                        self.assertEqual(digests(f"{directory}/step_{STEPS}"), files)
                        self.assertEqual(result["run"]["ranks"], pp * dp)
                        if offload:
                            self.assertLessEqual(result["device_activations_most"], 4)

    def test_every_layout(self):
        self.each_equals_the_reference(SIZES, REPLICAS, BOOLS, BOOLS)

    def test_tied_embeddings(self):
        self.each_equals_the_reference(((1, 1, 4), (2, 2, 4)), REPLICAS, (True,), (True,), ties=(True,))

    def test_a_few_layouts(self):
        self.each_equals_the_reference(((2, 2, 4),), ((1, 1), (2, 2)), (True,), BOOLS)

    def test_the_reference_is_not_the_same_for_every_run(self):
        """What the comparisons above rest on: other settings give other bytes."""
        with TrainingFleet(WSYNC) as fleet:
            found = set()
            for number, values in enumerate((run_of(1, 1, 4), run_of(1, 1, 4, dp=2), run_of(1, 1, 8),
                                             run_of(1, 1, 4, **{"data.seed": 2}), run_of(1, 1, 4, **{"model.seed": 2}))):
                directory = fleet.path(str(number))
                fleet.trained(values | {"save.directory": directory}, "--sequential")
                found.add(digests(f"{directory}/step_{STEPS}")["model.safetensors"])
            self.assertEqual(len(found), 5)

    def test_other_orders(self):
        with TrainingFleet(WSYNC) as fleet:
            reference = Reference(fleet)
            for order, vpp in (("1f1b", 1), ("zb-h1", 1), ("gpipe", 1), ("gpipe", 2)):
                with self.subTest(order=order, vpp=vpp):
                    directory = fleet.path(f"{order}{vpp}")
                    values = run_of(2, vpp, 4) | {"schedule.order": order, "save.directory": directory}
                    result = fleet.trained(values)
                    steps, files = reference.of(values)
                    self.assertEqual(what_ranks_compute(result), steps)
                    self.assertEqual(digests(f"{directory}/step_{STEPS}"), files)


class Resume(unittest.TestCase):
    STEPS = 6
    MIDDLE = 3

    def run_of(self, pp, vpp, dp, ep, **more):
        return run_of(pp, vpp, 4, dp, ep) | {"model.layers": 4, "steps": self.STEPS} | more

    def test_from_the_middle_in_each_layout(self):
        with TrainingFleet(WSYNC) as fleet:
            whole = fleet.path("whole")
            first = self.run_of(2, 2, 2, 2, **{"save.directory": whole, "save.every": self.MIDDLE})
            steps = what_ranks_compute(fleet.trained(first))
            self.assertEqual(sorted(os.listdir(whole)), [f"step_{self.MIDDLE}", f"step_{self.STEPS}"])
            last = digests(f"{whole}/step_{self.STEPS}")
            self.assertNotEqual(digests(f"{whole}/step_{self.MIDDLE}"), last)
            layouts = [((2, 2, 2, 2), ()), ((1, 4, 2, 1), ()), ((4, 1, 2, 2), ()), ((2, 1, 2, 1), ()),
                       ((1, 1, 2, 2), ("--sequential",))]
            for number, (layout, arguments) in enumerate(layouts):
                with self.subTest(layout=layout, arguments=arguments):
                    directory = fleet.path(str(number))
                    values = self.run_of(*layout, **{"save.directory": directory}) | {
                        "schedule.offload": number % 2 == 0}
                    result = fleet.trained(
                        {key: value for key, value in values.items() if not key.startswith("model.")}, "--resume",
                        f"{whole}/step_{self.MIDDLE}", *arguments)
                    self.assertEqual(result["run"]["first_step"], self.MIDDLE + 1)
                    self.assertEqual(what_ranks_compute(result), steps[self.MIDDLE:])
                    self.assertEqual(digests(f"{directory}/step_{self.STEPS}"), last)

    def test_the_state_says_what_the_model_is(self):
        """Six layers on three ranks, where the model that nobody describes would have four."""
        with TrainingFleet(WSYNC) as fleet:
            whole = fleet.path("whole")
            values = run_of(3, 2, 6) | {"save.directory": whole, "save.every": 2, "steps": 4}
            fleet.trained(values)
            directory = fleet.path("resumed")
            fleet.trained({key: value for key, value in values.items() if not key.startswith("model.")}
                          | {"save.directory": directory}, "--resume", f"{whole}/step_2")
            self.assertEqual(digests(f"{directory}/step_4"), digests(f"{whole}/step_4"))

    def test_of_a_run_that_was_interrupted(self):
        # The learning rate depends on the last step, so the run that goes on has as many as the first one was to have.
        steps = 400
        with TrainingFleet(WSYNC) as fleet:
            directory = fleet.path("saved")
            values = self.run_of(2, 2, 1, 1, **{"save.directory": directory, "steps": steps})
            whole = fleet.path("whole")
            fleet.trained(values | {"save.directory": whole})
            run = fleet.training(values)
            run.until_step(2)
            run.send(signal.SIGINT)
            code, answer, log = run.result()
            self.assertEqual(code, 130, log)
            saved = answer["result"]["saved"][-1]
            self.assertLess(saved["step"], steps)
            result = fleet.trained(self.run_of(4, 1, 1, 1) | {"save.directory": directory, "steps": steps}
                                   | {"resume": saved["directory"]})
            self.assertEqual(result["run"]["first_step"], saved["step"] + 1)
            self.assertEqual(digests(f"{directory}/step_{steps}"), digests(f"{whole}/step_{steps}"))


if __name__ == "__main__":
    unittest.main()
