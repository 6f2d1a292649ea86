// What an engine holds of a version that is not loaded yet: its layout, its load plan, the expected
// checksum of each copy group and, on unified devices, the mapped arena with its lease. Thread:
// confined to the thread that serves the link.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inference_side/engine_link/engine.h"
#include "inference_side/reload/load_plan.h"
#include "shared/base/shared_memory.h"
#include "shared/weights/manifest.h"

namespace wsync::engine {

// Everything that follows from a layout and the rank's tensors; the same for many versions.
struct EngineLayout {
  Digest digest;
  std::uint64_t bucket_bytes = 0;
  reload::LoadPlan plan;
  std::vector<std::vector<std::uint32_t>>
      layers;                           // the rank's tensors of each layer, in manifest order
  std::vector<std::uint32_t> layer_of;  // of each of the rank's tensors: index into `layers`
  // kInvalidInput when the rank's tensors do not fit the manifest.
  [[nodiscard]] static Result<std::shared_ptr<const EngineLayout>> make(
      const Manifest& manifest, std::uint64_t bucket_bytes, const EngineDescription& description);
};

// The arena as this process sees it.
class MappedVersion {
 public:
  // Takes the lease, verifies, maps and populates; `fd` is borrowed. Errors as ArenaView::open().
  [[nodiscard]] static Result<MappedVersion> open(int fd, const ArenaExpectation& expected,
                                                  std::uint64_t data_bytes);
  [[nodiscard]] std::span<const std::byte> data() const noexcept;

 private:
  MappedVersion() = default;
  std::optional<ArenaView> view_;
  MappedRegion without_lease_;  // planted fault only
};

struct PreparedVersion {
  Version version;
  std::shared_ptr<const EngineLayout> layout;
  std::vector<std::uint64_t> checksums;  // of each copy group
  std::optional<MappedVersion> arena;    // unified devices
};

// Reads Prepare messages; remembers the last layouts, which later ones refer to by digest.
class Preparer {
 public:
  explicit Preparer(const EngineDescription& description) : description_(&description) {}
  // Checks the message, plans, and maps the arena of `fd` (unified devices; -1 on separate ones).
  // An adopting engine's arena is compared with its checksums here, while serving goes on.
  [[nodiscard]] Result<std::unique_ptr<PreparedVersion>> prepare(const control::Prepare& message,
                                                                 int fd);

 private:
  [[nodiscard]] Result<std::shared_ptr<const EngineLayout>> layout_of(
      const control::Prepare& message);
  const EngineDescription* description_;
  std::shared_ptr<const EngineLayout> layout_;
  Digest manifest_digest_;
  std::optional<Manifest> manifest_;
};

}  // namespace wsync::engine
