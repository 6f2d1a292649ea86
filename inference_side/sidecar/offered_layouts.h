// OfferedLayouts: the layouts that a trainer has offered to this sidecar. It checks whether an
// offer fits the engines and the memory of this host.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "inference_side/sidecar/engine_registry.h"
#include "inference_side/staging/sidecar.h"
#include "inference_side/staging/store.h"
#include "shared/base/digest.h"
#include "shared/base/error.h"
#include "shared/base/shared_bytes.h"
#include "shared/control/messages.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/leaf_table.h"
#include "shared/weights/manifest.h"
#include "shared/weights/patch/layout.h"

namespace wsync::agent {

// Decodes a layout from a message. Returns kInvalidInput, with the reason, if it is invalid.
[[nodiscard]] Result<Manifest> read_layout(std::span<const std::byte> layout);

struct OfferedLayout {
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const BucketPlan> plan;   // buckets of the latest offer
  std::shared_ptr<const LeafTable> leaves;  // in them
  std::shared_ptr<const patch::Layout> blocks;
  // How the latest offer travels: the same, or cut between its parts as well.
  std::shared_ptr<const BucketPlan> transfer;
  std::shared_ptr<const LeafTable> transfer_leaves;
  SharedBytes parts;             // as announced; empty: one part
  std::uint32_t part_count = 1;  // with the first
};

class OfferedLayouts {
 public:
  // Answers the state machine: whether the offer fits the engines, and whether the memory is
  // sufficient for `versions_held` versions of it. An offer may omit its layout if an earlier one
  // contained it.
  [[nodiscard]] staging::LayoutChecked check(const staging::CheckLayout& command,
                                             const EngineRegistry& registry,
                                             const staging::Store& store,
                                             std::uint64_t versions_held);
  // The layout of an offer that was checked and fits.
  [[nodiscard]] const OfferedLayout& at(const Digest& layout) const { return layouts_.at(layout); }

 private:
  [[nodiscard]] static Result<> cut_transfer(OfferedLayout& known,
                                             const control::Announce& announce);
  [[nodiscard]] Result<const OfferedLayout*> find_or_read(const control::Announce& announce);
  std::map<Digest, OfferedLayout> layouts_;
};

}  // namespace wsync::agent
