// What the fleet answers, as JSON (the documented schema of --json) and as text for people.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shared/control/messages.h"

namespace wsync::cli {

[[nodiscard]] nlohmann::json to_json(const control::PushReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::RollbackReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::VerifyReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::StatusReply& reply);

[[nodiscard]] std::string to_text(const control::PushReply& reply);
[[nodiscard]] std::string to_text(const control::RollbackReply& reply);
[[nodiscard]] std::string to_text(const control::VerifyReply& reply);
[[nodiscard]] std::string to_text(const control::StatusReply& reply);

// "none" for 0.0.
[[nodiscard]] std::string version_text(const Version& version);
// "serving", as in --json.
[[nodiscard]] std::string_view state_name(control::ReplicaState state) noexcept;
// The phase for people: "snapshot", "announcing", "staging", "switching".
[[nodiscard]] std::string_view phase_text(control::ProgressPhase phase) noexcept;
// Done of total, 0 to 1; none while the total is not known.
[[nodiscard]] std::optional<double> progress_share(const control::UpdateProgress& running) noexcept;
// How the last update ended, in one line; empty when none has.
[[nodiscard]] std::string to_text(const control::UpdateOutcome& last);
// A time that has passed, short: "0.4 s", "12 s", "3 min", "2 h", "5 d".
[[nodiscard]] std::string age_text(std::uint64_t ago_ns);

// What does not fit: one object each; one line each, the first ones only.
[[nodiscard]] nlohmann::json problems_json(const std::vector<control::Problem>& problems);
[[nodiscard]] std::string problems_text(const std::vector<control::Problem>& problems);

// Whether there is a rank, every one was read and every tensor matched.
[[nodiscard]] bool all_match(const control::VerifyReply& reply) noexcept;

}  // namespace wsync::cli
