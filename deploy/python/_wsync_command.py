"""The command `wsync` of the wheel. A module of its own, so that the command does not import the package and NumPy."""
import os
import sys


def main() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    executable = os.path.join(folder, "wsync", "_native", "wsync")
    os.execv(executable, ["wsync", *sys.argv[1:]])
