"""The wheel as a user gets it: what is in it, what it links, and its commands."""
import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
import unittest

import wsync
from package_fleet import DEADLINE_S, PackageFleet
from wsync._native import EXECUTABLE, core

PACKAGE = os.path.dirname(os.path.abspath(wsync.__file__))
# What every Linux system of the platform tag has (PEP 600).
OF_THE_SYSTEM = {"linux-vdso.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2",
                 "libutil.so.1", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}


def run(*command, **more):
    # With an empty PATH and PYTHONPATH, nothing of the machine helps.
    return subprocess.run(command, text=True, capture_output=True, timeout=DEADLINE_S,
                          env={"HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}, **more)


class Wheel(unittest.TestCase):
    def binaries(self):
        native = os.path.join(PACKAGE, "_native")
        found = [os.path.join(native, name) for name in os.listdir(native) if not name.endswith((".py", ".pyi", "__"))]
        libraries = os.path.join(os.path.dirname(PACKAGE), "wsync.libs")
        return found + [os.path.join(libraries, name) for name in os.listdir(libraries)]

    def test_this_environment_has_nothing_else(self):
        self.assertNotEqual(sys.prefix, sys.base_prefix)
        self.assertTrue(PACKAGE.startswith(sys.prefix), PACKAGE)
        self.assertEqual([path for path in sys.path if "dist-packages" in path], [])
        installed = {found.metadata["Name"] for found in importlib.metadata.distributions()}
        self.assertEqual(installed - {"pip", "setuptools"}, {"numpy", "wsync"})

    def test_every_library_comes_from_the_wheel_or_from_any_system(self):
        binaries = self.binaries()
        self.assertGreater(len(binaries), 4)
        inside = os.path.dirname(PACKAGE) + os.sep
        for binary in binaries:
            done = subprocess.run(["ldd", binary], text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, f"{binary}: {done.stderr}")
            self.assertNotIn("not found", done.stdout)
            for line in done.stdout.splitlines():
                name, _, place = line.strip().partition(" => ")
                if os.path.basename(name.split()[0]) in OF_THE_SYSTEM:
                    continue
                self.assertTrue(os.path.realpath(place.split()[0]).startswith(os.path.realpath(inside)), f"{binary}: {line}")

    def test_the_modules_symbols_are_hidden(self):
        listed = subprocess.run(["nm", "-D", "--defined-only", core.__file__], text=True, capture_output=True, check=True).stdout
        self.assertEqual([line.split()[-1] for line in listed.splitlines()], ["PyInit_core"])

    def test_the_tag_says_for_which_python_the_module_is(self):
        tag = re.search(r"Tag: (\S+)-manylinux_2_36_", importlib.metadata.distribution("wsync").read_text("WHEEL")).group(1)
        module = os.path.basename(core.__file__)
        if tag == "cp312-abi3":
            self.assertEqual(module, "core.abi3.so")
            self.assertGreaterEqual(sys.version_info, (3, 12))
        else:
            this = f"cp{sys.version_info.major}{sys.version_info.minor}"
            self.assertEqual((tag, module), (f"{this}-{this}", f"core.{sysconfig.get_config_var('SOABI')}.so"))

    def test_the_platform_and_the_licences(self):
        wheel = importlib.metadata.distribution("wsync")
        self.assertEqual(wheel.metadata["License-Expression"], "Apache-2.0")
        files = [str(file) for file in wheel.files]
        self.assertTrue(any(file.endswith("dist-info/licenses/LICENSE") for file in files))
        bundled = [re.match(r"(lib[a-z0-9+_-]*?)-[0-9a-f]{8}\.", os.path.basename(file)) for file in files if "wsync.libs/" in file]
        licences = {os.path.basename(file) for file in files if "licenses/bundled/" in file}
        for library in bundled:
            name = library.group(1).replace("_", "-")
            name = {"libcrypto": "libssl"}.get(name, name)  # both are of one package
            self.assertTrue(any(licence.startswith(name) for licence in licences), f"no licence of {name}: {licences}")
        self.assertTrue(any(file == "wsync/py.typed" for file in files))

    def test_the_command(self):
        command = os.path.join(os.path.dirname(sys.executable), "wsync")
        done = run(command, "--version")
        self.assertEqual((done.returncode, done.stdout), (0, f"wsync {importlib.metadata.version('wsync')}\n"))
        self.assertEqual(run(command, "no-such-command").returncode, 2)
        self.assertIn("sidecar", run(command, "--help").stdout)

    def test_importing_brings_no_torch_and_the_command_brings_no_numpy(self):
        for module, absent in (("wsync", "torch"), ("_wsync_command", "numpy")):
            done = run(sys.executable, "-c", f"import sys, {module}; sys.exit('{absent}' in sys.modules)")
            self.assertEqual(done.returncode, 0, done.stderr)

    def test_every_public_name_has_a_docstring(self):
        for name in wsync.__all__:
            found = getattr(wsync, name)
            if name == "__version__":
                continue
            self.assertTrue(found.__doc__, name)
            for member, value in vars(found).items():
                if not member.startswith("_") and callable(value):
                    self.assertTrue(value.__doc__, f"{name}.{member}")


class Commands(unittest.TestCase):
    def test_the_version_is_that_of_the_wheel_and_of_the_command(self):
        self.assertEqual(wsync.__version__, importlib.metadata.version("wsync"))
        self.assertEqual(run(EXECUTABLE, "--version").stdout, f"wsync {wsync.__version__}\n")

    def test_the_help_lists_what_the_wheel_has(self):
        said = run(EXECUTABLE, "--help").stdout
        for name in ("sidecar", "push", "patch"):
            self.assertRegex(said, rf"(?m)^  {name} ")
        missing = re.search(r"Not part of this installation: ([^.]*)\.", said)
        self.assertTrue(missing, said)
        self.assertLessEqual({"engine", "train", "schedule", "bench"}, set(re.split(r",\s+", missing[1])))
        self.assertIn("deploy/demo.sh", said)
        for name in re.split(r",\s+", missing[1]):
            self.assertNotRegex(said, rf"(?m)^  {name} ")
            self.assertNotEqual(run(EXECUTABLE, name).returncode, 0)

    def test_the_demo(self):
        done = run(sys.executable, "-m", "wsync.demo")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(re.findall(r"stood still for [0-9.]+ ms", done.stdout)), 3)
        self.assertEqual(done.stdout.count("The engine's bytes are those of the trainer"), 3)

    def test_the_doctor(self):
        with PackageFleet() as fleet:
            fleet.sidecar()
            done = subprocess.run([sys.executable, "-m", "wsync.doctor"], text=True, capture_output=True, env=fleet.environment,
                                  timeout=DEADLINE_S)
            direct = subprocess.run([EXECUTABLE, "doctor"], text=True, capture_output=True, env=fleet.environment,
                                    timeout=DEADLINE_S)
        self.assertRegex(done.stdout, r"\d+ checks, ")
        self.assertEqual(done.returncode, direct.returncode)


if __name__ == "__main__":
    unittest.main()
