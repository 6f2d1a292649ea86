// A report of result files as one HTML page. It refers to nothing outside of itself, which its
// content security policy holds a browser to; it has no script. It is XML as well, so that
// anything can read it. Pure.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "bench/page/plots.h"

namespace wsync::bench {

// Every text of the files is escaped. `plots` of make_plots(); those without a picture are told,
// each with the command that produces its data.
[[nodiscard]] std::string report_page(std::span<const ReportFile> runs,
                                      const std::vector<Plot>& plots);

}  // namespace wsync::bench
