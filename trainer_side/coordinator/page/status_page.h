// The page of a coordinator: HTML and JSON of what is known of its fleet. Every name and sentence
// in it may come from the network, and is escaped.
//
// Pure: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "shared/control/messages.h"
#include "trainer_side/coordinator/page/round_history.h"

namespace wsync::page {

// Rows of the table of replicas; where there are more, those that are not well come first, and the
// page says how many are left out.
inline constexpr std::size_t kReplicasShown = 200;

// A coordinator at one moment.
struct PageFacts {
  control::StatusReply status;
  bool ready = false;     // as /readyz
  std::string not_ready;  // why not, one sentence
  std::vector<RoundHistory::Round> rounds;
  TimePoint at{};
};

// /status.json: what `wsync status --json` has as its result, with
//   ready, not_ready: as /readyz
//   rounds: [{version, rollback, result (null: it runs), reason, began_ago_ns, duration_ns,
//     phases: [{name, begin_ns, end_ns}]  (from the round's begin),
//     sidecars: [{name, stages: as phases}], sidecars_left_out,
//     replicas: [{replica, outcome, version, reason, wait_ns, paused_ns, load_ns, bytes}],
//     replicas_left_out}]
[[nodiscard]] nlohmann::json status_json(const PageFacts& facts);

// The page as it is at this moment, whole; `program` is named at its end ("wsync 0.1.0"). It names
// /page.css and /page.js and nothing else that would have to be loaded.
[[nodiscard]] std::string status_html(const PageFacts& facts, std::string_view program);
// The page when the facts cannot be had, for the same reader.
[[nodiscard]] std::string trouble_html(std::string_view why, std::string_view program);

// A round as a picture: a row for the coordinator and one for each sidecar, time to the right. An
// SVG element whose colours are those of the page.
[[nodiscard]] std::string round_svg(const RoundRecord& round, const std::string& title);

[[nodiscard]] std::string_view page_css() noexcept;
[[nodiscard]] std::string_view page_js() noexcept;

}  // namespace wsync::page
