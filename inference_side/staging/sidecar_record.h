// The state that a sidecar keeps on disk. It is written as a whole and durably before any part of
// it is applied. Pure; the agent writes the bytes (shared/base/record_file.h).
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
  // The highest fence seen, with the id of the fleet. Messages under a lower fence, or of another
  // fleet, change nothing.
  control::Fence fence;
  control::Decision decision;  // the newest one that was stored
  control::Decision origin;    // of its target (see control::Decide)
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;  // of that decision
  Digest content;  // of the target; zero = unknown
  std::vector<Version> withdrawn;
  friend bool operator==(const SidecarRecord&, const SidecarRecord&) = default;
};

// The bytes of the record, with a digest at their end.
[[nodiscard]] Bytes encode(const SidecarRecord& record);
// Returns kInvalidInput unless the bytes are exactly the output of encode().
[[nodiscard]] Result<SidecarRecord> decode_record(std::span<const std::byte> bytes);

}  // namespace wsync::staging
