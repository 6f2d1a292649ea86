// VersionNames: which step the next snapshot is named after. No name ever stands for two different
// byte strings, also across restarts of the trainer.
// Thread: one.
#pragma once

#include <cstdint>

#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::publish {

class VersionNames {
 public:
  // A version that this fleet knows, of whatever epoch.
  void note_seen(const Version& version) noexcept;
  // A snapshot has this step under the present epoch.
  void note_used(std::uint64_t step) noexcept;
  // Another epoch has been claimed: no step of it is used.
  void begin_epoch() noexcept { used_step_ = 0; }
  // The next name under `epoch`: one step above all that are known, or `step` when it is not 0.
  // kInvalidInput when that step was used or is no step.
  [[nodiscard]] Result<Version> next(std::uint32_t epoch, std::uint64_t step) const;

 private:
  std::uint64_t seen_step_ = 0;  // the highest of any version
  std::uint64_t used_step_ = 0;  // the highest under this epoch
};

}  // namespace wsync::publish
