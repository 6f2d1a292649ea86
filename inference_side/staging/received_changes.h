// What has come of a version whose buckets all came as changes from one held version. A patch is
// made of it without comparing both versions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/weights/version.h"

namespace wsync::staging {

struct ReceivedChanges {
  Version base;
  // One for each bucket of the plan: leaf changes (shared/weights/patch/leaf_changes.h) that were
  // read and applied, and whose result was proven.
  std::vector<std::shared_ptr<const Bytes>> buckets;
};

}  // namespace wsync::staging
