// PreparedVersion: what a rank has of a version before it is loaded: the layout, the load plan and,
// on unified devices, the mapped arena.
// Preparer creates it from a Prepare message.
//
// Thread: confined to the thread that serves the link.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/engine_link/layer_memory.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/shared_memory.h"
#include "shared/weights/manifest.h"

namespace wsync::engine {

// Data derived from a layout and the rank's tensors. Many versions share it.
struct EngineLayout {
  Digest digest;
  std::uint64_t bucket_bytes = 0;
  reload::LoadPlan plan;
  std::shared_ptr<const Manifest> manifest;  // null for a rank that takes no patches
  std::vector<std::vector<std::uint32_t>>
      layers;                           // the rank's tensors of each layer, in manifest order
  std::vector<std::uint32_t> layer_of;  // of each of the rank's tensors: index into `layers`
  // EngineDescription::any_layout: the rank's tensors, which are those of the manifest.
  std::vector<control::EngineTensor> tensors;
  // On a GPU, of a rank that does not take pieces: where a load puts the tensors together.
  LayerPlaces places;
  // Returns kInvalidInput if the rank's tensors do not fit the manifest, or kRefused if one of them
  // is too large to be put together on a GPU.
  [[nodiscard]] static Result<std::shared_ptr<const EngineLayout>> make(
      const Manifest& manifest, std::uint64_t bucket_bytes, const EngineDescription& description);
};

// The layout that the message carries. Returns kDigestMismatch if it is not the one that the
// message announces; otherwise errors as Manifest::decode().
[[nodiscard]] Result<Manifest> layout_in(const control::Prepare& message);

// The arena of a version, mapped read-only into this process. The lease is held only while the
// bytes are read (acquire() to release()). A rank that hangs at any other time therefore occupies
// no arena.
class MappedVersion {
 public:
  // Verifies the header, maps the arena and populates its pages. Holds the lease when it returns.
  // `fd` and `kept` are borrowed for the call. Returns kRefused if the arena has fewer than
  // `data_bytes`; otherwise errors as ArenaView::open().
  [[nodiscard]] static Result<MappedVersion> open(int fd, const ArenaExpectation& expected,
                                                  std::uint64_t data_bytes, KeptMappings& kept);
  // Takes the lease again. Returns kRefused if the arena has been reused for another version, which
  // the sidecar prevents while the version may be loaded.
  [[nodiscard]] Result<> acquire();
  void release() noexcept;
  // Must be read only with the lease.
  [[nodiscard]] std::span<const std::byte> data() const noexcept;

 private:
  MappedVersion() = default;
  std::optional<ArenaView> view_;
  MappedRegion without_lease_;  // planted fault only
};

struct PreparedVersion {
  Version version;
  std::shared_ptr<const EngineLayout> layout;
  std::optional<MappedVersion> arena;  // unified devices; without its lease
};

// Handles Prepare messages. It keeps the last layout, which later messages refer to by its digest.
class Preparer {
 public:
  explicit Preparer(const EngineDescription& description) : description_(&description) {}
  // Checks the message, makes the load plan, and maps the arena of `fd` (-1 if versions come in
  // buckets). Returns kInvalidInput, kNotFound for a layout that was never sent, kRefused for a
  // version that cannot be adopted; otherwise errors of MappedVersion::open().
  [[nodiscard]] Result<std::unique_ptr<PreparedVersion>> prepare(const control::Prepare& message,
                                                                 int fd);
  // Gives up the mappings that are kept for later versions. Those of prepared versions stay.
  void forget_arenas() { kept_.take_all().clear(); }

 private:
  [[nodiscard]] Result<std::shared_ptr<const EngineLayout>> layout_of(
      const control::Prepare& message);
  const EngineDescription* description_;
  std::shared_ptr<const EngineLayout> layout_;
  Digest manifest_digest_;
  std::optional<Manifest> manifest_;
  KeptMappings kept_;
};

}  // namespace wsync::engine
