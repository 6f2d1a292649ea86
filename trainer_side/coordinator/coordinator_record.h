// CoordinatorRecord: the state that a coordinator keeps in its decision store. It is written as a
// whole and durably before any of it is sent to a sidecar. A restarted coordinator begins from it.
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

// Maximum size of an encoded record: every list at its limit.
inline constexpr std::uint64_t kCoordinatorRecordBytesMax = 1 * limits::kMiB;

struct CoordinatorRecord {
  control::Fence fence;      // the newest claim, with the fleet's id
  std::uint64_t number = 0;  // of the newest decision under that fence; 0 = none yet
  // The fields up to `content` describe the newest decision of all, which may be that of an earlier
  // coordinator.
  control::Decision origin;
  control::DecisionKind kind = control::DecisionKind::kSwitch;
  Version target;
  Digest content;  // content digest of the target; zero = unknown
  std::vector<Version> withdrawn;
  std::vector<std::string> members;  // names of sidecars that have joined and not left
  friend bool operator==(const CoordinatorRecord&, const CoordinatorRecord&) = default;
};

// The encoding ends with a digest.
[[nodiscard]] Bytes encode(const CoordinatorRecord& record);
// Returns kInvalidInput, with one sentence, unless the bytes are exactly the output of encode().
[[nodiscard]] Result<CoordinatorRecord> decode_coordinator_record(std::span<const std::byte> bytes);

}  // namespace wsync::coordinator
