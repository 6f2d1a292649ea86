// shared/control/protocol.md shows the transition table of each state machine as its code has it.
// After a change of a table: WSYNC_WRITE_TABLES=1 ctest -R unit_transition_tables
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <gtest/gtest.h>
#include <string>
#include <vector>

#include "inference_side/engine_link/led_steps.h"
#include "inference_side/engine_link/rank_machine.h"
#include "inference_side/reload/buffer_state.h"
#include "inference_side/reload/pending_outcome.h"
#include "inference_side/reload/rank_table.h"
#include "inference_side/reload/switch_phase.h"
#include "inference_side/sidecar/device_buffers.h"
#include "inference_side/sidecar/load_queue.h"
#include "inference_side/staging/decision_record.h"
#include "inference_side/staging/held_versions.h"
#include "inference_side/staging/receive_round.h"
#include "inference_side/staging/registration.h"
#include "inference_side/staging/replica_set.h"
#include "shared/base/format.h"
#include "shared/base/transitions.h"
#include "tests/unit/weights/weights_files.h"
#include "trainer_side/coordinator/decision_log.h"
#include "trainer_side/coordinator/delivery.h"
#include "trainer_side/coordinator/fence_claim.h"
#include "trainer_side/coordinator/switch_waves.h"
#include "trainer_side/coordinator/update_round.h"
#include "trainer_side/publish/publish_queue.h"

namespace wsync {
namespace {

const std::string kPage = std::string(WSYNC_SOURCE_DIR) + "/shared/control/protocol.md";
constexpr std::string_view kBegin = "<!-- transition tables: begin -->\n";
constexpr std::string_view kEnd = "<!-- transition tables: end -->\n";

// In the order of an update: the trainer first.
std::vector<TransitionTable> all_tables() {
  return {publish::publish_transitions(),
          coordinator::fence_claim_transitions(),
          coordinator::decision_log_transitions(),
          coordinator::round_transitions(),
          coordinator::wave_transitions(),
          coordinator::delivery_transitions(),
          staging::registration_transitions(),
          staging::receive_transitions(),
          staging::copy_transitions(),
          staging::record_transitions(),
          staging::outcome_transitions(),
          reload::switch_transitions(),
          reload::rank_transitions(),
          reload::debt_transitions(),
          reload::buffer_transitions(),
          agent::load_transitions(),
          agent::buffers_transitions(),
          agent::mapping_transitions(),
          agent::group_transitions(),
          engine::rank_transitions(),
          engine::step_leader_transitions(),
          engine::step_follower_transitions()};
}

std::string markdown(const TransitionTable& table) {
  std::string text =
      fmt::format("### `{}`\n\n{}\n\n| from | event | to | action |\n|---|---|---|---|\n",
                  table.machine, table.summary);
  for (const TransitionTable::Row& row : table.rows)
    text += fmt::format("| {} | {} | {} | {} |\n", row.from, row.event, row.to, row.action);
  return text;
}

TEST(TransitionTables, StandOnThePageOfTheProtocol) {
  std::string page = test::read_file(kPage);
  const auto begin = page.find(kBegin);
  const auto end = page.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << kPage;
  ASSERT_NE(end, std::string::npos) << kPage;
  std::string tables;
  for (const TransitionTable& table : all_tables()) tables += "\n" + markdown(table);
  const std::string expected = std::string(kBegin) + tables + "\n";
  if (std::getenv("WSYNC_WRITE_TABLES") != nullptr) {
    page.replace(begin, end - begin, expected);
    std::ofstream(kPage) << page;
    return;
  }
  EXPECT_EQ(page.substr(begin, end - begin), expected)
      << "write the page anew: WSYNC_WRITE_TABLES=1 ctest -R unit_transition_tables";
}

// A table with a row twice, or with a state that no row leads out of or into, is not what its
// machine does.
TEST(TransitionTables, NameEachMoveOnce) {
  for (const TransitionTable& table : all_tables()) {
    EXPECT_FALSE(table.rows.empty()) << table.machine;
    std::vector<std::string> seen;
    for (const TransitionTable::Row& row : table.rows) {
      EXPECT_FALSE(row.from.empty() || row.event.empty() || row.to.empty()) << table.machine;
      const std::string move = row.from + "|" + row.event + "|" + row.to;
      EXPECT_EQ(std::ranges::count(seen, move), 0) << table.machine << ": " << move;
      seen.push_back(move);
    }
  }
}

}  // namespace
}  // namespace wsync
