// plot.py is the Python program that draws and compares result files. It is installed with
// wsync-bench (share/wsync/plot.py) and needs Matplotlib and SciPy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/result.h"
#include "shared/base/error.h"

namespace wsync::cli {

// Runs plot.py with these arguments (see its documentation) and returns the object that it prints.
// The first python3 in PATH that has the packages runs it. kNotFound if there is none, with one
// sentence that says what is missing, for what, and how to install it. kInvalidInput if the result
// files cannot be used. kIo, with the last output line of plot.py, if it fails. kCancelled. Thread:
// one.
[[nodiscard]] Result<nlohmann::json> run_plot_program(const std::vector<std::string>& words,
                                                      const bench::Interrupt& interrupt);

// Checks whether write_picture() can write to `path` later. Suites call it before they measure.
// Errors as write_picture() and trace::check_text_file(), all of which name --svg. Ok if `path` is
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
