// The data that the page of a coordinator shows, as JSON. Every name and sentence in it may come
// from the network; page.js shows them as text.
//
// Pure: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "trainer_side/coordinator/page/round_history.h"

namespace wsync::page {

// The state of a coordinator at one moment.
struct PageFacts {
  control::StatusReply status;
  bool ready = false;     // as /readyz
  std::string not_ready;  // the reason, one sentence
  std::vector<RoundHistory::Round> rounds;
  TimePoint at{};
};

// /status.json: the result of `wsync status --json`, and in addition
//   ready, not_ready: as /readyz
//   rounds: [{version, rollback, result (null: it is running), reason, began_ago_ns, duration_ns,
//     phases: [{name, begin_ns, end_ns}]  (from the round's begin),
//     sidecars: [{name, stages: as phases}], sidecars_left_out,
//     replicas: [{replica, outcome, version, reason, wait_ns, paused_ns, load_ns, bytes}],
//     replicas_left_out}]
[[nodiscard]] nlohmann::json status_json(const PageFacts& facts);

}  // namespace wsync::page
