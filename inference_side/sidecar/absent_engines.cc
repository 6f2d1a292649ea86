#include "inference_side/sidecar/absent_engines.h"

#include <algorithm>

#include "inference_side/reload/switch_events.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::agent {

namespace {

// Puts `sentence` in the place of the words about this rank in the reason of a replica, because
// they say less of it.
void explain_rank(std::string& reason, std::uint32_t rank, const std::string& sentence) {
  const std::string plain = fmt::format("rank {} is not attached", rank);
  if (const auto at = reason.find(plain); at != std::string::npos)
    reason.replace(at, plain.size(), sentence);
  else
    reason += (reason.empty() ? "" : "; ") + sentence;
}

}  // namespace

void AbsentEngines::add(const std::string& replica, std::uint32_t rank, Absent absent) {
  std::erase_if(ranks_, [&](const auto& entry) { return !is_reported(entry.second, absent.at); });
  if (replica.empty() || ranks_.size() >= limits::kReplicaCount) return;
  ranks_[{replica, rank}] = std::move(absent);
}

bool AbsentEngines::refused(const std::string& replica, std::uint32_t rank, const std::string& why,
                            TimePoint at, std::uint64_t pid) {
  const auto known = ranks_.find({replica, rank});
  Absent refused{.why = "was refused: " + why, .at = at, .pid = pid, .connection = {}};
  const bool is_news = known == ranks_.end() || !is_reported(known->second, at) ||
                       known->second.connection || known->second.why != refused.why;
  add(replica, rank, std::move(refused));
  return is_news;
}

bool AbsentEngines::was_refused(const std::string& replica, std::uint32_t rank) const {
  const auto known = ranks_.find({replica, rank});
  return known != ranks_.end() && !known->second.connection;
}

void AbsentEngines::starting(const StartingRank& rank, TimePoint at) {
  const std::string process = rank.pid == 0 ? "" : fmt::format(" (process {})", rank.pid);
  add(rank.replica, rank.rank,
      {.why = rank.is_suspended
                  ? fmt::format("is suspended{}: it loads the target when it resumes", process)
                  : fmt::format("is starting{}: it attaches when its memory is allocated", process),
       .world_size = rank.world_size,
       .at = at,
       .pid = rank.pid,
       .connection = rank.id});
}

bool AbsentEngines::process_ended(const std::string& replica, std::uint32_t rank,
                                  std::uint64_t pid) {
  const auto known = ranks_.find({replica, rank});
  if (known == ranks_.end() || known->second.connection || known->second.pid != pid) return false;
  ranks_.erase(known);
  return true;
}

Result<> AbsentEngines::check_forget(const std::string& replica) const {
  bool is_known = false;
  for (const auto& [name, absent] : ranks_) {
    if (name.first != replica) continue;
    is_known = true;
    if (absent.connection)
      return fail(ErrorCode::kRefused, fmt::format("replica '{}' rank {} {}: stop its engine first",
                                                   replica, name.second, absent.why));
    if (absent.pid != 0)
      return fail(
          ErrorCode::kRefused,
          fmt::format("replica '{}' rank {} was refused, and its process {} tries to attach "
                      "again and again: stop that process first",
                      replica, name.second, absent.pid));
  }
  if (is_known) return {};
  return fail(ErrorCode::kNotFound, fmt::format("no engine of a replica '{}' is absent", replica));
}

void AbsentEngines::forget(const std::string& replica) {
  std::erase_if(ranks_, [&](const auto& entry) { return entry.first.first == replica; });
}

std::set<std::string> AbsentEngines::replicas() const {
  std::set<std::string> names;
  for (const auto& [name, absent] : ranks_) names.insert(name.first);
  return names;
}

bool AbsentEngines::ended(reload::EngineId id) {
  return std::erase_if(ranks_, [id](const auto& e) { return e.second.connection == id; }) > 0;
}

void AbsentEngines::attached(const std::string& replica, std::uint32_t rank, bool is_on_trial) {
  if (!is_on_trial || !was_refused(replica, rank)) ranks_.erase({replica, rank});
}

void AbsentEngines::add_to(std::vector<control::ReplicaReport>& reports, TimePoint now) const {
  for (const auto& [name, absent] : ranks_) {
    if (!is_reported(absent, now)) continue;
    const std::string sentence = fmt::format("rank {} {}", name.second, absent.why);
    const auto known = std::ranges::find(reports, name.first, &control::ReplicaReport::replica);
    if (known == reports.end()) {
      if (reports.size() < limits::kReplicaCount)
        reports.push_back(
            {.replica = name.first, .world_size = absent.world_size, .reason = sentence});
    } else if (known->ranks_attached < known->world_size) {
      explain_rank(known->reason, name.second, sentence);
    }
  }
}

void AbsentEngines::explain(std::vector<control::ReplicaOutcome>& outcomes,
                            const std::string& sidecar, TimePoint now) const {
  for (control::ReplicaOutcome& outcome : outcomes) {
    const bool has_none = outcome.reason == reload::kNoEngineReason;
    if (!has_none && !outcome.reason.ends_with("not attached")) continue;
    std::string reason = has_none ? std::string() : outcome.reason;
    for (const auto& [name, absent] : ranks_)
      if (name.first == outcome.replica && is_reported(absent, now))
        explain_rank(reason, name.second, fmt::format("rank {} {}", name.second, absent.why));
    if (reason.empty())
      reason = fmt::format("{}: start it, or forget the replica with `wsync forget {}/{}`",
                           outcome.reason, sidecar, outcome.replica);
    outcome.reason = std::move(reason);
  }
}

std::vector<control::VerifyRank> AbsentEngines::unverified(TimePoint now) const {
  std::vector<control::VerifyRank> ranks;
  for (const auto& [name, absent] : ranks_)
    if (is_reported(absent, now))
      ranks.push_back({.replica = name.first,
                       .rank = name.second,
                       .failure = "it is not attached: it " + absent.why});
  return ranks;
}

}  // namespace wsync::agent
