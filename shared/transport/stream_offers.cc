#include "shared/transport/stream_offers.h"

#include <algorithm>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/planted.h"
#include "shared/transport/limits.h"
#include "shared/weights/patch/worth.h"

namespace wsync::transport {

static_assert(limits::kStreamLinksShare == patch::kPatchShareMax,
              "links need as much memory as a patch at most");

std::shared_ptr<Offered> StreamOffers::find(const Version& version) const {
  const auto found = offers_.find(version);
  return found == offers_.end() ? nullptr : found->second;
}

std::shared_ptr<Offered> StreamOffers::find_with_memory(const Version& version) const {
  auto offered = find(version);
  if (offered && !offered->offer.data.empty()) return offered;
  for (const Leaving& leaving : leaving_)
    if (version_of(*leaving.offered) == version) return leaving.offered;
  return offered;
}

void StreamOffers::offer(Offer offer, TimePoint at) {
  const Version version = offer.key.version;
  const auto before = find_with_memory(version);
  const bool is_same =
      before && before->offer.key == offer.key && before->offer.buckets == offer.buckets;
  if (!is_same && !planted("link_of_another_offer")) {
    drop_to(version);
    links_.drop_from(version);
  }
  const auto leaves_now = find(version);
  if (!is_same || !offer.data.empty())
    std::erase_if(leaving_,
                  [&](const Leaving& leaving) { return version_of(*leaving.offered) == version; });
  else if (leaves_now && !leaves_now->offer.data.empty() && first_place(version))
    leaving_.push_back({.offered = leaves_now, .until = at + hold_});
  offers_[version] = std::make_shared<Offered>(std::move(offer));
  limit_links();
}

// Of the largest model that is offered.
void StreamOffers::limit_links() {
  std::uint64_t model_bytes = 0;
  for (const auto& offered : offers_ | std::views::values) {
    std::uint64_t bytes = 0;
    for (const BucketWindow& bucket : offered->offer.buckets) bytes += bucket.bytes;
    model_bytes = std::max(model_bytes, bytes);
  }
  links_.set_bytes_max(limits::stream_links_bytes_max(model_bytes));
}

void StreamOffers::bucket_ready(const Version& version, std::uint64_t bucket, const Digest& digest,
                                Changes changes, std::span<const WordSum> sums) {
  const auto offered = find(version);
  if (!offered) return;
  offered->set_ready(bucket, digest, std::move(changes), sums);
  if (has_receivers_ && offered->has_changes_alone() && bucket < offered->changes.size() &&
      offered->changes[bucket])
    keep(offered->offer.base, version, bucket, offered->changes[bucket]);
}

// ---- links ----

// Links lead to higher versions only. So merging ends: each merged link leads further than either.
void StreamOffers::keep(const Version& from, const Version& to, std::uint64_t bucket,
                        const Changes& changes) {
  if (from >= to) return;
  links_.keep(from, to, bucket, changes);
  if (!links_.bases_of(from).empty()) to_merge_.insert({.version = from, .bucket = bucket});
  if (!links_.targets_of(to).empty()) to_merge_.insert({.version = to, .bucket = bucket});
}

std::optional<StreamOffers::Place> StreamOffers::first_place(const Version& version) const {
  const auto found = to_merge_.lower_bound({.version = version, .bucket = 0});
  if (found == to_merge_.end() || found->version != version) return std::nullopt;
  return *found;
}

void StreamOffers::forget_places(const Version& version) {
  while (const auto place = first_place(version)) to_merge_.erase(*place);
}

void StreamOffers::drop_to(const Version& version) {
  forget_places(version);
  links_.drop_to(version);
}

bool StreamOffers::withdraw(const Version& version, TimePoint at) {
  const auto found = offers_.find(version);
  if (found == offers_.end()) return false;
  // A receiver that has this version may still need what leads from it.
  const bool leaves = std::ranges::any_of(
      leaving_, [&](const Leaving& each) { return version_of(*each.offered) == version; });
  if (first_place(version) && !found->second->offer.data.empty())
    leaving_.push_back({.offered = found->second, .until = at + hold_});
  else if (!leaves && !planted("link_to_a_withdrawn_version"))
    drop_to(version);
  offers_.erase(found);
  return true;
}

bool StreamOffers::merge_leaving(TimePoint at) {
  while (!leaving_.empty()) {
    const Leaving& leaving = leaving_.front();
    const auto place = first_place(version_of(*leaving.offered));
    if (place && at <= leaving.until) {
      merge_over(*place);
      return true;
    }
    const Version& version = version_of(*leaving.offered);
    if (find(version))  // it is still offered
      forget_places(version);
    else
      drop_to(version);
    leaving_.pop_front();
  }
  return false;
}

bool StreamOffers::merge_idle() {
  if (to_merge_.empty()) return false;
  merge_over(Place(*to_merge_.begin()));
  return true;
}

void StreamOffers::merge_over(const Place& place) {
  to_merge_.erase(place);
  const auto middle = find_with_memory(place.version);
  if (!middle) return;
  for (const Version& to : links_.targets_of(place.version)) {
    const Changes second = links_.find(place.version, to, place.bucket);
    for (const Version& from : links_.bases_of(place.version)) {
      const Changes first = links_.find(from, place.version, place.bucket);
      if (first && second && !links_.find(from, to, place.bucket))
        (void)merge(from, *middle, to, place.bucket, first, second);
    }
  }
}

StreamOffers::Changes StreamOffers::merge(const Version& from, const Offered& middle,
                                          const Version& target, std::uint64_t bucket,
                                          const Changes& first, const Changes& second) {
  if (middle.offer.data.empty() || !middle.offer.blocks || !middle.offer.leaves ||
      !middle.ready[bucket])
    return nullptr;
  const bool is_backwards = planted("links_merged_backwards");
  const patch::Layout& layout = *middle.offer.blocks;
  const auto leaves = middle.offer.leaves->bucket(bucket);
  const auto merged = [&]() -> Result<Bytes> {
    const auto one =
        WSYNC_TRY(patch::read_leaf_changes(layout, leaves, is_backwards ? *second : *first));
    const auto two =
        WSYNC_TRY(patch::read_leaf_changes(layout, leaves, is_backwards ? *first : *second));
    return patch::merge_leaf_changes(layout, leaves, one, two, middle.offer.data);
  }();
  if (!merged) {
    log_warning(
        "what changes from version {} over {} to {} cannot be told of bucket {}, which is sent in "
        "full to who holds {}: {}",
        from.to_string(), version_of(middle).to_string(), target.to_string(), bucket,
        from.to_string(), merged.error().message());
    return nullptr;
  }
  auto changes = std::make_shared<const Bytes>(std::move(*merged));
  keep(from, target, bucket, changes);
  return changes;
}

StreamOffers::Changes StreamOffers::compare(const Offered& base, const Offered& target,
                                            std::uint64_t bucket, std::uint64_t max_bytes) {
  auto made = maker_.make(*target.offer.blocks, target.offer.leaves->bucket(bucket),
                          base.offer.data, target.offer.data, max_bytes);
  if (!made) return nullptr;
  auto changes = std::make_shared<const Bytes>(std::move(*made));
  keep(version_of(base), version_of(target), bucket, changes);
  return changes;
}

// What changes from `base` to the target, if that is known or can be compared.
StreamOffers::Changes StreamOffers::changes_between(const Offered& base, const Offered& target,
                                                    std::uint64_t bucket, std::uint64_t max_bytes) {
  if (target.has_changes_alone() && target.offer.base == version_of(base))
    return target.changes[bucket];
  if (Changes kept = links_.find(version_of(base), version_of(target), bucket)) return kept;
  return target.changes_from(base, bucket) ? compare(base, target, bucket, max_bytes) : nullptr;
}

// Over the newest version that a link leads to: the changes from it are the smallest.
StreamOffers::Changes StreamOffers::through_links(const Version& from, const Offered& target,
                                                  std::uint64_t bucket, std::uint64_t max_bytes) {
  for (const Version& over : links_.targets_of(from) | std::views::reverse) {
    const Changes first = links_.find(from, over, bucket);
    const auto middle = find_with_memory(over);
    if (!first || !middle) continue;
    if (const Changes second = changes_between(*middle, target, bucket, max_bytes))
      return merge(from, *middle, version_of(target), bucket, first, second);
  }
  return nullptr;
}

StreamOffers::Changes StreamOffers::changes(const Offered& target, const Frame& get) {
  has_receivers_ = true;
  const Version& version = version_of(target);
  if (target.has_changes_alone() &&
      (get.base == target.offer.base || planted("changes_sent_to_another_base"))) {
    const Changes& held = target.changes[get.bucket];
    return held && held->size() <= get.changes_max ? held : nullptr;
  }
  if (get.base.none() || get.base == version || get.bytes > limits::kStreamChangesBucketBytes)
    return nullptr;
  const std::uint64_t max_bytes =
      std::min(get.changes_max, limits::stream_changes_bytes_max(get.bytes));
  Changes found = links_.find(get.base, version, get.bucket);
  const auto base = found ? nullptr : find_with_memory(get.base);
  if (base) found = changes_between(*base, target, get.bucket, max_bytes);
  if (!found) found = through_links(get.base, target, get.bucket, max_bytes);
  return found && found->size() <= max_bytes ? found : nullptr;
}

// ---- versions that are held as their changes alone ----

std::shared_ptr<Offered> StreamOffers::base_of(const Offered& target, std::uint64_t bucket) const {
  if (!target.has_changes_alone() || !target.offer.blocks || !target.offer.leaves) return nullptr;
  auto base = find_with_memory(target.offer.base);
  const bool fits = base && !base->offer.data.empty() &&
                    base->offer.key.layout == target.offer.key.layout &&
                    bucket < base->offer.buckets.size() &&
                    base->offer.buckets[bucket] == target.offer.buckets[bucket] &&
                    base->ready[bucket] && (!target.ready[bucket] || target.changes[bucket]);
  return fits ? base : nullptr;
}

Result<> StreamOffers::judge(const Offered& target, const Frame& get) {
  has_receivers_ = true;
  auto judged = target.judge_bucket(get);
  if (!judged && judged.error().code() == ErrorCode::kPeerLost && base_of(target, get.bucket))
    return {};
  if (judged && get.takes_changes_alone && !target.ready[get.bucket] &&
      likeness(target, get) == Likeness::kUnlike)
    return fail(ErrorCode::kResourceExhausted,
                fmt::format("too much has changed from {} to {}, so it needs memory",
                            get.base.to_string(), version_of(target).to_string()));
  return judged;
}

Likeness StreamOffers::likeness(const Offered& target, const Frame& get) const {
  if (get.base.none() || get.base == version_of(target)) return Likeness::kUnknown;
  if (get.base == target.offer.unlike) return Likeness::kUnlike;
  const auto base = find_with_memory(get.base);
  if (!base || base->offer.data.empty() || !target.offer.blocks ||
      base->offer.key.layout != target.offer.key.layout)
    return Likeness::kUnknown;
  return target.ready[get.bucket] ? Likeness::kUnlike : Likeness::kNotYet;
}

Result<std::shared_ptr<const Bytes>> StreamOffers::compose(const Offered& target,
                                                           std::uint64_t bucket) const {
  const auto elsewhere = [&](std::string_view why) {
    return fail(
        ErrorCode::kPeerLost,
        fmt::format("of version {} only what changes from {} is here, and {}: another "
                    "source has to send bucket {}",
                    version_of(target).to_string(), target.offer.base.to_string(), why, bucket));
  };
  const auto base = base_of(target, bucket);
  if (!base) return elsewhere("that version is not offered any more");
  const BucketWindow window = target.offer.buckets[bucket];
  const patch::Layout& layout = *target.offer.blocks;
  // As if the bucket were the whole arena.
  const auto placed = target.offer.leaves->bucket(bucket);
  std::vector<LeafPlace> leaves(placed.begin(), placed.end());
  for (LeafPlace& leaf : leaves) leaf.arena_offset -= window.offset;
  auto bytes = std::make_shared<Bytes>(window.bytes);
  const auto sums = [&]() -> Result<std::vector<WordSum>> {
    const auto changes =
        WSYNC_TRY(patch::read_leaf_changes(layout, leaves, *target.changes[bucket]));
    return patch::apply_leaf_changes(layout, leaves, changes,
                                     base->offer.data.subspan(window.offset, window.bytes), *bytes);
  }();
  if (!sums) return elsewhere(sums.error().message());
  if (bucket_digest(*sums) != target.digest_of_bucket(bucket) &&
      !planted("composed_bucket_not_compared"))
    return elsewhere("bytes of that version that do not change are damaged");
  return bytes;
}

void StreamOffers::clear() {
  offers_.clear();
  leaving_.clear();
  links_.clear();
  to_merge_.clear();
}

}  // namespace wsync::transport
