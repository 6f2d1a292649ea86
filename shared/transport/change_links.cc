#include "shared/transport/change_links.h"

#include <iterator>
#include <utility>

namespace wsync::transport {
namespace {

// Roughly what a node of the map, its pointer and the object of the bytes take.
constexpr std::uint64_t kNameBytes = 128;

std::uint64_t size_of(const ChangeLinks::Changes& changes) { return kNameBytes + changes->size(); }

}  // namespace

void ChangeLinks::set_bytes_max(std::uint64_t bytes) {
  bytes_max_ = bytes;
  drop_what_is_too_much();
}

void ChangeLinks::keep(const Version& from, const Version& to, std::uint64_t bucket,
                       Changes changes) {
  Changes& kept = links_[from][to][bucket];
  if (kept) bytes_ -= size_of(kept);
  bytes_ += size_of(changes);
  kept = std::move(changes);
  drop_what_is_too_much();
}

ChangeLinks::Changes ChangeLinks::find(const Version& from, const Version& to,
                                       std::uint64_t bucket) const {
  const auto targets = links_.find(from);
  if (targets == links_.end()) return nullptr;
  const auto buckets = targets->second.find(to);
  if (buckets == targets->second.end()) return nullptr;
  const auto found = buckets->second.find(bucket);
  return found == buckets->second.end() ? nullptr : found->second;
}

std::vector<Version> ChangeLinks::bases_of(const Version& to) const {
  std::vector<Version> bases;
  for (const auto& [from, targets] : links_)
    if (targets.contains(to)) bases.push_back(from);
  return bases;
}

std::vector<Version> ChangeLinks::targets_of(const Version& from) const {
  std::vector<Version> versions;
  const auto targets = links_.find(from);
  if (targets == links_.end()) return versions;
  for (const auto& [to, buckets] : targets->second) versions.push_back(to);
  return versions;
}

void ChangeLinks::drop(const Buckets& buckets) {
  for (const auto& [bucket, changes] : buckets) bytes_ -= size_of(changes);
}

void ChangeLinks::drop_to(const Version& to) {
  for (auto from = links_.begin(); from != links_.end();) {
    if (const auto found = from->second.find(to); found != from->second.end()) {
      drop(found->second);
      from->second.erase(found);
    }
    from = from->second.empty() ? links_.erase(from) : std::next(from);
  }
}

void ChangeLinks::drop_from(const Version& from) {
  const auto found = links_.find(from);
  if (found == links_.end()) return;
  for (const auto& [to, buckets] : found->second) drop(buckets);
  links_.erase(found);
}

void ChangeLinks::clear() {
  links_.clear();
  bytes_ = 0;
}

void ChangeLinks::drop_what_is_too_much() {
  while (links_.size() > limits::kStreamLinkBases) drop_from(links_.begin()->first);
  // Bucket by bucket: one that has no link travels in full, and the others do not.
  while (bytes_ > bytes_max_) {
    Targets& targets = links_.begin()->second;
    Buckets& buckets = targets.begin()->second;
    bytes_ -= size_of(buckets.begin()->second);
    buckets.erase(buckets.begin());
    if (buckets.empty()) targets.erase(targets.begin());
    if (targets.empty()) links_.erase(links_.begin());
  }
}

}  // namespace wsync::transport
