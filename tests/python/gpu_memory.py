"""Arrays in the memory of a GPU, made with the driver alone, as a framework other than torch would give them."""
import ctypes
import os
import shutil
import sys
import tempfile

import numpy as np

GPU = 2  # kDLCUDA of DLPack


def with_emulated_driver(driver, **environment):
    """Runs this program again in a process that loads the emulated driver at the path `driver`, and ends with its exit status, or
    with what was done wrong with the driver. The loader reads LD_LIBRARY_PATH when a process begins.
    """
    folder = tempfile.mkdtemp(prefix="wsync-")
    report = os.path.join(folder, "misuse")
    environment = dict(os.environ, LD_LIBRARY_PATH=os.path.dirname(os.path.abspath(driver)), WSYNC_EMULATED_CUDA_REPORT=report,
                       **environment)
    try:
        code = os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-B", *sys.argv], environment)
        if os.path.exists(report):
            with open(report, encoding="utf-8") as file:
                if misuse := file.read():
                    sys.exit(f"misuse of the driver:\n{misuse}")
    finally:
        shutil.rmtree(folder)
    sys.exit(code)


class Driver:
    """The driver that this process loads (libcuda.so.1): the emulated one, if LD_LIBRARY_PATH names its folder."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.contexts = {}
        self.streams = {}

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def context(self, gpu):
        """Makes the primary context of a GPU current, and returns a stream of it."""
        if gpu not in self.contexts:
            context, stream = ctypes.c_void_p(), ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
            self.call("cuCtxSetCurrent", context)
            self.call("cuStreamCreate", ctypes.byref(stream), 1)
            self.contexts[gpu], self.streams[gpu] = context, stream
        self.call("cuCtxSetCurrent", self.contexts[gpu])
        return self.streams[gpu]

    def close(self):
        for gpu, context in self.contexts.items():
            self.call("cuCtxSetCurrent", context)
            self.call("cuStreamDestroy_v2", self.streams[gpu])
            self.call("cuCtxSetCurrent", None)
            self.call("cuDevicePrimaryCtxRelease_v2", gpu)
        self.contexts, self.streams = {}, {}


class GpuArray:
    """A contiguous array in the memory of a GPU, with `__cuda_array_interface__`. `says_gpu`: whether it also says which GPU."""

    def __init__(self, driver, gpu, shape, dtype="uint16", dtype_name="BF16", says_gpu=True, **interface):
        self.driver, self.gpu, self.shape, self.dtype, self.dtype_name = driver, gpu, tuple(shape), np.dtype(dtype), dtype_name
        self.bytes = int(np.prod(shape)) * self.dtype.itemsize
        self.pointer = ctypes.c_uint64()
        driver.context(gpu)
        driver.call("cuMemAlloc_v2", ctypes.byref(self.pointer), ctypes.c_size_t(self.bytes))
        self.interface = interface
        if says_gpu:
            self.__dlpack_device__ = lambda: (GPU, gpu)

    @property
    def __cuda_array_interface__(self):
        return {"shape": self.shape, "typestr": self.dtype.str, "data": (self.pointer.value, False), "version": 3,
                "strides": None} | self.interface

    def read(self):
        """What the memory holds, as bytes."""
        stream = self.driver.context(self.gpu)
        held = np.empty(self.bytes, np.uint8)
        self.driver.call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(held.ctypes.data), self.pointer, ctypes.c_size_t(self.bytes), stream)
        self.driver.call("cuStreamSynchronize", stream)
        return held.tobytes()

    def fill(self, array):
        """Writes the bytes of an array into the memory."""
        stream = self.driver.context(self.gpu)
        plain = np.ascontiguousarray(array)
        self.driver.call("cuMemcpyHtoDAsync_v2", self.pointer, ctypes.c_void_p(plain.ctypes.data), ctypes.c_size_t(self.bytes), stream)
        self.driver.call("cuStreamSynchronize", stream)

    def free(self):
        if self.pointer.value:
            self.driver.context(self.gpu)
            self.driver.call("cuMemFree_v2", self.pointer)
            self.pointer = ctypes.c_uint64()
