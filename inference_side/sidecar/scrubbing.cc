#include "inference_side/sidecar/scrubbing.h"

#include <algorithm>
#include <utility>

#include "inference_side/reload/load_plan.h"
#include "inference_side/reload/sum_check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"

namespace wsync::agent {
namespace {

// Both numbers of a sum; the words that ranges cut are added as they were read.
std::string sum_text(const SplitSum& sum) {
  const WordSum all = sum.words + sum.edges;
  return fmt::format("{:016x}{:016x}", all.product, all.sum);
}

ScrubMismatch describe(const staging::HeldVersion& version, const reload::SumMismatch& mismatch,
                       const std::vector<ScrubbedRank>& ranks,
                       const std::vector<reload::LoadPlan>& plans) {
  ScrubMismatch described{.rank = mismatch.rank, .tensor = mismatch.tensor, .what = mismatch.why};
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (mismatch.rank && ranks[r].rank != *mismatch.rank) continue;
    for (std::size_t t = 0; t < plans[r].tensors().size(); ++t) {
      const reload::LoadTensor& tensor = plans[r].tensors()[t];
      if (version.manifest()->tensor(tensor.manifest_index).name != mismatch.tensor) continue;
      described.found = sum_text(ranks[r].sums[t]);
      // Without a rank, the staged bytes are as wrong as those in memory.
      described.expected =
          sum_text(mismatch.rank ? reload::expected_sum(tensor, version.data())
                                 : SplitSum{.words = version.digests().sums[tensor.manifest_index],
                                            .edges = {}});
      described.what =
          mismatch.rank
              ? fmt::format(
                    "rank {}: its bytes of tensor {} are not those of {}: expected sum {}, "
                    "found {}",
                    *mismatch.rank, mismatch.tensor, version.version().to_string(),
                    described.expected, described.found)
              : fmt::format(
                    "tensor {} is not that of {}, neither in memory nor where it is "
                    "staged: expected sum {} of the whole tensor, found {} in rank {}",
                    mismatch.tensor, version.version().to_string(), described.expected,
                    described.found, ranks[r].rank);
      return described;
    }
  }
  return described;
}

}  // namespace

Result<std::optional<ScrubMismatch>> compare_scrubbed(const staging::HeldVersion& version,
                                                      const std::vector<ScrubbedRank>& ranks) {
  std::vector<std::vector<control::EngineTensor>> ranges;
  std::vector<reload::LoadPlan> plans;
  std::vector<reload::LoadedRank> read;
  ranges.reserve(ranks.size());  // `read` refers to what is in both
  plans.reserve(ranks.size());
  for (const ScrubbedRank& rank : ranks) {
    ranges.push_back(rank.tensors ? *rank.tensors : reload::whole_tensors(*version.manifest()));
    plans.push_back(
        WSYNC_TRY(reload::LoadPlan::make(*version.manifest(), *version.plan(), ranges.back())));
    if (rank.sums.size() != ranges.back().size())
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("rank {} has returned the sums of {} tensors, expected {}", rank.rank,
                              rank.sums.size(), ranges.back().size()));
    read.push_back({.rank = rank.rank,
                    .tensors = plans.back().tensors(),
                    .ranges = ranges.back(),
                    .sums = rank.sums});
  }
  const auto mismatch = reload::check_sums({.manifest = version.manifest().get(),
                                            .digests = &version.digests(),
                                            .arena = version.data()},
                                           read)
                            .mismatch;
  if (!mismatch) return std::optional<ScrubMismatch>();
  return std::optional(describe(version, *mismatch, ranks, plans));
}

Scrubbing::Scrubbing(Loop& loop, Worker& worker, ScrubbingOptions options)
    : loop_(loop),
      worker_(worker),
      options_(std::move(options)),
      passes_(options_.interval),
      timer_(loop, [this] { begin_due(); }) {}

void Scrubbing::attached(const EngineRank& rank, std::uint32_t world_size,
                         const std::string& not_scrubbed) {
  passes_.attached(rank.replica, rank.rank, world_size, not_scrubbed, rank.active, now());
  begin_due();
}

void Scrubbing::detached(const EngineRank& rank) {
  passes_.detached(rank.replica, rank.rank);
  if (options_.ranks(rank.replica).empty()) passes_.forget(rank.replica);
}

void Scrubbing::committed(const EngineRank& rank, const Version& version, bool by_patch) {
  passes_.committed(rank.replica, rank.rank, version, by_patch, now());
  begin_due();
}

void Scrubbing::begin_due() {
  for (const ScrubPasses::Begin& begin : passes_.due(now())) {
    log_debug("replica {}: scrub {} begins", begin.replica, begin.pass);
    notify(begin.replica, {.pass = begin.pass, .share_ppm = options_.share_ppm});
  }
  if (const auto next = passes_.next_due())
    timer_.start_at(*next);
  else
    timer_.stop();
}

void Scrubbing::notify(const std::string& replica, const control::Scrub& message) const {
  for (const auto& rank : options_.ranks(replica)) rank->send(0, message);
}

void Scrubbing::answered(const EngineRank& rank, control::Scrubbed answer) {
  if (!answer.failure.empty())
    log_debug("engine {} rank {}: scrub {}: {}", rank.replica, rank.rank, answer.pass,
              answer.failure);
  const bool was_scrubbed = passes_.is_scrubbed(rank.replica);
  auto complete =
      passes_.answered(rank.replica, rank.rank, std::move(answer), now(), rank.takes_layers);
  if (was_scrubbed && !passes_.is_scrubbed(rank.replica))
    log_warning("replica {}: its weights are not scrubbed: {}", rank.replica,
                passes_.not_scrubbed(rank.replica));
  if (!complete) return begin_due();
  compare(rank.replica, *std::move(complete));
}

void Scrubbing::compare(const std::string& replica, ScrubPasses::Complete complete) {
  auto ranks = std::make_shared<std::vector<ScrubbedRank>>();
  for (const auto& rank : options_.ranks(replica))
    if (const auto sums = complete.sums.find(rank->rank); sums != complete.sums.end())
      ranks->push_back({.rank = rank->rank,
                        .tensors = rank->any_layout ? nullptr : rank->tensors,
                        .sums = std::move(sums->second)});
  const auto held = options_.find(complete.version);
  auto outcome = std::make_shared<Result<std::optional<ScrubMismatch>>>(
      fail(ErrorCode::kNotFound,
           fmt::format("{} is no longer staged on this sidecar", complete.version.to_string())));
  const auto done = [this, alive = alive_, replica, outcome, complete = std::move(complete)] {
    if (*alive) judge(replica, complete, *outcome);
  };
  if (held) {
    auto submitted = worker_.submit(
        [held, ranks, outcome] { *outcome = compare_scrubbed(*held, *ranks); }, done);
    if (submitted) return;
    *outcome = fail(submitted.error());
  }
  loop_.post(done);
}

void Scrubbing::judge(const std::string& replica, const ScrubPasses::Complete& complete,
                      const Result<std::optional<ScrubMismatch>>& outcome) {
  if (!outcome) {
    log_debug("replica {}: scrub {} says nothing: {}", replica, complete.pass,
              outcome.error().message());
    passes_.dropped(replica, complete.pass, now());
  } else if (const std::optional<ScrubMismatch>& mismatch = *outcome;
             !mismatch || planted("scrub_mismatch_ignored")) {
    if (passes_.proved(replica, complete, now())) options_.on_judged(true, complete.cpu);
  } else {
    const auto verdict = passes_.mismatched(replica, complete.pass, mismatch->what);
    if (verdict == ScrubPasses::Verdict::kStale) return;
    options_.on_judged(false, complete.cpu);
    const auto ranks = options_.ranks(replica);
    (void)damaged(replica, mismatch->rank.value_or(ranks.empty() ? 0 : ranks.front()->rank),
                  "a scrub", mismatch->what, verdict, !mismatch->rank);
  }
  notify(replica, {.pass = 0});
  begin_due();
}

std::string Scrubbing::verified(const EngineRank& rank, const ReadDifference& difference) {
  const std::string& replica = rank.replica;
  const auto verdict = passes_.found_to_differ(replica, difference.what, difference.read);
  if (verdict == ScrubPasses::Verdict::kStale)
    return "all bytes of the replica were loaded or read again meanwhile: verify once more";
  // The pass that runs has ended.
  notify(replica, {.pass = 0});
  if (passes_.is_scrubbed(replica))
    return damaged(replica, rank.rank, "wsync verify", difference.what, verdict,
                   difference.is_copy_suspect);
  log_error("replica {}: wsync verify has found damaged memory: {}", replica, difference.what);
  return fmt::format(
      "it serves them until the next update, which loads all bytes, because the "
      "replica is not scrubbed: {}",
      passes_.not_scrubbed(replica));
}

std::string Scrubbing::damaged(const std::string& replica, std::uint32_t rank,
                               const std::string& by, const std::string& what,
                               ScrubPasses::Verdict verdict, bool is_copy_suspect) {
  const bool is_mendable = verdict == ScrubPasses::Verdict::kMend;
  std::string follows = is_mendable ? "all bytes are loaded again"
                                    : fmt::format(
                                          "that is the {}rd time in a row, so the replica is not "
                                          "used: replace the engine, and look at its host's memory",
                                          ScrubPasses::kMismatchesMax);
  log_error("replica {}: {} has found damaged memory: {}; {}", replica, by, what, follows);
  std::string why = "damaged memory: " + what;
  if (!is_mendable)
    why += fmt::format(
        "; found {} times in a row, although all bytes were loaded in between: "
        "replace the engine, and look at its host's memory",
        ScrubPasses::kMismatchesMax);
  options_.on_damaged(replica, {.rank = rank,
                                .why = std::move(why),
                                .is_mendable = is_mendable,
                                .is_copy_suspect = is_copy_suspect});
  return follows;
}

void Scrubbing::add_to(std::vector<control::ReplicaReport>& reports) const {
  for (control::ReplicaReport& report : reports) passes_.add_to(report, now());
}

}  // namespace wsync::agent
