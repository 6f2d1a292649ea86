#include "inference_side/sidecar/absent_engines.h"

#include <algorithm>

#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::agent {

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
      {.why = fmt::format(
           "is {}{}: it attaches when {}", rank.is_suspended ? "suspended" : "starting", process,
           rank.is_suspended ? "it has its memory again" : "its memory is allocated"),
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
      // The replica's own sentence says less of this rank.
      const std::string plain = fmt::format("rank {} is not attached", name.second);
      if (const auto at = known->reason.find(plain); at != std::string::npos)
        known->reason.replace(at, plain.size(), sentence);
      else
        known->reason += (known->reason.empty() ? "" : "; ") + sentence;
    }
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
