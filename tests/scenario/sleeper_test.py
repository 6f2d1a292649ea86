"""An engine that gives the memory of its weights away and takes other memory: the C example."""
import os
import struct
import subprocess
import sys
import unittest

import tensors
from fleet import DEADLINE_S, Fleet

WSYNC, SLEEPER = sys.argv[-2:]
NAME, ROWS, COLUMNS = "model.w", 300, 1001


class SleeperFleet(Fleet):
    def sleeper(self, engines):
        with self.log() as log:
            process = subprocess.Popen([SLEEPER, engines, "a", NAME, str(ROWS), str(COLUMNS)], env=self.environment, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        process.log_path = log.name
        self.processes.append(process)
        self.until(lambda: self.replicas().get("a", {}).get("ranks_attached") == 1, "the engine")
        return process

    def tell(self, process, command, answer):
        process.stdin.write(command + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if line != answer + "\n":
            with open(process.log_path, encoding="utf-8") as file:
                raise AssertionError(f"after '{command}' it says '{line}', and: {file.read()}")

    def checkpoint(self, bits):
        """One whose elements all have these bits, and the sum that an engine with it prints."""
        path = self.path(f"bits_{bits}")
        os.makedirs(path)
        header, size = tensors.layout({NAME: [ROWS, COLUMNS]})
        tensors.write_file(os.path.join(path, "model.safetensors"), header, struct.pack("<H", bits) * (size // 2))
        return path, bits * ROWS * COLUMNS

    def pushed(self, path):
        code, answer = self.ask("push", path)
        if code != 0:
            raise AssertionError(answer)
        return answer["result"]["version"]


class Sleeper(unittest.TestCase):
    def test_it_follows_when_it_is_awake(self):
        with SleeperFleet(WSYNC) as fleet:
            _, engines = fleet.sidecar("s0")
            fleet.start("trainer")
            process = fleet.sleeper(engines)
            first, second, third = (fleet.checkpoint(bits) for bits in (3, 5, 7))
            version = fleet.pushed(first[0])
            self.assertEqual(process.stdout.readline(), f"holds {version}, sum {first[1]}\n")
            fleet.tell(process, "sleep", "sleeps")
            fleet.until(lambda: "is suspended" in fleet.replicas().get("a", {}).get("reason", ""), "that status says it")
            fleet.tell(process, "wake", "is awake")
            self.assertEqual(process.stdout.readline(), f"holds {version}, sum {first[1]}\n")
            fleet.until(lambda: fleet.replicas()["a"]["state"] == "serving", "that it serves")
            for directory, total in (second, third):
                version = fleet.pushed(directory)
                self.assertEqual(process.stdout.readline(), f"holds {version}, sum {total}\n")
            process.stdin.close()
            self.assertEqual(process.wait(DEADLINE_S), 0)
            self.assertRegex(process.stdout.read(), r"^served [1-9]\d* steps\n$")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:-2])
