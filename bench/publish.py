#!/usr/bin/env python3
"""The Python side of `wsync bench sync --python`: publishes a model with the package wsync, in the interpreter under test.

`wsync bench` starts this program with the given interpreter:

    publish.py check --version 0.1.0 --protocol 19 [--tensors numpy,torch]    prints what the interpreter has, as one JSON object
    publish.py publish JOB.json                                               publishes on request, one JSON object per line

JOB.json has the settings of the trainer, the list of tensors, and the file with their bytes. After {"event": "ready"}, each line
"publish KIND STAMP" on standard input publishes once. KIND is numpy or torch; STAMP is written to the beginning of each tensor
before the measured time, so that each version has other bytes. The end of the input ends the program.

Standard output has JSON only. A refusal is the last line of standard error, with exit code 2.
"""
import argparse
import importlib.metadata
import json
import sys
import time

KINDS = ("numpy", "torch")
WAIT_S = 600.0  # a publish that takes longer has failed
STAMP_BYTES = 8


class Refusal(Exception):
    """The interpreter or the job cannot be used; the text is one sentence."""


def environment(version, protocol, kinds):
    """What the interpreter has, as the benchmark reports it.

    Args:
        version: the release of wsync that the wheel must have.
        protocol: the version of the protocol that it must speak. A trainer of another one would wait for a sidecar for ever.
        kinds: the kinds of tensors that are wanted; empty: NumPy, and torch where it can be imported.

    Raises:
        Refusal: a package is missing, cannot be imported or has another version.
    """
    wheel = f"the wheel of wsync {version}; `{sys.executable} -m pip install` it"
    try:
        installed = importlib.metadata.version("wsync")
    except importlib.metadata.PackageNotFoundError:
        raise Refusal(f"{sys.executable} has no package wsync; expected {wheel}") from None
    if installed != version:
        raise Refusal(f"{sys.executable} has wsync {installed}, but this benchmark is of release {version}; expected {wheel}")
    try:
        import numpy
        import wsync
        wsync.Publisher  # a folder named wsync without the package has none
        from wsync._native import core
    except (ImportError, AttributeError) as failure:
        raise Refusal(f"{sys.executable} cannot import wsync ({type(failure).__name__}: {failure}); expected {wheel}") from failure
    spoken = getattr(core, "protocol", None)
    if spoken != protocol:
        raise Refusal(f"{sys.executable} has wsync {installed} with " +
                      (f"the protocol version {spoken}" if spoken is not None else "an older protocol version, which it does not tell") +
                      f", but this benchmark has the protocol version {protocol}; expected the wheel of the same build; `{sys.executable} -m "
                      "pip install --force-reinstall` it")
    torch_version = None
    if not kinds or "torch" in kinds:
        try:
            import torch
            torch_version = torch.__version__
        except ImportError as failure:
            if kinds:
                raise Refusal(f"{sys.executable} cannot import torch ({failure}), which --python-tensors names; install it "
                              "there, or measure --python-tensors numpy") from failure
    return {"executable": sys.executable, "python": ".".join(map(str, sys.version_info[:3])), "wsync": installed,
            "numpy": numpy.__version__, "torch": torch_version,
            "kinds": list(kinds) or [kind for kind in KINDS if kind != "torch" or torch_version is not None]}


class Model:
    """The tensors of a model in the memory of this process, as arrays of NumPy and, over the same bytes, as tensors of torch."""

    def __init__(self, job):
        import numpy as np
        with open(job["tensors"], encoding="utf-8") as file:
            tensors = json.load(file)["tensors"]
        memory = np.fromfile(job["model"], np.uint8)
        self.stamped, self.kinds = [], {kind: {} for kind in job["kinds"]}
        for one in tensors:
            raw = memory[one["offset"]:one["offset"] + one["bytes"]]
            self.stamped.append(raw[:STAMP_BYTES])
            for kind, made in self.kinds.items():
                make = numpy_tensor if kind == "numpy" else torch_tensor
                made[one["name"]] = make(one["name"], one["dtype"], one["shape"], raw)

    def stamp(self, number):
        """Writes a number of 8 bytes, little-endian, to the beginning of each tensor, as far as the tensor has room."""
        import numpy as np
        text = np.frombuffer(number.to_bytes(STAMP_BYTES, "little"), np.uint8)
        for begin in self.stamped:
            begin[:] = text[:begin.size]


# The names of safetensors, of NumPy's type of the same size, and of torch's type.
DTYPES = {"BF16": ("uint16", "bfloat16"), "F16": ("float16", "float16"), "F32": ("float32", "float32"),
          "F64": ("float64", "float64"), "I64": ("int64", "int64"), "I32": ("int32", "int32"), "I16": ("int16", "int16"),
          "I8": ("int8", "int8"), "U8": ("uint8", "uint8"), "BOOL": ("bool", "bool"), "F8_E4M3": ("uint8", "float8_e4m3fn"),
          "F8_E5M2": ("uint8", "float8_e5m2"), "F8_E8M0": ("uint8", "float8_e8m0fnu")}


def numpy_tensor(name, dtype, shape, raw):
    """An array over the bytes; of BF16 and F8, for which NumPy has no type, an array that knows the name."""
    import wsync
    if dtype not in DTYPES:
        raise Refusal(f"tensor {name} has the dtype {dtype}; expected one of {', '.join(DTYPES)}")
    return wsync.as_dtype(raw.view(DTYPES[dtype][0]), dtype).reshape(shape)


def torch_tensor(name, dtype, shape, raw):
    """A tensor over the same bytes."""
    import torch
    known = getattr(torch, DTYPES[dtype][1], None)
    if known is None:
        raise Refusal(f"tensor {name} has the dtype {dtype}, which torch {torch.__version__} does not have; measure "
                      "--python-tensors numpy")
    return torch.from_numpy(raw).view(known).reshape(shape)


def publish_once(publisher, tensors):
    """Publishes, waits until the replicas serve it, and returns the times in ns."""
    cpu_before, begin = time.process_time_ns(), time.monotonic_ns()
    publish = publisher.publish(tensors)
    returned, cpu_returned = time.monotonic_ns(), time.process_time_ns()
    publish.wait("staged", WAIT_S)
    staged = time.monotonic_ns()
    status = publish.wait("committed", WAIT_S)
    end, cpu_end = time.monotonic_ns(), time.process_time_ns()
    return {"event": "published", "snapshot_ns": returned - begin, "staged_ns": staged - begin, "whole_ns": end - begin,
            "paused_ns": round(status.paused_s * 1e9), "snapshot_cpu_ns": cpu_returned - cpu_before, "cpu_ns": cpu_end - cpu_before,
            "replicas": status.replicas, "digest": status.content_digest}


def serve(path):
    """Publishes on request until the input ends."""
    import wsync
    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    model = Model(job)
    with wsync.Publisher(settings=job["settings"]) as publisher:
        say({"event": "ready"})
        for line in sys.stdin:
            try:
                _, kind, stamp = line.split()
                model.stamp(int(stamp))
                said = publish_once(publisher, model.kinds[kind])
            except wsync.Error as failure:
                said = {"event": "failed", "why": failure.sentence}
            say(said)


def say(line):
    print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check")
    check.add_argument("--version", required=True)
    check.add_argument("--protocol", required=True, type=int)
    check.add_argument("--tensors", default="", type=lambda text: [word for word in text.split(",") if word])
    commands.add_parser("publish").add_argument("job")
    given = parser.parse_args()
    try:
        if given.command == "check":
            say(environment(given.version, given.protocol, given.tensors))
        else:
            serve(given.job)
    except Refusal as refusal:
        print(refusal, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
