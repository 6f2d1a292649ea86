// PartArrangement: which rank serves which bytes of a step, if some ranks are on other hosts than
// rank 0. Rank 0 serves what the ranks on its own host have, and each other rank the rest of its
// shards as a part of the version.
//
// A tensor does not become a part if it is small, if one of its cuts lies inside a word of the sums
// (8 bytes), or if it is cut along another dimension than its first one, so that a shard is not one
// range of bytes. Its shards are carried: they travel to rank 0, which serves them.
//
// Pure; one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/base/error.h"
#include "shared/control/rank_messages.h"
#include "shared/weights/parts.h"
#include "trainer_side/publish/gathered_source.h"
#include "trainer_side/publish/parted_version.h"

namespace wsync::plugin {

class PartArrangement {
 public:
  // What each rank on another host holds, in the order of its RankShards.
  using Described = std::map<std::uint32_t, const std::vector<publish::RankTensor>*>;

  // kInvalidInput, with tensor and rank, if the shards that one rank carries have more than
  // limits::kCarriedBytes. Otherwise as Parts and BucketPlan.
  [[nodiscard]] static Result<PartArrangement> make(const publish::GatheredSource& source,
                                                    const Described& described, std::uint64_t step,
                                                    std::uint64_t bucket_bytes);

  // What is asked of each rank that has a part or carries shards.
  [[nodiscard]] const std::map<std::uint32_t, control::PartWanted>& orders() const noexcept {
    return orders_;
  }
  // Takes the answer of a rank that was asked. kRefused if it has failed; kInvalidInput if it is
  // not the answer to what was asked.
  [[nodiscard]] Result<> take(std::uint32_t rank, control::PartSummed answer);
  // Gives the source what the answers of all ranks that were asked have. The carried bytes live as
  // long as this object.
  void apply(publish::GatheredSource& source) const;
  // Owners are of the ranks with a part, in the order of the parts.
  [[nodiscard]] const std::vector<std::uint32_t>& part_ranks() const noexcept {
    return part_ranks_;
  }
  // Without owners.
  [[nodiscard]] publish::PartedVersion::Content content() const;

 private:
  struct Carried {
    publish::GatheredSource::RemoteShard shard;
    std::uint32_t tensor = 0;  // index in the shards of the rank
  };
  PartArrangement() = default;

  std::uint64_t step_ = 0;
  Parts parts_;
  std::shared_ptr<const BucketPlan> plan_;
  std::shared_ptr<const LeafTable> leaves_;
  std::vector<std::uint32_t> part_ranks_;  // of parts 1, 2, ...
  std::vector<Carried> carried_;
  std::map<std::uint32_t, control::PartWanted> orders_;   // by rank
  std::map<std::uint32_t, control::PartSummed> answers_;  // by rank
};

}  // namespace wsync::plugin
