// `wsync bench pipeline` compares the weight pipeline on separate host devices with the prediction
// of the simulation of `wsync bench scale`, given the time of each stage alone. How to read the
// table, and limits: deploy/guides/benchmark.md.
//
// Over links of given rates (paced_device.h), transfers take time but no core, as in the clusters
// of `scale`. Models then have at most 16 MiB in buffers of 512 KiB, so that a bucket takes 2 to 4
// ms. If cores copy, the cores are the link that all stages share. The mutual slowdown of the
// stages is then measured and included in the prediction (contention()). The prediction uses the
// stages alone of the same round, so it does not test the rates themselves.
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

inline constexpr double kPredictionTarget = 0.10;  // |predicted / measured - 1|, at most

struct HostPipelineRound {
  Taken h2d, broadcast, reload;
  Taken together;    // the three stages at the same time on separate buffers; not over links
  Taken hand_overs;  // a whole update of almost no bytes
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
  Spread contention;              // spread of contention()
  Spread two_ratio, three_ratio;  // predicted / measured in each round
  std::uint64_t checked_bytes = 0;
  [[nodiscard]] bool met() const noexcept;
};

struct PipelineBenchOptions {
  std::vector<HostPipelineOptions> cases;
  std::uint64_t bytes = 256ULL << 20U;       // bytes of the model if cores copy
  std::uint64_t buffer_bytes = 4ULL << 20U;  // buffer size if cores copy
  unsigned rounds = 15;
};

struct PipelineBenchResult {
  Machine machine;
  PipelineBenchOptions options;
  std::vector<HostPipelineCase> cases;
  double others_busy = 0;
  double stolen = 0;
};

// Seconds per hand-over. An update of almost no bytes in two stages is a chain of hand-overs: one
// H2D, as many broadcasts as devices in each round, and the last reload.
[[nodiscard]] double hand_over_s(const Taken& hand_overs, std::uint64_t buckets,
                                 std::uint32_t devices);

// Ratio of the processor time of the three stages at the same time to their processor time one
// after the other. It shows how much they slow each other down in caches and memory. At least 1.
[[nodiscard]] double contention(const HostPipelineRound& alone);

// Predicts a whole update in one form from the stages alone. Each device's copies, each engine's
// copies and the broadcasts are lanes, and all lanes share the cores.
//
// A lane has its speed from the measurement of its stage alone, without the time in which lanes of
// the same stage waited for cores. A bucket needs its processor time of the stage alone, multiplied
// by contention(). Copies begin one hand-over late. (For broadcasts, the measurement of the stage
// alone already includes it.) The number of cores is the real one, or, if there are at least as
// many lanes as cores, the number that the busiest stage obtained. Over links of given rates
// (options.rates), lanes neither wait for cores nor slow each other down.
//
// Errors as simulate_pipeline().
[[nodiscard]] Result<double> predict_update(const HostPipelineRound& alone,
                                            const HostPipelineOptions& options, std::uint32_t cores,
                                            Stages stages);

// "2 devices, copies by cores" or "2 devices, links 128MiB/256MiB/256MiB": bytes per second of H2D,
// broadcast and reload.
[[nodiscard]] std::string case_label(const HostPipelineOptions& options);

using OnPipelineProgress =
    std::function<void(std::string_view label, unsigned done, unsigned total)>;

// Measures all seven parts in each round, in an order that changes with each round. kCancelled on a
// signal. Errors of HostPipeline.
[[nodiscard]] Result<PipelineBenchResult> run_pipeline_bench(const PipelineBenchOptions& options,
                                                             const Interrupt& interrupt,
                                                             const OnPipelineProgress& on_progress);

}  // namespace wsync::bench
