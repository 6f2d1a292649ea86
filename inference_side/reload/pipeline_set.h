// PipelineSet: the weight pipelines of one run, as a pure state machine. There are two forms.
//
//   broadcast: one pipeline over all devices. Each byte of the version crosses one link, and is
//     broadcast to all devices.
//   own links: one pipeline for each device that has engines. Each device takes what its engines
//     need by its own link, straight into its IPC buffers, and does not wait for the others. A byte
//     that several devices need crosses the link of each.
//
// The second one takes less time where devices need different parts of the version, as the ranks of
// a replica do.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/kinds.h"

namespace wsync::reload {

// Whether own links take less time than a broadcast. `links`: for each link, the bytes that all
// devices behind it need. A broadcast brings an equal share of the version over each link, and
// reaches 0.65 of the links' rate where own links reach 0.90: both are predictions for eight GPUs
// of a model of a terabyte, and none of them was measured.
[[nodiscard]] bool own_links_pay(std::uint64_t version_bytes, std::span<const std::uint64_t> links);

// Thread: confined to its driver.
class PipelineSet {
 public:
  // Errors as WeightPipeline::create. With `own_links` every device has a
  // pipeline of the form `direct`, whatever the shape says.
  [[nodiscard]] static Result<PipelineSet> create(PipelineShape shape, StageChoice choice,
                                                  bool own_links);

  // As WeightPipeline::step, with the devices of the group. With own links, the loss of the last
  // engine of one device ends the pipeline of that device alone.
  [[nodiscard]] std::vector<Command> step(const Event& event, TimePoint at);

  [[nodiscard]] PipelinePhase phase() const noexcept { return phase_; }
  // Why the run failed; only in kFailed.
  [[nodiscard]] const Error& error() const { return *error_; }
  [[nodiscard]] bool own_links() const noexcept { return own_links_; }
  [[nodiscard]] std::vector<WeightPipeline::Outstanding> outstanding() const;
  // Buckets that every engine has acknowledged.
  [[nodiscard]] std::uint64_t buckets_done() const noexcept;
  [[nodiscard]] std::uint64_t stray_bucket_acks() const noexcept;
  [[nodiscard]] std::uint64_t overlapped_rounds() const noexcept;
  [[nodiscard]] const StageChoice& choice() const noexcept;

 private:
  struct Part {
    DeviceIndex device{};  // with own links
    std::vector<EngineId> engines;
    WeightPipeline pipeline;
    // Copies that have not ended. They read the version, so the run ends behind them, also where
    // nobody needs them any more.
    std::uint64_t copying = 0;
    bool is_given_up = false;  // all engines are lost
  };
  PipelineSet(bool own_links, StageChoice choice) : own_links_(own_links), choice_(choice) {}
  void step(Part& part, const Event& event, TimePoint at, std::vector<Command>& commands);
  [[nodiscard]] Part* part_of(const Event& event);
  void settle();

  bool own_links_;
  StageChoice choice_;  // where no pipeline chooses
  std::vector<Part> parts_;
  PipelinePhase phase_ = PipelinePhase::kIdle;
  std::optional<Error> error_;
};

}  // namespace wsync::reload
