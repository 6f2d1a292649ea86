// plot.py: the Python program that draws result files and compares them. It is installed with
// wsync-bench (share/wsync/plot.py) and needs Matplotlib and SciPy. Nothing else of wsync needs
// Python.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::cli {

// Runs plot.py with these words (its documentation says which) and returns the object that it
// prints. Of the python3 programs in PATH, the first one that has the packages runs it. kNotFound
// with one sentence if there is none: what is missing, for what, and how to install it;
// kInvalidInput if the result files cannot be used; kIo with the last words of plot.py if it
// fails; kCancelled. Thread: one.
[[nodiscard]] Result<nlohmann::json> run_plot_program(const std::vector<std::string>& words,
                                                      const bench::Interrupt& interrupt);

// Whether write_picture() can write to `path` later. For a suite to call before it measures:
// errors as write_picture(), and those of trace::check_text_file(); all name --svg. Ok if `path` is
// empty.
[[nodiscard]] Result<> check_picture(const std::string& path, const bench::Interrupt& interrupt);

// Draws the picture of a suite's --svg and writes it to `path`; does nothing if `path` is empty.
// Errors as run_plot_program() and trace::write_text_file().
[[nodiscard]] Result<> write_picture(const std::string& path, const bench::SuiteResult& suite,
                                     const bench::Interrupt& interrupt);

// Copies a file that plot.py made. Errors as trace::write_text_file(); kIo if `from` cannot be
// read. Returns the number of bytes.
[[nodiscard]] Result<std::size_t> copy_made_file(const std::string& from, const std::string& to);

}  // namespace wsync::cli
