"""Compiles a file of CUDA kernels with NVRTC, the compiler of the CUDA toolkit that is a library.

NVRTC is used and not nvcc, because it is what Python packages of CUDA 12 have: kernels that are compiled with CUDA 12 run on
drivers of CUDA 12 and later, kernels of CUDA 13 only on drivers of CUDA 13. Without packages, the kernels need a C++ standard
library with nothing but integers of fixed width, which is written here.

What is compiled is one file of images: machine code (a cubin) for each GPU, and PTX, which drivers compile for newer ones. Its
layout is described in shared/device/cuda/kernel_images.h.

Exit status: 0 compiled, 1 the compiler refused, 2 wrong arguments.
"""
import argparse
import ctypes
import os
import re
import struct
import sys

MAGIC = b"WSYNCKI1"
ALIGNMENT = 64
HEADERS = {
    "cstdint": """#pragma once
namespace std {
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using size_t = unsigned long;
}
""",
    "cstring": "#pragma once\n",
}


class Nvrtc:
    """The functions of libnvrtc that are used. A failure ends the program with what the library says."""

    def __init__(self, path):
        try:
            self.library = ctypes.CDLL(path)
        except OSError as why:
            sys.exit(f"compile_kernels: {path} cannot be loaded: {why}")
        self.library.nvrtcGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            sys.exit(f"compile_kernels: {name}: {self.library.nvrtcGetErrorString(code).decode()}")

    def version(self):
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def output(self, program, name):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{name}Size", program, ctypes.byref(size))
        out = ctypes.create_string_buffer(max(1, size.value))
        self.call(f"nvrtcGet{name}", program, out)
        return out.raw[:size.value]

    def compile(self, source, name, options, wants):
        """What `wants` names ("CUBIN" or "PTX") of the source, and what the compiler said."""
        program = ctypes.c_void_p()
        names = (ctypes.c_char_p * len(HEADERS))(*(key.encode() for key in HEADERS))
        texts = (ctypes.c_char_p * len(HEADERS))(*(text.encode() for text in HEADERS.values()))
        self.call("nvrtcCreateProgram", ctypes.byref(program), source, name.encode(), len(HEADERS), texts, names)
        list_of_options = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = self.library.nvrtcCompileProgram(program, len(options), list_of_options)
        said = self.output(program, "ProgramLog").rstrip(b"\0").decode()
        if code != 0:
            print(said, file=sys.stderr)
            sys.exit(f"compile_kernels: {name}: {self.library.nvrtcGetErrorString(code).decode()}")
        return self.output(program, wants), said


def included(path, root, seen):
    """The files that `path` includes by names in quotation marks, which are all below `root`."""
    if path in seen:
        return
    seen.append(path)
    with open(path, encoding="utf-8") as file:
        for name in re.findall(r'^#include "([^"]+)"', file.read(), re.MULTILINE):
            included(os.path.join(root, name), root, seen)


def capability(name):
    """("sm", 9, 0) of "sm_90"."""
    found = re.fullmatch(r"(sm|compute)_(\d+)(\d)", name)
    if not found:
        raise argparse.ArgumentTypeError(f"'{name}', expected sm_80 (machine code) or compute_80 (PTX)")
    return found[1], int(found[2]), int(found[3])


def packed(images):
    """The file of images: a header, a table of 24 bytes for each, and the images, each at a multiple of ALIGNMENT."""
    at = len(MAGIC) + 8 + 24 * len(images)
    table, body = b"", b""
    for (kind, major, minor), image in images:
        padding = -(at + len(body)) % ALIGNMENT
        body += b"\0" * padding
        table += struct.pack("<BBBxIQQ", kind == "compute", major, minor, 0, at + len(body), len(image))
        body += image
    return MAGIC + struct.pack("<Q", len(images)) + table + body


def main():
    parser = argparse.ArgumentParser(description="Compiles a file of CUDA kernels with NVRTC.")
    parser.add_argument("--nvrtc", required=True, help="path of libnvrtc.so")
    parser.add_argument("--version", action="store_true", help="print the CUDA release of the library, and end")
    parser.add_argument("--source", help="the file to compile")
    parser.add_argument("--root", help="folder that the names of included files begin in")
    parser.add_argument("--gpus", nargs="+", type=capability, default=[], help="sm_80: machine code; compute_80: PTX")
    parser.add_argument("--warnings-are-errors", action="store_true")
    parser.add_argument("--out", help="file of images; beside it, FILE.log with what the compiler says, and FILE.d for the build")
    arguments = parser.parse_args()
    nvrtc = Nvrtc(arguments.nvrtc)
    if arguments.version:
        print(nvrtc.version())
        return
    if not (arguments.source and arguments.root and arguments.gpus and arguments.out):
        parser.error("--source, --root, --gpus and --out are needed")
    with open(arguments.source, "rb") as file:
        source = file.read()
    images, log = [], ""
    for gpu in arguments.gpus:
        kind, major, minor = gpu
        options = [f"--gpu-architecture={kind}_{major}{minor}", "--std=c++20", "--device-as-default-execution-space",
                   f"--include-path={arguments.root}"]
        if kind == "sm":
            options.append("--ptxas-options=-v")
        # A string of PTX ends with a null byte, which the driver asks for.
        image, said = nvrtc.compile(source, arguments.source, options, "CUBIN" if kind == "sm" else "PTX")
        if arguments.warnings_are_errors and re.search(r"\bwarning\b", said):
            sys.exit(f"{said}\ncompile_kernels: {arguments.source}: a warning is an error in this build")
        log += said
        images.append((gpu, image))
    with open(f"{arguments.out}.log", "w", encoding="utf-8") as file:
        file.write(f"NVRTC {nvrtc.version()}\n{log}")
    seen = []
    included(arguments.source, arguments.root, seen)
    with open(f"{arguments.out}.d", "w", encoding="utf-8") as file:
        file.write(f"{arguments.out}: {' '.join(seen)}\n")
    with open(arguments.out, "wb") as file:
        file.write(packed(images))


if __name__ == "__main__":
    main()
