#include "bench/schedule/rank.h"

#include <algorithm>
#include <array>
#include <memory>
#include <sys/prctl.h>
#include <utility>
#include <vector>

#include "bench/harness/spread.h"
#include "bench/schedule/metered_group.h"
#include "bench/schedule/prediction.h"
#include "shared/base/digest.h"
#include "shared/base/format.h"
#include "shared/process_group/memory/memory_group.h"

namespace wsync::bench {
namespace {

using schedule::OperationKind;
using training::TrainingOptions;

constexpr std::uint64_t kSeed = 1;

// Tokens that are spread over the vocabulary, different for each replica and micro-batch.
std::vector<training::MicroBatch> batches_of(const TrainingOptions& options,
                                             std::uint32_t replica) {
  const std::uint32_t count = options.schedule.shape.microbatches;
  std::vector<training::MicroBatch> batches(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    batches[i].sequence = options.sequence;
    std::uint64_t state = std::uint64_t{replica} * count + i + 1;
    for (std::size_t token = 0; token < options.sequences * options.sequence; ++token) {
      const auto next = [&] {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<std::uint32_t>((state >> 33U) % options.spec.vocabulary);
      };
      batches[i].tokens.push_back(next());
      batches[i].targets.push_back(next());
    }
  }
  return batches;
}

class Rank {
 public:
  Rank(const RankTask& task, std::uint32_t rank, const LineWriter& out)
      : task_(task),
        options_(task.no_overlap),
        place_(training::place_of(options_.sizes, rank)),
        out_(out),
        weights_(options_.spec, options_.sizes, place_),
        gradients_(options_.spec, options_.sizes, place_),
        batches_(batches_of(options_, place_.replica)) {
    training::initialise(weights_.dense, kSeed);
    training::initialise(weights_.experts, kSeed);
    for (std::uint32_t other = 0; other < options_.sizes.ranks(); ++other)
      everyone_.push_back(other);
  }

  // The other ranks then fail with the same reason.
  Result<> run() {
    Result<> done = compare();
    if (!done && memory_ != nullptr) memory_->abort(done.error());
    if (!done && linked_ != nullptr) linked_->abort(done.error());
    return done;
  }

 private:
  Result<> compare() {
    WSYNC_TRY(join());
    WSYNC_TRY(prepare(CaseKind::kNoLink, options_, *memory_));
    for (unsigned i = 0; i < task_.warmup; ++i) WSYNC_TRY(step(CaseKind::kNoLink));
    const auto speed = WSYNC_TRY(choose_speed());
    auto link = WSYNC_TRY(collective::emulate_link(std::move(unlinked_), speed));
    linked_ = std::make_unique<MeteredGroup>(std::move(link));
    WSYNC_TRY(prepare(CaseKind::kOverlap, task_.overlap, *linked_));
    WSYNC_TRY(prepare(CaseKind::kNoOverlap, options_, *linked_));
    // A pipeline writes to its memory for the first time in its first step.
    WSYNC_TRY(step(CaseKind::kOverlap));
    WSYNC_TRY(step(CaseKind::kNoOverlap));
    for (Case& one : cases_) one.samples.clear();
    // The order of the cases changes, so that a machine that slows down affects all cases equally.
    for (std::size_t i = 0; i < task_.steps; ++i)
      for (std::size_t j = 0; j < kCaseCount; ++j)
        WSYNC_TRY(step(kCaseKinds[(i + j) % kCaseCount]));
    WSYNC_TRY(collective::barrier(team(), deadline()));
    return report(speed);
  }

  struct Case {
    std::shared_ptr<const schedule::Program> program;
    MeteredGroup* group = nullptr;
    std::unique_ptr<training::Pipeline> pipeline;
    std::vector<StepSample> samples;
  };
  [[nodiscard]] Case& at(CaseKind kind) { return cases_[static_cast<std::size_t>(kind)]; }
  [[nodiscard]] TimePoint deadline() const { return now() + options_.deadline; }
  [[nodiscard]] collective::Team team() const { return {memory_.get(), everyone_}; }

  Result<> join() {
    auto memory = WSYNC_TRY(collective::memory::attach(task_.memory_fd, place_.rank));
    memory_ = std::make_unique<MeteredGroup>(std::move(memory));
    unlinked_ = WSYNC_TRY(collective::memory::attach(task_.linked_fd, place_.rank));
    return {};
  }

  Result<> prepare(CaseKind kind, const TrainingOptions& options, MeteredGroup& group) {
    auto program = WSYNC_TRY(training::plan_training(options));
    Case& one = at(kind);
    one.program = std::make_shared<const schedule::Program>(std::move(program));
    one.group = &group;
    one.pipeline = std::make_unique<training::Pipeline>(
        training::PipelineOptions{
            .spec = options.spec,
            .sizes = options.sizes,
            .place = place_,
            .program = one.program,
            .tokens = options.sequences * options.sequence,
            .sequence = options.sequence,
            .device_slots = training::max_activations(one.program->ranks[place_.pipeline]),
            .host_slots = 0,
            .group = &group,
            .deadline = options.deadline},
        weights_);
    return {};
  }

  Result<> step(CaseKind kind) {
    Case& one = at(kind);
    gradients_.clear();
    WSYNC_TRY(collective::barrier(team(), deadline()));
    (void)one.group->take();
    StepSample sample{.begin = now(), .end = {}, .operations = {}, .exchanges = {}};
    auto done = WSYNC_TRY(one.pipeline->run_step(
        batches_, 1.0F / static_cast<float>(options_.tokens_of_step()), gradients_));
    sample.end = now();
    sample.operations = std::move(done.times);
    sample.exchanges = one.group->take();
    one.samples.push_back(std::move(sample));
    WSYNC_TRY(check_gradients());
    ++steps_;
    if (place_.rank != 0) return {};
    return out_.write(nlohmann::json{{"step", steps_}}.dump());
  }

  // Gradients must be equal to the last bit for every schedule.
  Result<> check_gradients() {
    std::vector<Digest> digests;
    const auto add = [&](const training::ParameterSet& set) {
      digests.push_back(digest_of(std::as_bytes(set.all())));
    };
    add(gradients_.dense);
    for (const training::ParameterSet& set : gradients_.experts) add(set);
    if (expected_.empty()) expected_ = digests;
    if (digests == expected_) return {};
    return fail(
        ErrorCode::kDigestMismatch,
        fmt::format(
            "rank {}: the gradients of step {} differ from those of the first step, with the same "
            "weights and micro-batches; this is a defect in the execution of the schedule",
            place_.rank, steps_ + 1));
  }

  struct WarmUp {
    double attention = 0;  // median time
    DispatchSize dispatch;
  };
  // Medians of this rank over all steps so far.
  [[nodiscard]] WarmUp warm_up() {
    const Case& one = at(CaseKind::kNoLink);
    const auto& operations = one.program->ranks[place_.pipeline].operations;
    WarmUp sizes;
    std::vector<double> attentions;
    double dispatches = 0;
    for (const StepSample& sample : one.samples)
      for (std::size_t i = 0; i < operations.size(); ++i) {
        const training::Measured& time = sample.operations[i];
        if (operations[i].kind == OperationKind::kAttention)
          attentions.push_back(1e3 * seconds(time.end - time.begin));
        if (operations[i].kind != OperationKind::kDispatch) continue;
        ++dispatches;
        for (const Exchange& exchange : sample.exchanges) {
          if (exchange.time.begin < time.begin || exchange.time.end > time.end) continue;
          ++sizes.dispatch.exchanges;
          sizes.dispatch.bytes += static_cast<double>(exchange.bytes);
        }
      }
    sizes.attention = spread_of(attentions).median;
    sizes.dispatch.exchanges /= dispatches;
    sizes.dispatch.bytes /= dispatches;
    return sizes;
  }

  // Chooses the same speed on every rank, from the maximum over all ranks.
  Result<collective::LinkSpeed> choose_speed() {
    collective::LinkSpeed speed{.latency = task_.link.latency,
                                .bytes_per_second = task_.link.bytes_per_second.value_or(0)};
    if (task_.link.bytes_per_second) return speed;
    std::vector<WarmUp> ranks(everyone_.size());
    ranks[place_.rank] = warm_up();
    std::vector<std::span<std::byte>> parts;
    parts.reserve(ranks.size());
    for (WarmUp& rank : ranks) parts.push_back(std::as_writable_bytes(std::span(&rank, 1)));
    WSYNC_TRY(collective::all_gather(team(), parts, deadline()));
    WarmUp max = ranks.front();
    for (const WarmUp& rank : ranks) {
      max.attention = std::max(max.attention, rank.attention);
      max.dispatch.bytes = std::max(max.dispatch.bytes, rank.dispatch.bytes);
    }
    const auto bandwidth = WSYNC_TRY(
        bandwidth_for(max.dispatch, speed.latency, max.attention, task_.link.dispatch_share));
    speed.bytes_per_second = bandwidth;
    return speed;
  }

  [[nodiscard]] Result<> report(const collective::LinkSpeed& speed) const {
    nlohmann::json samples = nlohmann::json::array();
    for (const Case& one : cases_) {
      nlohmann::json list = nlohmann::json::array();
      for (const StepSample& sample : one.samples) list.push_back(to_json(sample));
      samples.push_back(std::move(list));
    }
    return out_.write(nlohmann::json{
        {"link",
         {{"latency_ns", speed.latency.count()}, {"bytes_per_second", speed.bytes_per_second}}},
        {"samples", std::move(samples)}}
                          .dump());
  }

  const RankTask& task_;
  const TrainingOptions& options_;
  const training::Place place_;
  const LineWriter& out_;
  training::RankWeights weights_;
  training::RankGradients gradients_;
  const std::vector<training::MicroBatch> batches_;
  std::vector<std::uint32_t> everyone_;
  std::unique_ptr<MeteredGroup> memory_;
  std::unique_ptr<collective::ProcessGroup> unlinked_;  // moved into linked_ later
  std::unique_ptr<MeteredGroup> linked_;
  std::array<Case, kCaseCount> cases_;
  std::vector<Digest> expected_;
  unsigned steps_ = 0;
};

}  // namespace

Result<> run_rank(const RankTask& task, std::uint32_t rank, const LineWriter& out) {
  // A minimum timer slack, so that a link that sleeps wakes up in time. Threads that start later
  // inherit it.
  ::prctl(PR_SET_TIMERSLACK, 1UL);
  Rank one(task, rank, out);
  return one.run();
}

}  // namespace wsync::bench
