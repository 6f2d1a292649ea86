#include "inference_side/sidecar/scrub_passes.h"

#include <algorithm>
#include <utility>

#include "shared/base/planted.h"

namespace wsync::agent {
namespace {

// A pass that has ended without a result is repeated after this time, or the interval if it is
// shorter.
constexpr std::chrono::minutes kRepeatAfter{1};

}  // namespace

void ScrubPasses::attached(const std::string& replica, std::uint32_t rank, std::uint32_t world_size,
                           const std::string& not_scrubbed, const Version& active, TimePoint now) {
  Replica& known = replicas_[replica];
  known.world_size = world_size;
  known.ranks[rank] = {.not_scrubbed = not_scrubbed, .active = active};
  known.in_a_row = 0;
  known.is_mending = false;
  known.is_serving = !active.none();
  known.failures = 0;
  end_pass(known);
  // Nobody has told this process what the memory of that one has gone through.
  known.proved = {};
  known.due = now;
}

void ScrubPasses::detached(const std::string& replica, std::uint32_t rank) {
  const auto found = replicas_.find(replica);
  if (found == replicas_.end()) return;
  found->second.ranks.erase(rank);
  end_pass(found->second);
  found->second.due.reset();
  found->second.proved = {};
}

void ScrubPasses::committed(const std::string& replica, std::uint32_t rank, const Version& version,
                            bool by_patch, TimePoint now) {
  const auto found = replicas_.find(replica);
  if (found == replicas_.end() || !found->second.ranks.contains(rank)) return;
  Replica& known = found->second;
  known.ranks[rank].active = version;
  if (by_patch || uniform(known) != version) return;
  end_pass(known);
  known.is_mending = false;
  prove(known, version, now);
  // After a mismatch at once: the memory may not keep what is written there.
  known.due = known.in_a_row == 0 ? now + interval_ : now;
}

void ScrubPasses::set_serving(const std::string& replica, bool is_serving) {
  if (const auto found = replicas_.find(replica); found != replicas_.end())
    found->second.is_serving = is_serving;
}

std::optional<Version> ScrubPasses::uniform(const Replica& replica) {
  if (replica.ranks.size() != replica.world_size) return std::nullopt;
  const Version& first = replica.ranks.begin()->second.active;
  for (const auto& [rank, each] : replica.ranks)
    if (each.active != first) return std::nullopt;
  return first;
}

void ScrubPasses::prove(Replica& replica, const Version& version, TimePoint when) {
  replica.proved = version;
  replica.proved_at = when;
  replica.failures = 0;
}

void ScrubPasses::end_pass(Replica& replica) {
  replica.pass = 0;
  replica.sums.clear();
  replica.begins.clear();
}

ScrubPasses::Replica* ScrubPasses::running(const std::string& replica, std::uint64_t pass) {
  const auto found = replicas_.find(replica);
  return found == replicas_.end() || pass == 0 || found->second.pass != pass ? nullptr
                                                                             : &found->second;
}

std::vector<ScrubPasses::Begin> ScrubPasses::due(TimePoint now) {
  std::vector<Begin> begins;
  for (auto& [name, replica] : replicas_) {
    if (!replica.due || *replica.due > now || replica.pass != 0) continue;
    const auto version = uniform(replica);
    if (!version || version->none() || !why_no_pass(replica).empty()) continue;
    replica.due.reset();
    replica.pass = next_pass_++;
    begins.push_back({.replica = name, .pass = replica.pass});
  }
  return begins;
}

std::optional<TimePoint> ScrubPasses::next_due() const {
  std::optional<TimePoint> next;
  for (const auto& [name, replica] : replicas_) {
    const auto version = uniform(replica);
    if (!replica.due || replica.pass != 0 || !version || version->none() ||
        !why_no_pass(replica).empty())
      continue;
    if (!next || *replica.due < *next) next = replica.due;
  }
  return next;
}

std::optional<ScrubPasses::Complete> ScrubPasses::answered(const std::string& replica,
                                                           std::uint32_t rank,
                                                           control::Scrubbed answer, TimePoint now,
                                                           bool takes_layers) {
  Replica* const known = running(replica, answer.pass);
  if (known == nullptr || !known->ranks.contains(rank)) return std::nullopt;
  if (!answer.failure.empty()) {
    if (known->is_serving || takes_layers) {
      ++known->failures;
      known->failure = "rank " + std::to_string(rank) + ": " + answer.failure;
    }
    dropped(replica, answer.pass, now);
    return std::nullopt;
  }
  known->begins[rank] = now + -std::chrono::nanoseconds(answer.age_ns);
  known->sums[rank] = std::move(answer);
  Complete complete{.pass = known->pass,
                    .version = known->sums[rank].version,
                    .begin = known->begins[rank],
                    .cpu = {},
                    .sums = {}};
  if (known->sums.size() != known->world_size && !planted("scrub_proves_without_a_rank"))
    return std::nullopt;
  for (const auto& [each, sums] : known->sums) {
    // A rank that has committed a patch later returns its sums once more, under that version.
    if (sums.version != complete.version) return std::nullopt;
    complete.begin = std::min(complete.begin, known->begins[each]);
    complete.cpu += std::chrono::nanoseconds(sums.cpu_ns);
    complete.sums[each] = sums.sums;
  }
  return complete;
}

void ScrubPasses::dropped(const std::string& replica, std::uint64_t pass, TimePoint now) {
  Replica* const known = running(replica, pass);
  if (known == nullptr) return;
  end_pass(*known);
  known->due = now + std::min<std::chrono::nanoseconds>(interval_, kRepeatAfter);
}

bool ScrubPasses::proved(const std::string& replica, const Complete& complete, TimePoint now) {
  Replica* const known = running(replica, complete.pass);
  if (known == nullptr) return false;
  end_pass(*known);
  known->in_a_row = 0;
  prove(*known, complete.version, complete.begin);
  known->due = std::max(now, complete.begin + interval_);
  return true;
}

ScrubPasses::Verdict ScrubPasses::mismatched(const std::string& replica, std::uint64_t pass,
                                             const std::string& what) {
  Replica* const known = running(replica, pass);
  return known == nullptr ? Verdict::kStale : mismatched(*known, what);
}

ScrubPasses::Verdict ScrubPasses::found_to_differ(const std::string& replica,
                                                  const std::string& what, TimePoint read) {
  const auto found = replicas_.find(replica);
  if (found == replicas_.end()) return Verdict::kStale;
  Replica& known = found->second;
  if (!known.proved.none() && known.proved_at >= read) return Verdict::kStale;
  if (known.is_mending) return Verdict::kMend;
  return mismatched(known, what);
}

ScrubPasses::Verdict ScrubPasses::mismatched(Replica& replica, const std::string& what) {
  end_pass(replica);
  ++replica.in_a_row;
  ++replica.mismatches;
  replica.last_mismatch = what;
  replica.proved = {};
  // committed() sets when the next one is due.
  replica.due.reset();
  replica.is_mending = replica.in_a_row < kMismatchesMax;
  return replica.is_mending ? Verdict::kMend : Verdict::kGiveUp;
}

std::string ScrubPasses::why_no_pass(const Replica& replica) const {
  if (interval_.count() == 0) return "scrub.interval is 0";
  for (const auto& [rank, each] : replica.ranks)
    if (!each.not_scrubbed.empty())
      return "rank " + std::to_string(rank) + ": " + each.not_scrubbed;
  return {};
}

std::string ScrubPasses::not_scrubbed(const Replica& replica) const {
  std::string why = why_no_pass(replica);
  const bool fails = replica.failures >= kFailuresMax && !planted("failing_scrubs_not_said");
  return why.empty() && fails ? replica.failure : why;
}

bool ScrubPasses::is_proved(const std::string& replica) const {
  const auto found = replicas_.find(replica);
  return found != replicas_.end() && !found->second.proved.none();
}

std::string ScrubPasses::not_scrubbed(const std::string& replica) const {
  const auto found = replicas_.find(replica);
  return found == replicas_.end() ? "it has no ranks" : not_scrubbed(found->second);
}

bool ScrubPasses::is_scrubbed(const std::string& replica) const {
  const auto found = replicas_.find(replica);
  return found != replicas_.end() && !found->second.ranks.empty() &&
         not_scrubbed(found->second).empty();
}

bool ScrubPasses::may_be_patched(const std::string& replica, TimePoint now) const {
  const auto found = replicas_.find(replica);
  if (found == replicas_.end() || interval_.count() == 0) return false;
  if (is_scrubbed(replica) || planted("unscrubbed_patched_for_ever")) return true;
  return !found->second.proved.none() && now - found->second.proved_at < interval_;
}

void ScrubPasses::add_to(control::ReplicaReport& report, TimePoint now) const {
  const auto found = replicas_.find(report.replica);
  if (found == replicas_.end()) return;
  const Replica& known = found->second;
  report.proved = known.proved;
  report.proved_ago_ns =
      known.proved.none() ? 0 : static_cast<std::uint64_t>((now - known.proved_at).count());
  report.not_scrubbed = not_scrubbed(known);
  report.mismatches = known.mismatches;
  report.last_mismatch = known.last_mismatch;
}

}  // namespace wsync::agent
