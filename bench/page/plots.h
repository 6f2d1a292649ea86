// The pictures of a report: made of what result files say, and of nothing else.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/harness/result.h"

namespace wsync::bench {

// A result file, and the name that it was given by.
struct ReportFile {
  std::string name;
  ResultFile file;
};

// What a report calls its files: A, B, C ...
[[nodiscard]] std::string run_letter(std::size_t index);

struct Plot {
  std::string id;  // of letters, digits and dashes, once in a report: the name of its file
  std::string title;
  std::string svg;   // empty: no file has what it is made of
  std::string note;  // what must be known to read it; may be empty
  // Where it is left out: the commands that produce its data.
  std::string command;
};

// All plots that there are, those without data as well, in the order of a page.
[[nodiscard]] std::vector<Plot> make_plots(std::span<const ReportFile> runs);

}  // namespace wsync::bench
