// Engine: what wsync requires of an inference engine, for one rank of a replica. EngineLink
// (engine_link.h) calls it when the sidecar commands it. The C API (<wsync/engine.h>) is this
// interface with function pointers.
//
// Thread: every method is called on the thread that serves the link, one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/control/messages.h"
#include "shared/device/device.h"
#include "shared/weights/dtype.h"
#include "shared/weights/version.h"

namespace wsync::engine {

// A tensor of this rank and, for TakeMode::kPieces, the location of its bytes.
struct RankTensor {
  control::EngineTensor description;
  // kPieces: the rank's own part of the tensor, dense and row-major, with exactly the size that its
  // shape, dtype and ranges require. Borrowed: it must stay in place while the link exists. With a
  // `gpu` these are addresses of that GPU inside one allocation, which the host never reads or
  // writes. Other modes: empty.
  std::span<std::byte> destination;
  // The dtype of the elements in `destination`, if it is another one than in the version: each
  // element is then converted while it is copied (destination.h), and `destination` has their size.
  // kPieces in host memory only.
  std::optional<DType> held_as;
};

// Tensors that have the same memory, as indices; a list of two or more for each such memory.
using SameMemory = std::vector<std::vector<std::uint32_t>>;

// The identity of this rank, and the part of the manifest that it loads. Fixed while the link
// exists.
struct EngineDescription {
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  bool leader = true;
  // The last rank is the controller of the replica: it leads, and takes no tensor.
  bool has_controller = false;
  std::uint32_t device = 0;  // index of the sidecar's device
  control::TakeMode take = control::TakeMode::kPieces;
  // The rank takes all tensors of a version as a whole, whatever the layout; `tensors` is empty.
  // Only kAdopt and kBorrow.
  bool any_layout = false;
  // kWhole and kBorrow, in host memory: a load may bring only the layers in which something has
  // changed, if the rank holds the version before. See Engine::load_layer().
  bool takes_changed_layers = false;
  // The engine serves weights without a version when it attaches; otherwise it waits for a load.
  bool serving = false;
  std::vector<RankTensor> tensors;
  // Of `tensors`; the link finds it when it is created and resumed (same_memory.h).
  SameMemory same_memory = {};
  // The device of kind kCuda in whose memory the rank takes its tensors; not kAdopt. Borrowed; it
  // must outlive the link. Null: in host memory.
  device::Device* gpu = nullptr;
};

// Whether the engine gets the staged bytes themselves, so that the library copies nothing. On a GPU
// a rank that borrows gets a copy of them.
[[nodiscard]] inline bool reads_in_place(const EngineDescription& description) noexcept {
  return control::maps_version(description.take) && description.gpu == nullptr;
}

// Whether the rank takes a patch in place of all bytes: it takes the layers that the patch changes,
// or patches can be written into its memory. There it holds its parts, in host memory or on a GPU,
// as they are in the version. Two tensors of one memory would be patched twice, and a
// patch does not tell whether both are equal afterwards.
[[nodiscard]] inline bool takes_patches(const EngineDescription& description) noexcept {
  if (description.takes_changed_layers) return true;
  if (description.take != control::TakeMode::kPieces || !description.same_memory.empty())
    return false;
  for (const RankTensor& tensor : description.tensors)
    if (tensor.held_as && *tensor.held_as != tensor.description.dtype) return false;
  return true;
}

// Whether the weights are where only the engine can read them (Engine::read_tensor()).
[[nodiscard]] inline bool is_held_by_engine(const EngineDescription& description) noexcept {
  return description.take == control::TakeMode::kWhole ||
         description.take == control::TakeMode::kBorrow;
}

// A tensor of a complete layer.
struct LayerTensor {
  // Index into EngineDescription::tensors; with `any_layout`, into the version's own tensors.
  std::uint32_t tensor = 0;
  std::span<const std::byte> bytes;
};

// What a pause is for.
struct PauseRequest {
  PauseMode mode = PauseMode::kAbort;
  std::uint32_t deadline_ms = 0;  // the sidecar resumes the old version after this time
  Version version;                // to be loaded; 0.0 = not known
  std::uint64_t bytes = 0;        // of the whole version; 0 = not known
  CachePolicy caches = CachePolicy::kEngine;
};

// When an engine answers a call: with its return, or later with EngineLink::report_loaded() or
// report_committed().
enum class Answer : std::uint8_t { kNow, kLater };

class Engine {
 public:
  virtual ~Engine() = default;

  // Leader only: stop serving at a step that all ranks agree on. Returns at once. Every rank then
  // calls report_paused() of its own link when it has stopped.
  [[nodiscard]] virtual Result<> pause(const PauseRequest& request) = 0;
  // A version is staged, and its tensors are known. The engine still serves. An error refuses the
  // version.
  [[nodiscard]] virtual Result<> check_version(const Version& /*version*/) { return {}; }
  // The weights are about to change (unless kAdopt). From now on they belong to no version until
  // commit().
  [[nodiscard]] virtual Result<> load_begin(const Version& version) = 0;
  // A complete layer, in layer order; each layer once in a load, also if a patch changes nothing in
  // it. With `takes_changed_layers` a load by a patch has only the layers in which it changes
  // something, which may be none; the others are those of the version before. kPieces: the bytes
  // are at their destinations, and no work that writes there is in progress, on a GPU either.
  // kWhole: `bytes` are valid during the call. kAdopt: they are mapped read-only and valid until
  // another version has been committed. kBorrow: the same, until the commit of this version is
  // answered, or the load has failed. kLater (kAdopt, kBorrow): the engine has not used this layer
  // yet; the load ends with report_loaded(), once for all layers, and the bytes stay valid until
  // then. With a `gpu`, `bytes` are addresses of that GPU, on which all copies to them are
  // complete, and the engine's work on the GPU that reads them must be complete when they cease to
  // be valid: when the call returns (kWhole), or when the commit or the load is answered (kBorrow).
  [[nodiscard]] virtual Result<Answer> load_layer(const Version& version, std::uint32_t layer,
                                                  std::span<const LayerTensor> tensors) = 0;
  // With a `gpu`, after kLater: the load gets no further layer, although the last one is missing.
  // The sidecar is lost, has given the load up or has sent another one, or a bucket or a layer has
  // failed. Called once for such a load. report_loaded() is due as soon as the engine does not use
  // its layers any more, and the next load begins after it. An engine that never answers kLater on
  // a GPU needs no function for it.
  virtual void load_given_up(const Version& /*version*/) {}
  // Every byte of `version` is in place and verified. The rank stays paused. kLater:
  // report_committed() follows.
  [[nodiscard]] virtual Result<Answer> commit(const Version& version) = 0;
  // Leader only: start serving. A follower resumes when the leader's next step reaches it, and then
  // calls report_running(). This also cancels a pause() that has not taken effect yet.
  [[nodiscard]] virtual Result<> resume() = 0;
  // kWhole and kBorrow: copies bytes of a tensor, as the engine holds them, for `wsync verify` and
  // for scrubs, while the rank serves or is paused. They must be the bytes of the version. `offset`
  // and `out` are within the rank's part. Not called if why_unreadable() gives a reason.
  [[nodiscard]] virtual Result<> read_tensor(std::uint32_t tensor, std::uint64_t offset,
                                             std::span<std::byte> out) = 0;
  // kWhole and kBorrow: why the engine cannot return the checkpoint's bytes, in one sentence.
  // Empty: read_tensor() does. The answer does not change.
  [[nodiscard]] virtual std::string why_unreadable() const { return {}; }

  // ---- notifications of the link; an engine may ignore them ----

  virtual void on_attached() {}
  // The version can be loaded from now on.
  virtual void on_prepared(const Version& /*version*/) {}
  // One of the `of` buckets has been copied. The link sends the
  // bucket acknowledgement next.
  virtual void on_bucket(const Version& /*version*/, std::uint64_t /*bucket*/,
                         std::uint64_t /*of*/) {}
  // Every byte is in place; commit() follows if the sidecar finds that they are right.
  virtual void on_loaded(const Version& /*version*/, std::uint64_t /*bytes*/) {}
};

// Why the rank's weights cannot be read while it serves, in one sentence; empty: they can.
[[nodiscard]] inline std::string why_not_scrubbed(const EngineDescription& description,
                                                  const Engine& engine) {
  // A controller, for example: there is nothing to read.
  if (description.tensors.empty() && !description.any_layout) return {};
  if (is_held_by_engine(description)) return engine.why_unreadable();
  if (description.gpu != nullptr) return "its weights are in the memory of a GPU";
  for (const RankTensor& tensor : description.tensors)
    if (tensor.held_as && *tensor.held_as != tensor.description.dtype)
      return "it holds tensors in another dtype than the version";
  return {};
}

}  // namespace wsync::engine
