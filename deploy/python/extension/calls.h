// What all calls from Python have in common: how they fail, and how they wait without the GIL.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <nanobind/nanobind.h>
#include <optional>
#include <string>
#include <sys/types.h>

namespace wsync::python {

// A failure of a call, for raise(). The codes below 100 are those of wsync_code; the others belong
// to this package.
struct Failure {
  int code = 0;
  std::string sentence;
  // Of a layout that was refused (wsync_problem); empty: not known.
  std::string tensor = {};
  std::string expected = {};
  std::string found = {};

  explicit operator bool() const { return code != 0; }
};
inline constexpr int kClosed = 100;         // the object has been closed
inline constexpr int kEngineRefused = 101;  // libwsync_engine gives a sentence without a code

// Throws the Python exception for a failure (wsync/_errors.py).
[[noreturn]] void raise(const Failure& failure);
void raise_if(const Failure& failure);

// The failure of a call in a process that has been forked from `home`, which has made the object.
// `what` is the class of Python, and `advice` what to do in the forked process.
Failure forked(int code, const std::string& what, pid_t home, const std::string& advice);

// The time after which a call that waits looks for a signal (Ctrl-C), a close() and the end of the
// interpreter.
inline constexpr std::chrono::milliseconds kSlice{50};

// Releases the GIL in its scope. The scope counts until the GIL is taken again, so that the end of
// the interpreter can wait for all threads that are in one: a thread that asks for the GIL after
// that is ended by Python in the middle of C++, which ends the whole process.
class WithoutGil {
 public:
  // Throws if the interpreter is ending.
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Blocks all signals in its scope: a thread that is started there does not get them, because they
// are for the threads of Python.
class WithoutSignals {
 public:
  WithoutSignals();
  ~WithoutSignals();
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

// Whether end_calls() has been called: what waits must return now.
bool is_ending();

// Called at exit: makes every later call fail, and waits until the threads that are in one have
// returned to Python. Returns false if some have not within `limit_s`.
bool end_calls(double limit_s);

// Throws if a signal handler has raised an exception. Needs the GIL.
void check_signals();

}  // namespace wsync::python
