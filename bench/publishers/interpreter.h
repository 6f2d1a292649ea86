// The interpreter of `wsync bench sync --python`.
#pragma once

#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "shared/base/error.h"

namespace wsync::bench {

// What an interpreter has.
struct Interpreter {
  std::string executable;  // as it names itself
  std::string script;      // publish.py
  std::string python;      // versions
  std::string wsync;
  std::string numpy;
  std::string torch;               // empty: not imported
  std::vector<std::string> kinds;  // of tensors to measure: "numpy", "torch"
};

struct InterpreterOptions {
  std::string python;              // a path, or a name that is looked up in PATH
  std::string script;              // publish.py
  std::string version;             // that the package wsync must have
  std::vector<std::string> kinds;  // empty: NumPy, and torch where it can be imported
  std::string directory;           // for a log
};

// Asks the interpreter. All errors begin with --python, and name the interpreter, what was expected
// and what was found. kNotFound: there is no such program, or it lacks a package. kInvalidInput: it
// is no Python, or its wsync has another version. kCancelled, kDeadline as Child::wait().
[[nodiscard]] Result<Interpreter> find_interpreter(const InterpreterOptions& options,
                                                   const Interrupt& interrupt);

}  // namespace wsync::bench
