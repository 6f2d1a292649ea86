"""Engines over the C API on the emulated driver (tests/emulated_cuda). No GPU: nothing here says what one does."""
import sys
import unittest

import gpu_engines
from cuda_fleet import CudaFleet

WSYNC, LIBRARY, LOADER, DRIVER, NCCL = sys.argv[-5:]
del sys.argv[-5:]


class CudaEngines(gpu_engines.EngineCase):
    loader = LOADER

    def fleet(self, **options):
        return CudaFleet(WSYNC, LIBRARY, DRIVER, NCCL, **options)


if __name__ == "__main__":
    unittest.main()
