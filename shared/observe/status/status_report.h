// Status of a coordinator or a sidecar, as JSON (the documented schema of `wsync status --json` and
// of the coordinator's /status.json) and as text for people.
//
// Thread: any. Pure.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/control/messages.h"

namespace wsync::status {

[[nodiscard]] nlohmann::json to_json(const control::StatusReply& reply);
// What to add to the line of a sidecar, for example its address; "" for nothing.
using SidecarNote = std::function<std::string(const control::SidecarReport&)>;
// `note` may be empty.
[[nodiscard]] std::string to_text(const control::StatusReply& reply, const SidecarNote& note = {});

// Returns "none" for version 0.0.
[[nodiscard]] std::string version_text(const Version& version);
// State name as in --json, such as "serving".
[[nodiscard]] std::string_view state_name(control::ReplicaState state) noexcept;
// As in --json: "none", "waiting" or "held".
[[nodiscard]] std::string_view turn_name(control::ReplicaTurn turn) noexcept;
// Outcome name as in --json, such as "committed".
[[nodiscard]] std::string_view outcome_name(control::SwitchOutcome outcome) noexcept;
[[nodiscard]] nlohmann::json outcomes_json(const std::vector<control::ReplicaOutcome>& outcomes);
// Phase for people: "snapshot", "announcing", "staging" or "switching".
[[nodiscard]] std::string_view phase_text(control::ProgressPhase phase) noexcept;
// Completed share, from 0 to 1; std::nullopt while the total is unknown.
[[nodiscard]] std::optional<double> progress_share(const control::UpdateProgress& running) noexcept;
// Progress of the current update in one line; empty if there is none.
[[nodiscard]] std::string to_text(const control::UpdateProgress& running);
// Result of the last update in one line; empty if there is none.
[[nodiscard]] std::string to_text(const control::UpdateOutcome& last);
// How the target has come and was loaded, if less than all of it was needed: how many sidecars have
// fetched changes alone, and how many replicas were switched by a patch. Empty if there are none.
[[nodiscard]] std::string changes_text(const control::StatusReply& status);
// How far a version is behind the target: "3 steps", "no version" or "differs"; "-" if it is the
// target or if there is no target.
[[nodiscard]] std::string behind_text(const Version& version, const Version& target);
// What the coordinator is doing.
[[nodiscard]] std::string activity_text(const control::StatusReply& status);
// A short text for an elapsed time: "0.4 s", "12 s", "3 min", "2 h", "5 d".
[[nodiscard]] std::string age_text(std::uint64_t ago_ns);

}  // namespace wsync::status
