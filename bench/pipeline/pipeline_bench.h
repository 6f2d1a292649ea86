// `wsync bench pipeline`: the weight pipeline on separate host devices, against what the simulation
// of `wsync bench scale` says, given each stage alone. How to read the table, and limits:
// deploy/guides/benchmark.md.
//
// Over links of given rates (paced_device.h) transfers take their time and no core, as in the
// clusters that `scale` is about; models are of 16 MiB at most in buffers of 512 KiB, so a bucket
// takes 2 to 4 ms. Where cores copy, the cores are the link that all share, and what stages take
// from each other is measured and put in (contention()). Stages alone of the same round are what
// the prediction is made of, so the rates themselves are not tested.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "bench/harness/child.h"
#include "bench/harness/machine.h"
#include "bench/harness/spread.h"
#include "bench/pipeline/host_pipeline.h"
#include "shared/base/error.h"

namespace wsync::bench {

inline constexpr double kPredictionTarget = 0.10;  // predicted / measured differs from 1 by at most

struct HostPipelineRound {
  Taken h2d, broadcast, reload;
  Taken together;    // the three at once, on buffers of their own; not over links
  Taken hand_overs;  // a whole update of next to no bytes
  double two_s = 0;
  double three_s = 0;
  double predicted_two_s = 0;  // from this round's stages alone
  double predicted_three_s = 0;
};

struct HostPipelineCase {
  HostPipelineOptions options;
  std::uint64_t buckets = 0;
  std::vector<HostPipelineRound> rounds;
  Spread h2d_s, broadcast_s, reload_s, hand_over_s, two_s, three_s;
  Spread contention;              // of contention()
  Spread two_ratio, three_ratio;  // predicted / measured, of each round
  std::uint64_t checked_bytes = 0;
  [[nodiscard]] bool met() const noexcept;
};

struct PipelineBenchOptions {
  std::vector<HostPipelineOptions> cases;
  std::uint64_t bytes = 256ULL << 20U;       // of the model where cores copy
  std::uint64_t buffer_bytes = 4ULL << 20U;  // there
  unsigned rounds = 15;
};

struct PipelineBenchResult {
  Machine machine;
  PipelineBenchOptions options;
  std::vector<HostPipelineCase> cases;
  double others_busy = 0;
  double stolen = 0;
};

// Seconds of one hand-over: an update of no bytes in two stages is a chain of them, of one H2D, as
// many broadcasts as devices in each round, and the last reload.
[[nodiscard]] double hand_over_s(const Taken& hand_overs, std::uint64_t buckets,
                                 std::uint32_t devices);

// How much more of the cores' time the three stages need when they run at once than one after the
// other: what they take from each other of caches and memory. At least 1.
[[nodiscard]] double contention(const HostPipelineRound& alone);

// What the stages alone say of a whole update, in one form. Each device's copies, each engine's
// copies and the broadcasts are lanes; all share the cores. A lane is as fast as it was alone, with
// the time that lanes of its stage took from each other for want of cores taken out; a bucket takes
// of the cores what it took alone, times contention(). Copies begin one hand-over late (in the
// measurement of broadcasts alone theirs are contained). Cores: as many as are there, or, where
// there are as many lanes as cores, what the busiest stage got of them. Errors as
// simulate_pipeline(). Links of given rates (options.rates) do not wait for cores, nor slow each
// other down.
[[nodiscard]] Result<double> predict_update(const HostPipelineRound& alone,
                                            const HostPipelineOptions& options, std::uint32_t cores,
                                            Stages stages);

// "2 devices, copies by cores"; "2 devices, links 128MiB/256MiB/256MiB": bytes per second of H2D,
// broadcast and reload.
[[nodiscard]] std::string case_label(const HostPipelineOptions& options);

using OnPipelineProgress =
    std::function<void(std::string_view label, unsigned done, unsigned total)>;

// In each round all seven are measured, and which comes first changes. kCancelled on a signal;
// errors of HostPipeline.
[[nodiscard]] Result<PipelineBenchResult> run_pipeline_bench(const PipelineBenchOptions& options,
                                                             const Interrupt& interrupt,
                                                             const OnPipelineProgress& on_progress);

}  // namespace wsync::bench
