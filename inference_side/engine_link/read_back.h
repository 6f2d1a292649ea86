// ReadBack: one read-back of a rank's weights for `wsync verify`. The digests of all tensors are
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

// The location of the bytes of a rank's tensors. All borrowed.
struct HeldWeights {
  const EngineDescription* description = nullptr;
  Engine* engine = nullptr;         // source of the tensors with TakeMode::kWhole and kBorrow
  DeviceWeights* on_gpu = nullptr;  // null: in host memory
  // TakeMode::kAdopt: what the engine serves from; null: nothing.
  const PreparedVersion* adopted = nullptr;
  // The layout of the active version; null: nothing was loaded.
  const EngineLayout* layout = nullptr;

  // The rank's tensors. Returns kRefused if they depend on the version and nothing was loaded.
  [[nodiscard]] Result<std::size_t> tensor_count() const;
  [[nodiscard]] const control::EngineTensor& tensor(std::size_t index) const;
};

class ReadBack {
 public:
  // Answers `request` with the digests of `version`, which the rank holds.
  ReadBack(control::Envelope request, const Version& version)
      : request_(std::move(request)), reply_{.version = version} {}

  [[nodiscard]] const control::Envelope& request() const noexcept { return request_; }
  [[nodiscard]] const Version& version() const noexcept { return reply_.version; }
  // Reads one more tensor, or a batch of tensors on a GPU. Returns true if nothing remains to be
  // read. Returns errors of the engine or the device, and kRefused if nothing was adopted; the
  // read-back has then ended.
  [[nodiscard]] Result<bool> read_some(const HeldWeights& weights);
  // The answer: the digests, and with is_unreadable the reason why tensors have none, because a
  // cast has made them unreadable or the engine cannot return them; or no digest and the error of
  // `outcome`.
  [[nodiscard]] control::Digests finish(const Result<>& outcome) &&;

 private:
  control::Envelope request_;
  control::Digests reply_;
  std::size_t next_ = 0;                 // tensor
  std::vector<std::string> unreadable_;  // a sentence for each
};

}  // namespace wsync::engine
