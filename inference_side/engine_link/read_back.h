// ReadBack: one reading of a rank's weights for `wsync verify`. The digests of all tensors are
// computed a few at a time, so that the engine and its sidecar never wait for all of them.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <cstdint>
#include <vector>

#include "inference_side/engine_link/device_weights.h"
#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/prepared_version.h"
#include "shared/base/digest.h"
#include "shared/control/messages.h"

namespace wsync::engine {

// Where the bytes of a rank's tensors are. All borrowed.
struct HeldWeights {
  const EngineDescription* description = nullptr;
  Engine* engine = nullptr;                  // asked for the tensors with TakeMode::kWhole
  DeviceWeights* on_gpu = nullptr;           // null: in host memory
  const PreparedVersion* adopted = nullptr;  // what TakeMode::kAdopt serves from; null: nothing
};

class ReadBack {
 public:
  // Answers `request` with the digests of `version`, which the rank holds.
  ReadBack(control::Envelope request, const Version& version)
      : request_(std::move(request)), reply_{.version = version, .tensors = {}, .failure = {}} {}

  [[nodiscard]] const control::Envelope& request() const noexcept { return request_; }
  [[nodiscard]] const Version& version() const noexcept { return reply_.version; }
  // Reads one tensor more, or a batch of them on a GPU. True when nothing is left to read. Errors
  // of the engine or the device, and kRefused where nothing was adopted: the reading is then over.
  [[nodiscard]] Result<bool> read_some(const HeldWeights& weights);
  // The answer: every digest, or `outcome`'s error and none.
  [[nodiscard]] control::Digests finish(const Result<>& outcome) &&;

 private:
  control::Envelope request_;
  control::Digests reply_;
};

}  // namespace wsync::engine
