"""Engines in Python that hold their own weights, and load only the layers in which something has changed."""
import unittest

import numpy as np
import wsync
from package_fleet import DEADLINE_S, PackageFleet, until

LAYERS = 6
NAMES = [f"model.layers.{layer}.{part}.weight" for layer in range(LAYERS) for part in ("attention", "mlp")]
SHAPE = (64, 64)


class LayeredEngine:
    """Keeps each layer that it is given, and says which these were."""

    def __init__(self):
        self.held = {}
        self.given = []

    def load_layer(self, version, layer, tensors):
        self.given.append(sorted(tensors))
        for name, array in tensors.items():
            self.held[name] = np.array(array, copy=True)

    def read_tensor(self, name, offset, out):
        out[:] = self.held[name].view(np.uint8).reshape(-1)[offset:offset + out.size]


class Layers(unittest.TestCase):
    def setUp(self):
        self.fleet = self.enterContext(PackageFleet())
        _, self.socket = self.fleet.sidecar("host")
        self.publisher = self.enterContext(self.fleet.publisher())
        random = np.random.default_rng(4)
        self.weights = {name: random.standard_normal(SHAPE, dtype=np.float32) for name in NAMES}

    def replica(self, name, engine, take, changed_layers=True):
        return wsync.Replica(self.socket, name, {name: wsync.Spec("F32", SHAPE) for name in NAMES}, take=take,
                             load_layer=lambda *given: engine.load_layer(*given), read_tensor=engine.read_tensor,
                             changed_layers=changed_layers)

    def published(self):
        self.publisher.publish(self.weights).wait(timeout=DEADLINE_S)

    def holds(self, *engines):
        for engine in engines:
            for name, value in self.weights.items():
                np.testing.assert_array_equal(engine.held[name], value, name)

    def loaded(self, name):
        code, answer = self.fleet.ask("status")
        self.assertEqual(code, 0, answer)
        return {r["replica"]: r["last_load"] for one in answer["result"]["sidecars"] for r in one["replicas"]}[name]

    def test_only_layers_that_have_changed_are_given(self):
        engines = {"w": LayeredEngine(), "b": LayeredEngine(), "all": LayeredEngine()}
        self.fleet.serve(self.replica("w", engines["w"], "whole"))
        self.fleet.serve(self.replica("b", engines["b"], "borrow"))
        self.fleet.serve(self.replica("all", engines["all"], "whole", changed_layers=False))
        self.published()
        expected = {"w": [sorted(NAMES[4:6])], "b": [sorted(NAMES[4:6])]}
        found = {}
        for step in range(8):  # the trainer hears of engines that take patches by a heartbeat
            for engine in engines.values():
                engine.given.clear()
            self.weights[NAMES[5]][3, step] += 1
            self.published()
            self.holds(*engines.values())
            self.assertEqual(len(engines["all"].given), LAYERS)
            found = {name: engines[name].given for name in expected}
            if found == expected:
                break
        self.assertEqual(found, expected)
        for name in expected:
            until(lambda name=name: self.loaded(name)["kind"] == "patch", "what the fleet says of it")
            self.assertEqual(self.loaded(name)["written_bytes"], 2 * 4 * SHAPE[0] * SHAPE[1])
        self.assertEqual(self.loaded("all")["kind"], "full")
        code, answer = self.fleet.ask("verify")
        self.assertEqual(code, 0, answer)
        # Everything has changed.
        for engine in engines.values():
            engine.given.clear()
        for value in self.weights.values():
            value += 1
        self.published()
        self.holds(*engines.values())
        self.assertEqual([len(engine.given) for engine in engines.values()], [LAYERS] * 3)

    def test_a_layer_that_fails_is_followed_by_all_of_them(self):
        self.enterContext(self.assertLogs("wsync", "ERROR"))
        engine = LayeredEngine()
        self.fleet.serve(self.replica("w", engine, "whole"))
        self.published()
        loads = []

        def load_layer(version, layer, tensors, load=engine.load_layer):
            loads.append(layer)
            if len(tensors) == 2 and loads == [2]:
                raise RuntimeError("no room for this layer")
            load(version, layer, tensors)
        engine.load_layer = load_layer
        for step in range(8):
            loads.clear()
            self.weights[NAMES[5]][3, step] += 1
            self.published()
            self.holds(engine)
            if loads[0] == 2:
                break
        self.assertEqual(loads, [2, *range(LAYERS)])

    def test_who_cannot(self):
        engine = LayeredEngine()
        for take in "pieces", "adopt":
            with self.assertRaisesRegex(wsync.InvalidInput, f"changed_layers is for 'whole' and 'borrow'; take is '{take}'"):
                self.replica("w", engine, take)
        with self.assertRaisesRegex(wsync.EngineRefused, "returns their bytes: this engine gives no read_tensor"):
            wsync.Replica(self.socket, "w", {name: wsync.Spec("F32", SHAPE) for name in NAMES}, take="whole",
                          load_layer=engine.load_layer, changed_layers=True)


if __name__ == "__main__":
    unittest.main()
