// PartedVersion: what rank 0 of a trainer knows of a version of which ranks on other hosts serve
// parts (shared/weights/parts.h). Rank 0 has the sums of all bytes, and the bytes of part 0 alone.
//
// Immutable; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "shared/base/shared_bytes.h"
#include "shared/base/word_sum.h"
#include "shared/weights/bucket_plan.h"
#include "shared/weights/leaf_table.h"
#include "trainer_side/coordinator/coordinator_events.h"

namespace wsync::publish {

class PartedVersion {
 public:
  struct Content {
    std::uint64_t step = 0;
    SharedBytes parts;  // encoded
    // How it travels: the buckets of all parts, and their leaves.
    std::shared_ptr<const BucketPlan> plan;
    std::shared_ptr<const LeafTable> leaves;
    std::vector<coordinator::PartOwner> owners;  // of parts 1, 2, ...
    std::vector<std::uint32_t> ranks;            // likewise
  };
  // `on_released` is called once, on any thread, when nobody needs the version any more.
  PartedVersion(Content content, std::function<void()> on_released)
      : content_(std::move(content)), on_released_(std::move(on_released)) {}
  PartedVersion(const PartedVersion&) = delete;
  PartedVersion& operator=(const PartedVersion&) = delete;
  ~PartedVersion() { on_released_(); }

  [[nodiscard]] std::uint64_t step() const noexcept { return content_.step; }
  [[nodiscard]] const SharedBytes& parts() const noexcept { return content_.parts; }
  [[nodiscard]] const std::shared_ptr<const BucketPlan>& plan() const noexcept {
    return content_.plan;
  }
  [[nodiscard]] const std::shared_ptr<const LeafTable>& leaves() const noexcept {
    return content_.leaves;
  }
  [[nodiscard]] const std::vector<coordinator::PartOwner>& owners() const noexcept {
    return content_.owners;
  }
  [[nodiscard]] const std::vector<std::uint32_t>& ranks() const noexcept { return content_.ranks; }
  // Where the bytes of part 0 lie in the data of an arena: [offset, offset + bytes), in order.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, std::uint64_t>> own_ranges() const {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (std::size_t i = 0; i < content_.plan->bucket_count(); ++i)
      if (content_.plan->bucket_part(i) == 0)
        ranges.emplace_back(content_.plan->bucket_offset(i), content_.plan->bucket_size(i));
    return ranges;
  }

 private:
  Content content_;
  std::function<void()> on_released_;
};

}  // namespace wsync::publish
