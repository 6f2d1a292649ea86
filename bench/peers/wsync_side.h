// The same job by wsync, as its users run it: the trainer library in the trainer's process, a
// sidecar, and engines with weights of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/harness/child.h"
#include "bench/peers/model_source.h"
#include "bench/sync/measured_fleet.h"
#include "shared/base/bytes.h"
#include "trainer_side/plugin/trainer.h"

namespace wsync::bench {

struct WsyncSideOptions {
  std::string executable;  // wsync
  std::string directory;   // of mode 0700, empty; the owner removes it
  std::string checkpoint;  // names and shapes for the engines
  unsigned engines = 1;
};

// Thread: one; the trainer has its own.
class WsyncSide {
 public:
  // The calling process becomes the trainer: it reads every model of the source into its memory.
  // `source` and `interrupt` are borrowed. Errors as MeasuredFleet::start() and
  // plugin::Trainer::start().
  [[nodiscard]] static Result<std::unique_ptr<WsyncSide>> start(const WsyncSideOptions& options,
                                                                const ModelSource& source,
                                                                const Interrupt& interrupt);
  struct Published {
    double seconds = 0;  // from just before the publish began until every engine had committed
    double staged_seconds = 0;  // of it, while engines served
    double paused_seconds = 0;  // of it, longest of the engines
  };
  // Publishes a model and waits until every engine has committed it. The version's content digest
  // is the model's own, or kDigestMismatch. kRefused with the reason when it did not come to all.
  [[nodiscard]] Result<Published> transfer(std::size_t model);
  // Reads back what engines hold (as `wsync verify` does): kDigestMismatch unless all of it
  // matches.
  [[nodiscard]] Result<> verify() { return fleet_->verify(); }

 private:
  WsyncSide(const ModelSource& source, const Interrupt& interrupt)
      : source_(source), interrupt_(interrupt) {}
  [[nodiscard]] Result<> load();

  const ModelSource& source_;
  const Interrupt& interrupt_;
  std::unique_ptr<cli::ChildProcesses> children_;  // the fleet's processes end first
  unsigned engines_ = 0;
  std::vector<Bytes> models_;
  std::vector<plugin::RankTensors> tensors_;  // of each model; they point into it
  std::vector<Digest> contents_;              // of each model, as versions have it
  std::unique_ptr<plugin::Trainer> trainer_;  // before what it reads
  std::unique_ptr<MeasuredFleet> fleet_;
  std::uint64_t step_ = 0;
};

}  // namespace wsync::bench
