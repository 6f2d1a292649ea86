#include "deploy/cli/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "shared/base/format.h"
#include "shared/command/context.h"
#include "shared/observe/trace/progress.h"

namespace wsync::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMismatchesShown = 10;
constexpr std::size_t kProblemsShown = 10;
constexpr std::size_t kOutcomesShown = 64;

std::string_view problem_name(control::ProblemKind kind) {
  switch (kind) {
    case control::ProblemKind::kMissing:
      return "missing";
    case control::ProblemKind::kExtra:
      return "extra";
    case control::ProblemKind::kDtype:
      return "dtype";
    case control::ProblemKind::kShape:
      return "shape";
    case control::ProblemKind::kRange:
      return "range";
    case control::ProblemKind::kMemory:
      return "memory";
    case control::ProblemKind::kOther:
      return "other";
  }
  return "other";
}

// At most kOutcomesShown of them, those that have not switched first.
std::vector<control::ReplicaOutcome> outcomes_shown(
    const std::vector<control::ReplicaOutcome>& all) {
  if (all.size() <= kOutcomesShown) return all;
  std::vector<control::ReplicaOutcome> shown;
  for (const bool committed : {false, true})
    for (const control::ReplicaOutcome& outcome : all)
      if ((outcome.outcome == control::SwitchOutcome::kCommitted) == committed &&
          shown.size() < kOutcomesShown)
        shown.push_back(outcome);
  return shown;
}

std::string outcomes_text(const std::vector<control::ReplicaOutcome>& all) {
  std::string text;
  const std::vector<control::ReplicaOutcome> outcomes = outcomes_shown(all);
  for (const control::ReplicaOutcome& o : outcomes) {
    text += fmt::format(
        "  replica {:<16} {:<11} {:<8} paused {:>10}  waited {:>10}  {}\n", o.replica,
        outcome_name(o.outcome), version_text(o.version),
        trace::format_duration(std::chrono::nanoseconds(o.paused_ns)),
        trace::format_duration(std::chrono::nanoseconds(o.wait_ns)),
        o.load_ns == 0 ? "" : trace::format_rate(o.bytes, std::chrono::nanoseconds(o.load_ns)));
    if (!o.reason.empty()) text += fmt::format("    {}\n", o.reason);
  }
  if (all.size() > outcomes.size())
    text +=
        fmt::format("  and {} more replicas (--json has them all)\n", all.size() - outcomes.size());
  return text;
}

}  // namespace

json problems_json(const std::vector<control::Problem>& problems) {
  json list = json::array();
  for (const control::Problem& p : problems)
    list.push_back({{"kind", problem_name(p.kind)},
                    {"tensor", p.tensor},
                    {"detail", p.detail},
                    {"nearest", p.nearest},
                    {"expected", p.expected},
                    {"found", p.found}});
  return list;
}

std::string problems_text(const std::vector<control::Problem>& problems) {
  std::string text;
  for (const control::Problem& p :
       std::span(problems).first(std::min(problems.size(), kProblemsShown)))
    text += fmt::format("  {}: {}{}{}{}\n", problem_name(p.kind), p.tensor,
                        p.tensor.empty() ? "" : ": ", p.detail,
                        p.nearest.empty() ? "" : fmt::format(" (nearest: {})", p.nearest));
  if (problems.size() > kProblemsShown)
    text += fmt::format("  and {} more (--json has them all)\n", problems.size() - kProblemsShown);
  return text;
}

json to_json(const control::PushReply& reply) {
  const std::string_view code = reply.ok ? "" : error_code_name(control::failure_code(reply));
  return {{"ok", reply.ok},
          {"code", code},
          {"reason", reply.reason},
          {"version", reply.version.to_string()},
          {"content_digest", reply.content_digest.to_string()},
          {"bytes", reply.bytes},
          {"snapshot_ns", reply.snapshot_ns},
          {"staged_ns", reply.staged_ns},
          {"switch_ns", reply.switch_ns},
          {"problems", problems_json(reply.problems)},
          {"replicas", outcomes_json(reply.outcomes)},
          {"canary", reply.canary}};
}

std::string to_text(const control::PushReply& reply) {
  std::string text;
  if (reply.ok)
    text = fmt::format("{} is served{}: {} in {} to snapshot, {} to stage; digest {}\n",
                       reply.version.to_string(),
                       reply.canary.empty() ? "" : " by the canary '" + reply.canary + "'",
                       human_bytes(reply.bytes),
                       trace::format_duration(std::chrono::nanoseconds(reply.snapshot_ns)),
                       trace::format_duration(std::chrono::nanoseconds(reply.staged_ns)),
                       reply.content_digest.to_string()) +
           (reply.reason.empty() ? "" : fmt::format("  {}\n", reply.reason)) +
           (reply.canary.empty() ? ""
                                 : "  `wsync promote` gives it to the other replicas, `wsync "
                                   "rollback` takes it back\n");
  else
    text = fmt::format("{} {}: {}\n", version_text(reply.version),
                       control::failure_code(reply) == ErrorCode::kPartial
                           ? "was decided, but not every replica serves it"
                           : "was not published",
                       reply.reason);
  return text + problems_text(reply.problems) + outcomes_text(reply.outcomes);
}

json to_json(const control::RollbackReply& reply) {
  return {{"ok", reply.ok},
          {"partial", reply.partial},
          {"reason", reply.reason},
          {"from", reply.from.to_string()},
          {"to", reply.to.to_string()},
          {"replicas", outcomes_json(reply.outcomes)}};
}

std::string to_text(const control::RollbackReply& reply) {
  std::string text;
  if (reply.ok)
    text = fmt::format("rolled back from {} to {}; {} is withdrawn\n", version_text(reply.from),
                       version_text(reply.to), version_text(reply.from));
  else if (reply.partial)
    text = fmt::format("rollback to {} is partial: {}\n", version_text(reply.to), reply.reason);
  else
    text = fmt::format("not rolled back: {}\n", reply.reason);
  return text + outcomes_text(reply.outcomes);
}

json to_json(const control::PromoteReply& reply) {
  return {{"ok", reply.ok},
          {"partial", reply.partial},
          {"reason", reply.reason},
          {"version", reply.version.to_string()},
          {"replicas", outcomes_json(reply.outcomes)}};
}

std::string to_text(const control::PromoteReply& reply) {
  std::string text;
  if (reply.ok)
    text = fmt::format("{} is promoted: every replica serves it\n", version_text(reply.version));
  else if (reply.partial)
    text = fmt::format("the promotion of {} is partial: {}\n", version_text(reply.version),
                       reply.reason);
  else
    text = fmt::format("not promoted: {}\n", reply.reason);
  return text + outcomes_text(reply.outcomes);
}

namespace {

// A controller of the ranks, or a rank that has no part of any tensor.
bool has_no_weights(const control::VerifyRank& rank) noexcept {
  return rank.failure.empty() && rank.tensors == 0 && rank.mismatches.empty();
}

}  // namespace

bool all_match(const control::VerifyReply& reply) noexcept {
  return !std::ranges::all_of(reply.ranks, has_no_weights) &&
         std::ranges::all_of(reply.ranks, [](const control::VerifyRank& rank) {
           return rank.failure.empty() && rank.mismatches.empty();
         });
}

bool only_unreadable(const control::VerifyReply& reply) noexcept {
  return std::ranges::any_of(reply.ranks, &control::VerifyRank::is_unreadable) &&
         std::ranges::all_of(reply.ranks, [](const control::VerifyRank& rank) {
           return rank.mismatches.empty() && (rank.failure.empty() || rank.is_unreadable);
         });
}

json to_json(const control::VerifyReply& reply) {
  json ranks = json::array();
  for (const control::VerifyRank& rank : reply.ranks) {
    json mismatches = json::array();
    for (const control::TensorMismatch& m : rank.mismatches)
      mismatches.push_back({{"tensor", m.tensor},
                            {"expected", m.expected.to_string()},
                            {"found", m.found.to_string()}});
    ranks.push_back({{"replica", rank.replica},
                     {"rank", rank.rank},
                     {"version", rank.version.to_string()},
                     {"tensors", rank.tensors},
                     {"bytes", rank.bytes},
                     {"failure", rank.failure},
                     {"is_unreadable", rank.is_unreadable},
                     {"is_controller", rank.is_controller},
                     {"mismatches", std::move(mismatches)},
                     {"follows", rank.follows}});
  }
  return {{"match", all_match(reply)},
          {"only_unreadable", only_unreadable(reply)},
          {"ranks", std::move(ranks)}};
}

std::string to_text(const control::VerifyReply& reply) {
  std::string text;
  for (const control::VerifyRank& rank : reply.ranks) {
    if (!rank.replica.empty()) text += fmt::format("replica {} rank {}: ", rank.replica, rank.rank);
    if (has_no_weights(rank)) {
      text += rank.is_controller ? "it is the controller of the replica, and holds no weights\n"
                                 : "it holds no part of any tensor\n";
      continue;
    }
    if (!rank.failure.empty()) {
      text += fmt::format("not verified: {}", rank.failure);
      text += rank.tensors == 0 || !rank.mismatches.empty()
                  ? "\n"
                  : fmt::format("; the other {} are equal\n", counted(rank.tensors, "tensor"));
      if (rank.mismatches.empty()) continue;
      text += "  ";
    }
    text += fmt::format(
        "{} {}, {}, {}\n", version_text(rank.version), counted(rank.tensors, "tensor"),
        human_bytes(rank.bytes),
        rank.mismatches.empty() ? "all equal" : fmt::format("{} DIFFER", rank.mismatches.size()));
    for (std::size_t i = 0; i < std::min(rank.mismatches.size(), kMismatchesShown); ++i)
      text += fmt::format("  {}: expected {}, found {}\n", rank.mismatches[i].tensor,
                          rank.mismatches[i].expected.to_string(),
                          rank.mismatches[i].found.to_string());
    if (rank.mismatches.size() > kMismatchesShown)
      text += fmt::format("  and {} more\n", rank.mismatches.size() - kMismatchesShown);
    if (!rank.follows.empty()) text += fmt::format("  {}\n", rank.follows);
  }
  return text.empty()
             ? "no engine is attached: nothing was verified; `wsync status` shows the sidecars\n"
             : text;
}

}  // namespace wsync::cli
