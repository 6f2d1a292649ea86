// One frame of `wsync top`: a pure function of what is known of the fleet and of the size of the
// screen.
#pragma once

#include <cstddef>
#include <vector>

#include "deploy/cli/fleet_watch.h"
#include "deploy/cli/screen_text.h"

namespace wsync::cli {

struct TopFrame {
  std::vector<ScreenLine> lines;  // at most as many as the screen has rows, none wider than it
  std::size_t first_row = 0;      // of the table, that is shown first: `scroll` inside its bounds
  std::size_t rows_shown = 0;
  std::size_t rows = 0;  // of the table, in all
};

// From the top: what the coordinator does, the update that runs or the last one, counts, a table
// with a row for each replica (and for each sidecar without one), what went wrong, the keys. What
// does not fit goes: problems first, then columns of the table from the least needed, then the
// heading's lines; the table keeps three rows where there are six.
//
// `scroll`: the table's row to begin with. `at`: now, for ages. `keys`: a last line tells them.
[[nodiscard]] TopFrame top_frame(const FleetView& view, ScreenSize size, std::size_t scroll,
                                 TimePoint at, bool keys);

}  // namespace wsync::cli
