"""A test case over a fleet: what it asks, and what must hold at its end."""
import unittest


class FleetCase(unittest.TestCase):
    def push(self, fleet, path, address=None):
        """Publishes a checkpoint; the version."""
        code, answer = fleet.ask("push", path, address=address)
        self.assertEqual(code, 0, answer)
        return answer["result"]["version"]

    def sidecar_state(self, fleet, name):
        """What a sidecar says of itself, whoever its coordinator is."""
        code, answer = fleet.ask("status", address=f"ipc://{fleet.run_dir}/{name}.control")
        self.assertEqual(code, 0, answer)
        return answer["result"]

    def stopped_whole(self, fleet, *engines):
        """Ends the engines, of which none has seen a torn step."""
        for engine in engines:
            code, said = fleet.stop(engine)
            self.assertEqual(code, 0, said)
            self.assertIn('"torn":0', said)
