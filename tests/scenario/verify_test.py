"""`wsync verify` against real engines whose memory was changed behind their backs, and how a publish mends that."""
import sys
import unittest

from damage import bytes_of_tensor, flip_bit
from fleet import Fleet

WSYNC = sys.argv.pop()
TENSOR = "model.layers.1.self_attn.o_proj.weight"


class Verify(unittest.TestCase):
    def verify(self, fleet):
        code, answer = fleet.ask("verify")
        self.assertEqual(answer["result"]["match"], code == 0)
        return code, {r["replica"]: [m["tensor"] for m in r["mismatches"]] for r in answer["result"]["ranks"]}

    def test_one_flipped_bit_is_named_and_mended_by_the_next_publish(self):
        with Fleet(WSYNC) as fleet:
            one = fleet.checkpoint("one", 1)
            _, engines = fleet.sidecar("s0")
            a = fleet.engine(engines, "a", one)
            fleet.engine(engines, "b", one)
            fleet.start("trainer")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            self.assertEqual(self.verify(fleet), (0, {"a": [], "b": []}))
            self.assertEqual(flip_bit(a.pid, bytes_of_tensor(one, TENSOR)), 1)
            self.assertEqual(self.verify(fleet), (1, {"a": [TENSOR], "b": []}), "a changed bit was not seen")
            self.assertEqual(fleet.ask("push", one)[0], 0)
            self.assertEqual(self.verify(fleet), (0, {"a": [], "b": []}))


if __name__ == "__main__":
    unittest.main()
