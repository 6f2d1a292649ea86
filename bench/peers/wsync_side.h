// The same job by wsync in its usual form: the trainer library in the trainer's process, a sidecar,
// and engines with their own weights.
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
  std::string directory;   // mode 0700, empty; the owner removes it
  std::string checkpoint;  // names and shapes for the engines
  unsigned engines = 1;
};

// Thread: one. The trainer library has its own.
class WsyncSide {
 public:
  // The calling process becomes the trainer: it reads every model of the source into its memory.
  // `source` and `interrupt` are borrowed. Errors as MeasuredFleet::start() and
  // plugin::Trainer::start().
  [[nodiscard]] static Result<std::unique_ptr<WsyncSide>> start(const WsyncSideOptions& options,
                                                                const ModelSource& source,
                                                                const Interrupt& interrupt);
  struct Published {
    double seconds = 0;         // from just before the publish until every engine had committed
    double staged_seconds = 0;  // part of it during which engines served
    double paused_seconds = 0;  // part of it during which they paused; longest of the engines
  };
  // Publishes a model and waits until every engine has committed it. kDigestMismatch unless the
  // version's content digest equals the model's. kRefused, with the reason, if it did not reach all
  // engines.
  [[nodiscard]] Result<Published> transfer(std::size_t model);
  // Reads back the engines' weights as `wsync verify` does. kDigestMismatch unless all bytes match.
  [[nodiscard]] Result<> verify() { return fleet_->verify(); }

 private:
  WsyncSide(const ModelSource& source, const Interrupt& interrupt)
      : source_(source), interrupt_(interrupt) {}
  [[nodiscard]] Result<> load();

  const ModelSource& source_;
  const Interrupt& interrupt_;
  std::unique_ptr<cli::ChildProcesses> children_;  // outlives the fleet's processes
  unsigned engines_ = 0;
  std::vector<Bytes> models_;
  std::vector<plugin::RankTensors> tensors_;  // one per model; they point into it
  std::vector<Digest> contents_;              // one per model, as in versions
  std::unique_ptr<plugin::Trainer> trainer_;  // destroyed before the data that it reads
  std::unique_ptr<MeasuredFleet> fleet_;
  std::uint64_t step_ = 0;
};

}  // namespace wsync::bench
