// ChangeLinks: leaf changes of single buckets (shared/weights/patch/leaf_changes.h) that a source
// has made or received, each from one version to another one. A source keeps them for receivers
// that hold a version which the source does not offer any more.
//
// Not synchronised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "shared/base/bytes.h"
#include "shared/transport/limits.h"
#include "shared/weights/version.h"

namespace wsync::transport {

class ChangeLinks {
 public:
  using Changes = std::shared_ptr<const Bytes>;

  // Keeps at most so many bytes, and links from at most limits::kStreamLinkBases versions. Where
  // there are more, those from the lowest version go first, because a receiver that holds it has
  // been away for the longest time.
  void set_bytes_max(std::uint64_t bytes);
  [[nodiscard]] std::uint64_t bytes_max() const noexcept { return bytes_max_; }

  // Keeps the changes of a bucket, in place of those that are there. They may be dropped at once,
  // because of the limits.
  void keep(const Version& from, const Version& to, std::uint64_t bucket, Changes changes);
  // Returns nullptr if there are none.
  [[nodiscard]] Changes find(const Version& from, const Version& to, std::uint64_t bucket) const;
  // The versions that links to this one lead from, and those that links from this one lead to, in
  // ascending order.
  [[nodiscard]] std::vector<Version> bases_of(const Version& to) const;
  [[nodiscard]] std::vector<Version> targets_of(const Version& from) const;
  void drop_to(const Version& to);
  void drop_from(const Version& from);
  void clear();
  // Of all links, with what it takes to name them.
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  using Buckets = std::map<std::uint64_t, Changes>;
  using Targets = std::map<Version, Buckets>;

  void drop(const Buckets& buckets);
  void drop_what_is_too_much();

  std::map<Version, Targets> links_;  // by the version that they lead from; none is empty
  std::uint64_t bytes_ = 0;
  std::uint64_t bytes_max_ = 0;
};

}  // namespace wsync::transport
