// What has come of a version whose buckets all came as changes from one held version, or with which
// its trainer has sent the patch from the version before. A patch is made of it without comparing
// both versions.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/digest.h"
#include "shared/base/sealed_memory.h"
#include "shared/weights/version.h"

namespace wsync::staging {

struct ReceivedChanges {
  Version base;
  // One for each bucket of the plan: leaf changes (shared/weights/patch/leaf_changes.h) that were
  // read and applied, and whose result was proven.
  std::vector<std::shared_ptr<const Bytes>> buckets;
  // The patch that its trainer has made while it copied the weights, or null. It was not read yet,
  // except for the content from which it leads. `base` and `buckets` are empty then.
  std::shared_ptr<const SealedMemory> patch;
  Digest patch_base;
};

}  // namespace wsync::staging
