"""`wsync verify` against real engines whose memory was changed behind their backs, and how a publish mends that."""
import json
import os
import struct
import sys
import unittest

from fleet import Fleet

WSYNC = sys.argv.pop()
TENSOR = "model.layers.1.self_attn.o_proj.weight"
LARGEST = 1 << 30  # of a mapping that is looked into; sanitizers have some of terabytes


def bytes_of_tensor(checkpoint, name):
    """The bytes of one tensor, from the safetensors file that the index names."""
    with open(os.path.join(checkpoint, "model.safetensors.index.json"), encoding="utf-8") as file:
        shard = json.load(file)["weight_map"][name]
    with open(os.path.join(checkpoint, shard), "rb") as file:
        header_bytes, = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(header_bytes))[name]["data_offsets"]
        file.seek(8 + header_bytes + begin)
        return file.read(end - begin)


def flip_bit(pid, wanted):
    """Flips one bit in the middle of `wanted`, found in the private memory of a process; the number of places."""
    places = []
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps, open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            span, rights, _, _, inode = line.split()[:5]
            begin, end = (int(address, 16) for address in span.split("-"))
            if rights != "rw-p" or inode != "0" or end - begin > LARGEST:
                continue
            memory.seek(begin)
            held = memory.read(end - begin)
            at = held.find(wanted)
            while at >= 0:
                places.append(begin + at + len(wanted) // 2)
                at = held.find(wanted, at + 1)
        for address in places:
            memory.seek(address)
            byte, = memory.read(1)
            memory.seek(address)
            memory.write(bytes([byte ^ 1]))
    return len(places)


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
