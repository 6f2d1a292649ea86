"""`python -m wsync.doctor`: runs `wsync doctor`, which checks this machine and says what is missing."""
import os
import sys

from ._native import EXECUTABLE

if __name__ == "__main__":
    os.execv(EXECUTABLE, ["wsync", "doctor", *sys.argv[1:]])
