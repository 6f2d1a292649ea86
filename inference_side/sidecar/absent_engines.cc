#include "inference_side/sidecar/absent_engines.h"

#include <algorithm>

#include "inference_side/reload/rank_table.h"
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
      {.why = rank.is_suspended
                  ? fmt::format("is suspended{}: it loads the target when it resumes", process)
                  : fmt::format("is starting{}: it attaches when its memory is allocated", process),
       .world_size = rank.world_size,
       .is_suspended = rank.is_suspended,
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
      return fail(ErrorCode::kRefused, fmt::format("replica '{}' rank {} {}; stop its engine first",
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

const AbsentEngines::Absent* AbsentEngines::reported(const std::string& replica, std::uint32_t rank,
                                                     TimePoint now) const {
  const auto known = ranks_.find({replica, rank});
  return known != ranks_.end() && is_reported(known->second, now) ? &known->second : nullptr;
}

std::string AbsentEngines::where(const std::string& replica,
                                 const std::vector<std::uint32_t>& ranks, const std::string& advice,
                                 TimePoint now) const {
  std::vector<std::string> sentences;
  std::vector<std::uint32_t> others;
  for (const std::uint32_t rank : ranks) {
    if (const Absent* absent = reported(replica, rank, now))
      sentences.push_back(fmt::format("rank {} {}", rank, absent->why));
    else
      others.push_back(rank);
  }
  if (!others.empty()) sentences.push_back(reload::not_attached(others) + advice);
  return fmt::format("{}", fmt::join(sentences, "; "));
}

void AbsentEngines::add_to(std::vector<control::ReplicaReport>& reports, const MissingOf& missing,
                           TimePoint now) const {
  for (control::ReplicaReport& report : reports) {
    const std::vector<std::uint32_t> ranks = missing(report.replica).ranks;
    if (ranks.empty()) continue;
    const std::string plain = reload::not_attached(ranks);
    if (const auto at = report.reason.find(plain); at != std::string::npos)
      report.reason.replace(at, plain.size(), where(report.replica, ranks, {}, now));
  }
  const std::size_t known = reports.size();
  for (const auto& [name, absent] : ranks_) {
    if (!is_reported(absent, now)) continue;
    const auto report = std::ranges::find(reports, name.first, &control::ReplicaReport::replica);
    if (report < reports.begin() + static_cast<std::ptrdiff_t>(known)) continue;
    const std::string sentence = fmt::format("rank {} {}", name.second, absent.why);
    if (report != reports.end())
      report->reason += "; " + sentence;
    else if (reports.size() < limits::kReplicaCount)
      reports.push_back(
          {.replica = name.first, .world_size = absent.world_size, .reason = sentence});
  }
}

void AbsentEngines::explain(std::vector<control::ReplicaOutcome>& outcomes,
                            const MissingOf& missing, const std::string& sidecar,
                            TimePoint now) const {
  for (control::ReplicaOutcome& outcome : outcomes) {
    const MissingRanks found = missing(outcome.replica);
    if (found.ranks.empty()) continue;
    outcome.is_suspended =
        found.are_all && std::ranges::all_of(found.ranks, [&](std::uint32_t rank) {
          const Absent* absent = reported(outcome.replica, rank, now);
          return absent != nullptr && absent->is_suspended;
        });
    const std::string plain = reload::not_attached(found.ranks);
    if (!outcome.reason.ends_with(plain)) continue;
    const auto unknown = std::ranges::count_if(found.ranks, [&](std::uint32_t rank) {
      return reported(outcome.replica, rank, now) == nullptr;
    });
    // A replica is not forgotten while processes of it live.
    const Result<> forgettable = check_forget(outcome.replica);
    const bool may_be_forgotten =
        found.are_all && (forgettable || forgettable.error().code() == ErrorCode::kNotFound);
    outcome.reason.resize(outcome.reason.size() - plain.size());
    outcome.reason +=
        where(outcome.replica, found.ranks,
              fmt::format(": start {}{}", unknown == 1 ? "its engine" : "their engines",
                          may_be_forgotten
                              ? fmt::format(", or forget the replica with `wsync forget {}/{}`",
                                            sidecar, outcome.replica)
                              : ""),
              now);
  }
}

std::vector<control::VerifyRank> AbsentEngines::unverified(TimePoint now) const {
  std::vector<control::VerifyRank> ranks;
  for (const auto& [name, absent] : ranks_)
    if (is_reported(absent, now))
      ranks.push_back({.replica = name.first, .rank = name.second, .failure = "it " + absent.why});
  return ranks;
}

}  // namespace wsync::agent
