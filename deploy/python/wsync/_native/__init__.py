"""The compiled parts of the package: the extension module `core`, and the executable `wsync`."""
import os

EXECUTABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wsync")
