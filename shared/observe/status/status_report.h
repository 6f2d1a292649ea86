// What a coordinator or a sidecar says of itself, as JSON (the documented schema of `wsync status
// --json` and of the coordinator's /status.json), and in words for people.
//
// Pure: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/control/messages.h"

namespace wsync::status {

[[nodiscard]] nlohmann::json to_json(const control::StatusReply& reply);
[[nodiscard]] std::string to_text(const control::StatusReply& reply);

// "none" for 0.0.
[[nodiscard]] std::string version_text(const Version& version);
// "serving", as in --json.
[[nodiscard]] std::string_view state_name(control::ReplicaState state) noexcept;
// "committed", as in --json.
[[nodiscard]] std::string_view outcome_name(control::SwitchOutcome outcome) noexcept;
[[nodiscard]] nlohmann::json outcomes_json(const std::vector<control::ReplicaOutcome>& outcomes);
// The phase for people: "snapshot", "announcing", "staging", "switching".
[[nodiscard]] std::string_view phase_text(control::ProgressPhase phase) noexcept;
// Done of total, 0 to 1; none while the total is not known.
[[nodiscard]] std::optional<double> progress_share(const control::UpdateProgress& running) noexcept;
// How far the update that runs has come, in one line; empty when none runs.
[[nodiscard]] std::string to_text(const control::UpdateProgress& running);
// How the last update ended, in one line; empty when none has.
[[nodiscard]] std::string to_text(const control::UpdateOutcome& last);
// How far a version is behind the target: "-" where it is the target or there is none, "3 steps",
// "no version", "differs".
[[nodiscard]] std::string behind_text(const Version& version, const Version& target);
// What a coordinator does.
[[nodiscard]] std::string activity_text(const control::StatusReply& status);
// A time that has passed, short: "0.4 s", "12 s", "3 min", "2 h", "5 d".
[[nodiscard]] std::string age_text(std::uint64_t ago_ns);

}  // namespace wsync::status
