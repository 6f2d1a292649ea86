"""A disc that a test can make full, and limits of a process that runs."""
import contextlib
import os
import resource
import subprocess
import unittest


class Disc:
    """A directory on a disc of a few KiB of its own, which can be filled and emptied."""

    def __init__(self, directory):
        self.directory = directory
        self.records = os.path.join(directory, "default")  # the fleet's folder
        os.makedirs(directory, mode=0o700)

    def __enter__(self):
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "wsync-test", self.directory],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            print(f"skipped: no disc can be made full here: {mounted.stderr.strip()}", flush=True)
            raise unittest.SkipTest(mounted.stderr.strip())
        os.mkdir(self.records, mode=0o700)
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "--lazy", self.directory], check=True)

    def fill(self):
        with open(os.path.join(self.directory, "filler"), "wb", buffering=0) as file:
            size = 65536
            while size:
                try:
                    file.write(bytes(size))
                except OSError:
                    size //= 2

    def empty(self):
        os.unlink(os.path.join(self.directory, "filler"))

    def names(self):
        return sorted(n for n in os.listdir(self.records))


@contextlib.contextmanager
def limited(process, what, value):
    """A limit of a process that runs, for a while."""
    before = resource.prlimit(process.pid, what)
    resource.prlimit(process.pid, what, (value, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process.pid, what, before)
