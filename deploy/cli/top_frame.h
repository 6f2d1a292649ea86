// One frame of `wsync top`. A pure function of the known state of the fleet and the size of the
// screen.
#pragma once

#include <cstddef>
#include <vector>

#include "deploy/cli/fleet_watch.h"
#include "deploy/cli/screen_text.h"

namespace wsync::cli {

struct TopFrame {
  std::vector<ScreenLine> lines;  // fits the screen in rows and columns
  std::size_t first_row = 0;      // first visible table row: `scroll`, limited to its range
  std::size_t rows_shown = 0;
  std::size_t rows = 0;  // all rows of the table
};

// Layout from the top: activity of the coordinator, the current or last update, counts, a table
// with a row for each replica (and for each sidecar without replicas), notes that their column
// cuts, problems, keys. Long sentences take several lines. If space is short, problems are left out
// first, then the least important columns of the table, then lines of the heading. The table keeps
// three rows on screens with at least six.
//
// `scroll`: first table row to show. `at`: current time, for ages. `keys`: show the key help in the
// last line.
[[nodiscard]] TopFrame top_frame(const FleetView& view, ScreenSize size, std::size_t scroll,
                                 TimePoint at, bool keys);

}  // namespace wsync::cli
