// What a sidecar keeps on disc: written together, durably, before any of it is acted on.
// Pure; the agent writes the bytes (temporary file, fsync, rename, fsync of the directory).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/control/messages.h"

namespace wsync::staging {

struct SidecarRecord {
  // Highest seen, with the fleet's id; nothing below it and nothing of another fleet changes
  // anything.
  control::Fence fence;
  control::Decision decision;  // newest taken
  control::Decision origin;    // of its target (see control::Decide)
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;  // of that decision
  Digest content;  // of the target; zero = not told
  std::vector<Version> withdrawn;
  friend bool operator==(const SidecarRecord&, const SidecarRecord&) = default;
};

// With a digest at its end.
[[nodiscard]] Bytes encode(const SidecarRecord& record);
// kInvalidInput when the bytes are not exactly what encode() made.
[[nodiscard]] Result<SidecarRecord> decode_record(std::span<const std::byte> bytes);

}  // namespace wsync::staging
