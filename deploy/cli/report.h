// Formats replies of the fleet as JSON (the documented schema of --json) and as text for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "shared/control/messages.h"
#include "shared/observe/status/status_report.h"

namespace wsync::cli {

[[nodiscard]] nlohmann::json to_json(const control::PushReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::RollbackReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::PromoteReply& reply);
[[nodiscard]] nlohmann::json to_json(const control::VerifyReply& reply);

[[nodiscard]] std::string to_text(const control::PushReply& reply);
[[nodiscard]] std::string to_text(const control::RollbackReply& reply);
[[nodiscard]] std::string to_text(const control::PromoteReply& reply);
[[nodiscard]] std::string to_text(const control::VerifyReply& reply);

using status::activity_text;
using status::age_text;
using status::behind_text;
using status::outcome_name;
using status::outcomes_json;
using status::phase_text;
using status::progress_share;
using status::state_name;
using status::to_json;
using status::to_text;
using status::version_text;

// Formats layout problems: JSON with one object each; text with one line each, limited to the first
// ones.
[[nodiscard]] nlohmann::json problems_json(const std::vector<control::Problem>& problems);
[[nodiscard]] std::string problems_text(const std::vector<control::Problem>& problems);

// Returns true if there is at least one rank, all ranks were read, and all tensors matched.
[[nodiscard]] bool all_match(const control::VerifyReply& reply) noexcept;
// Whether the only reason against all_match() is that ranks cannot return what they hold, because
// their engine gives no read_tensor, or holds fewer bits.
[[nodiscard]] bool only_unreadable(const control::VerifyReply& reply) noexcept;

}  // namespace wsync::cli
