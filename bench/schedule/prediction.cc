#include "bench/schedule/prediction.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "bench/harness/spread.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using schedule::Lane;
using schedule::OperationCosts;
using schedule::OperationKind;
using schedule::Program;
using training::ParallelSizes;

double milliseconds(std::chrono::nanoseconds time) { return 1e3 * seconds(time); }
double length(const training::Measured& time) { return milliseconds(time.end - time.begin); }

// One operation of one rank in one step.
struct Run {
  double whole = 0;
  double exchanges = 0;  // part of it in exchanges
  double processor = 0;  // processor time
  double on_link = 0;    // time of its exchanges on the link
};

class Calibration {
 public:
  Calibration(const Program& program, const ParallelSizes& sizes, const CaseSamples& samples,
              const std::optional<collective::LinkSpeed>& link)
      : program_(program), sizes_(sizes), samples_(samples), link_(link) {}

  // The mean of `of` over all operations of these kinds. 0 if there are none.
  [[nodiscard]] double mean(std::initializer_list<OperationKind> kinds,
                            double (Calibration::*of)(std::uint32_t, std::uint32_t) const) const {
    double sum = 0;
    std::size_t count = 0;
    for (std::uint32_t pipeline = 0; pipeline < sizes_.pp; ++pipeline) {
      const auto& operations = program_.ranks[pipeline].operations;
      for (std::uint32_t i = 0; i < operations.size(); ++i)
        if (std::find(kinds.begin(), kinds.end(), operations[i].kind) != kinds.end()) {
          sum += (this->*of)(pipeline, i);
          ++count;
        }
    }
    return count == 0 ? 0 : sum / static_cast<double>(count);
  }

  [[nodiscard]] double computation(std::uint32_t pipeline, std::uint32_t operation) const {
    return max(pipeline, operation, &Run::whole);
  }

  [[nodiscard]] double communication(std::uint32_t pipeline, std::uint32_t operation) const {
    return over_steps([&](std::size_t step) {
      double around = 0;
      double on_link = 0;
      std::optional<double> shortest;
      for (std::uint32_t replica = 0; replica < sizes_.dp; ++replica) {
        const Run one = run(pipeline, replica, step, operation);
        around = std::max(around, one.whole - one.exchanges);
        on_link = std::max(on_link, one.on_link);
        shortest = std::min(shortest.value_or(one.exchanges), one.exchanges);
      }
      return around + (link_ ? on_link : *shortest);
    });
  }

  [[nodiscard]] double processor(std::uint32_t pipeline, std::uint32_t operation) const {
    return max(pipeline, operation, &Run::processor);
  }

 private:
  // The maximum over replicas, because the other replicas wait for the slowest one.
  [[nodiscard]] double max(std::uint32_t pipeline, std::uint32_t operation,
                           double Run::* of) const {
    return over_steps([&](std::size_t step) {
      double value = 0;
      for (std::uint32_t replica = 0; replica < sizes_.dp; ++replica)
        value = std::max(value, run(pipeline, replica, step, operation).*of);
      return value;
    });
  }

  [[nodiscard]] double over_steps(const std::function<double(std::size_t)>& of) const {
    std::vector<double> values;
    values.reserve(samples_.front().size());
    for (std::size_t step = 0; step < samples_.front().size(); ++step) values.push_back(of(step));
    return spread_of(values).median;
  }

  [[nodiscard]] Run run(std::uint32_t pipeline, std::uint32_t replica, std::size_t step,
                        std::uint32_t operation) const {
    const StepSample& sample = samples_[sizes_.rank_of(pipeline, replica)][step];
    const training::Measured& time = sample.operations[operation];
    Run one{.whole = length(time)};
    if (lane_of(program_.ranks[pipeline].operations[operation].kind) != Lane::kCommunication)
      return one;
    auto exchange = std::lower_bound(
        sample.exchanges.begin(), sample.exchanges.end(), time.begin,
        [](const Exchange& other, TimePoint begin) { return other.time.begin < begin; });
    double waited = 0;
    for (; exchange != sample.exchanges.end() && exchange->time.end <= time.end; ++exchange) {
      one.exchanges += length(exchange->time);
      waited += length(exchange->time) - milliseconds(exchange->processor);
      if (link_)
        one.on_link += milliseconds(link_->latency) +
                       1e3 * static_cast<double>(exchange->bytes) / link_->bytes_per_second;
    }
    one.processor = one.whole - std::max(waited, 0.0);
    return one;
  }

  const Program& program_;
  const ParallelSizes& sizes_;
  const CaseSamples& samples_;
  const std::optional<collective::LinkSpeed>& link_;
};

}  // namespace

OperationCosts measured_costs(const Program& program, const ParallelSizes& sizes,
                              const CaseSamples& alone,
                              const std::optional<collective::LinkSpeed>& link,
                              std::uint32_t cores) {
  using enum OperationKind;
  const Calibration calibration(program, sizes, alone, link);
  const auto computation = [&](OperationKind kind) {
    return calibration.mean({kind}, &Calibration::computation);
  };
  const std::initializer_list<OperationKind> dispatches{kDispatch, kDispatchGradient};
  const std::initializer_list<OperationKind> combines{kCombine, kCombineGradient};
  const std::initializer_list<OperationKind> sends{kSendActivation, kSendGradient};
  OperationCosts costs;
  costs.attention = computation(kAttention);
  costs.mlp = computation(kMlp);
  costs.head = computation(kHead);
  costs.attention_gradient = computation(kAttentionGradient);
  costs.mlp_gradient = computation(kMlpGradient);
  costs.weight_gradient = computation(kWeightGradient);
  costs.dispatch = calibration.mean(dispatches, &Calibration::communication);
  costs.combine = calibration.mean(combines, &Calibration::communication);
  costs.pp_transfer = calibration.mean(sends, &Calibration::communication);
  constexpr std::uint32_t kLanesAtWork = 2;
  if (cores < kLanesAtWork * sizes.ranks()) {
    const double work = 2 * program.layers *
                        (calibration.mean(dispatches, &Calibration::processor) +
                         calibration.mean(combines, &Calibration::processor));
    const double computed = program.layers * (costs.attention + costs.mlp + costs.mlp_gradient +
                                              costs.attention_gradient) +
                            costs.weight_gradient;
    if (computed > 0) costs.pair_factor = 1 + work / computed;
  }
  return costs;
}

Result<double> bandwidth_for(const DispatchSize& dispatch, std::chrono::nanoseconds latency,
                             double attention, double share) {
  const double fixed = dispatch.exchanges * milliseconds(latency);
  const double left = share * attention - fixed;
  if (left <= 0 || dispatch.bytes <= 0)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("a dispatch of {:.0f} bytes should take {:g} of the time of an attention "
                    "({:.3f} ms), but the latency of its {:.0f} exchanges is already {:.3f} ms in "
                    "total; set a shorter latency, a bandwidth, or larger micro-batches",
                    dispatch.bytes, share, attention, dispatch.exchanges, fixed));
  return 1e3 * dispatch.bytes / left;
}

std::vector<std::vector<schedule::Timing>> timings_of(const ParallelSizes& sizes,
                                                      const CaseSamples& samples, std::size_t step,
                                                      std::uint32_t replica) {
  TimePoint begin = samples.front()[step].begin;
  for (const std::vector<StepSample>& rank : samples) begin = std::min(begin, rank[step].begin);
  std::vector<std::vector<schedule::Timing>> ranks(sizes.pp);
  for (std::uint32_t pipeline = 0; pipeline < sizes.pp; ++pipeline)
    for (const training::Measured& one : samples[sizes.rank_of(pipeline, replica)][step].operations)
      ranks[pipeline].push_back({milliseconds(one.begin - begin), milliseconds(one.end - begin)});
  return ranks;
}

double step_time(const CaseSamples& samples, std::size_t step) {
  TimePoint begin = samples.front()[step].begin;
  TimePoint end = samples.front()[step].end;
  for (const std::vector<StepSample>& rank : samples) {
    begin = std::min(begin, rank[step].begin);
    end = std::max(end, rank[step].end);
  }
  return milliseconds(end - begin);
}

double exposed_time(const Program& program, const ParallelSizes& sizes, const CaseSamples& samples,
                    std::size_t step) {
  double max = 0;
  for (std::uint32_t replica = 0; replica < sizes.dp; ++replica) {
    const auto times = timings_of(sizes, samples, step, replica);
    for (std::uint32_t pipeline = 0; pipeline < sizes.pp; ++pipeline)
      max = std::max(max, rank_report(program, program.ranks[pipeline], times[pipeline]).exposed);
  }
  return max;
}

}  // namespace wsync::bench
