// CoordinatorRecord: what a coordinator keeps in its decision store, written together and durably
// before any of it is told to a sidecar. A coordinator that starts anew begins from it.
// Pure; decision_store.h says where it is kept.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/units.h"
#include "shared/control/messages.h"

namespace wsync::coordinator {

// The most bytes that an encoded record can have: every list at its limit.
inline constexpr std::uint64_t kCoordinatorRecordBytesMax = 1 * limits::kMiB;

struct CoordinatorRecord {
  control::Fence fence;      // the newest claim, with the fleet's id
  std::uint64_t number = 0;  // of the newest decision under that fence; 0 = none yet
  // Of the newest decision of all, which an earlier coordinator may have taken.
  control::Decision origin;
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;
  Digest content;  // of the target; zero = not known
  std::vector<Version> withdrawn;
  std::vector<std::string> members;  // names of the sidecars that have joined and have not left
  friend bool operator==(const CoordinatorRecord&, const CoordinatorRecord&) = default;
};

// With a digest at its end.
[[nodiscard]] Bytes encode(const CoordinatorRecord& record);
// kInvalidInput, in one sentence, when the bytes are not exactly what encode() made.
[[nodiscard]] Result<CoordinatorRecord> decode_coordinator_record(std::span<const std::byte> bytes);

}  // namespace wsync::coordinator
