// StreamOffers: the versions that a source of copies offers, and what it sends in place of a bucket
// to a receiver that holds another version.
//
// If the receiver's version is offered, both are compared. What was found is kept as a link
// (change_links.h), so it is not compared again for the next receiver. If its version is not
// offered any more, a link that leads from it to an offered version B is merged with the changes
// from B to the version that is asked for. A bucket without such a link is sent in full.
//
// The target of each link is offered. While the source has nothing to send, links that follow one
// another are merged, because that takes the bytes of the version between them. When a version is
// withdrawn, what is left of that is done first, and all links to it are dropped. So a link may
// lead over withdrawn versions, and never to one.
//
// A version may be held as its changes alone. If their base is offered with its memory, a receiver
// that has another version, or none, gets the bucket that is made of both.
//
// A link is as little trusted as any changes: the receiver proves its base and the result.
//
// Thread: one at a time; the one that sends.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "shared/base/clock.h"
#include "shared/transport/change_links.h"
#include "shared/transport/limits.h"
#include "shared/transport/offered.h"
#include "shared/weights/patch/leaf_changes.h"

namespace wsync::transport {

enum class Likeness : std::uint8_t {
  kUnknown,  // there is nothing here to compare with
  kNotYet,   // the bucket can be compared when all of it is here
  kUnlike,   // more has changed than is wanted
};

// This class has more than 25 methods: offers, links, and versions that are held as changes.
class StreamOffers {
 public:
  using Changes = ChangeLinks::Changes;

  // `hold`: for how long the memory of a withdrawn version is held, if links over it are not merged
  // yet.
  explicit StreamOffers(
      std::chrono::milliseconds hold = std::chrono::milliseconds(limits::kStreamLinkHoldMs))
      : hold_(hold) {}

  // Offers a version, in place of an earlier offer of it. Links to and from it are kept only if
  // that had the same key and the same buckets. Where the earlier one had memory and this one has
  // none, that is held as by withdraw().
  void offer(Offer offer, TimePoint at = now());
  // See BucketSource::bucket_ready(). Changes of a version that is held as these become links, if
  // anybody has fetched from here: most relays have no receiver, and need not merge.
  void bucket_ready(const Version& version, std::uint64_t bucket, const Digest& digest,
                    Changes changes, std::span<const WordSum> sums = {});
  // Ends an offer. Returns false if there is none. If links over this version are not merged yet,
  // its memory is held until merge_leaving() has done so, or the time for that is over.
  bool withdraw(const Version& version, TimePoint at);
  // Merges the links of one bucket over a version that was withdrawn. Returns false if there is
  // nothing left to merge, and the memory of all such versions is released. Blocks.
  bool merge_leaving(TimePoint at);
  // Merges the links of one bucket over a version that is still offered. Returns false if there is
  // nothing left to merge. Blocks. For times when there is nothing to send.
  bool merge_idle();
  // Ends all offers, and drops all links.
  void clear();

  // Returns nullptr if the version is not offered.
  [[nodiscard]] std::shared_ptr<Offered> find(const Version& version) const;
  // Whether the request can be answered with a bucket or with changes, at once or when it is ready.
  // Errors as Offered::judge_bucket(), but kPeerLost only if the bucket cannot be made here.
  // kResourceExhausted to one that takes changes alone of a bucket that is not here yet, if it is
  // known that too much has changed.
  [[nodiscard]] Result<> judge(const Offered& target, const Frame& get);
  // What is known of the changes from the base of a request, after changes() has found none of a
  // bucket that is ready.
  [[nodiscard]] Likeness likeness(const Offered& target, const Frame& get) const;
  // The changes that are sent in place of a bucket that is ready, or nullptr: none can be told, or
  // they are larger than is wanted. `get` is a request that was judged. Blocks.
  [[nodiscard]] Changes changes(const Offered& target, const Frame& get);
  // The bytes of a bucket that is ready, of a version that is held as its changes alone. kPeerLost
  // if they cannot be made, because the base is not offered any more, or because it is damaged.
  // Blocks.
  [[nodiscard]] Result<std::shared_ptr<const Bytes>> compose(const Offered& target,
                                                             std::uint64_t bucket) const;
  [[nodiscard]] const ChangeLinks& links() const noexcept { return links_; }

 private:
  // A version that was withdrawn, or that has no memory any more. The one that it had is held until
  // the links over the version are merged.
  struct Leaving {
    std::shared_ptr<Offered> offered;
    TimePoint until;
  };
  struct Place {
    Version version;
    std::uint64_t bucket = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };

  [[nodiscard]] static const Version& version_of(const Offered& offered) noexcept {
    return offered.offer.key.version;
  }
  // One that is offered, or that leaves.
  [[nodiscard]] std::shared_ptr<Offered> find_with_memory(const Version& version) const;
  // The base of a version that is held as its changes alone, if the bucket can be made of both.
  [[nodiscard]] std::shared_ptr<Offered> base_of(const Offered& target, std::uint64_t bucket) const;
  // The first bucket of this version over which links are to be merged.
  [[nodiscard]] std::optional<Place> first_place(const Version& version) const;
  void keep(const Version& from, const Version& to, std::uint64_t bucket, const Changes& changes);
  void forget_places(const Version& version);
  // Drops the links to a version without memory.
  void drop_to(const Version& version);
  // Compares both, and keeps the link.
  Changes compare(const Offered& base, const Offered& target, std::uint64_t bucket,
                  std::uint64_t max_bytes);
  // Merges the link from `from` to `middle` with the one to `target`, and keeps the result.
  Changes merge(const Version& from, const Offered& middle, const Version& target,
                std::uint64_t bucket, const Changes& first, const Changes& second);
  Changes changes_between(const Offered& base, const Offered& target, std::uint64_t bucket,
                          std::uint64_t max_bytes);
  Changes through_links(const Version& from, const Offered& target, std::uint64_t bucket,
                        std::uint64_t max_bytes);
  void merge_over(const Place& place);
  void limit_links();

  std::chrono::milliseconds hold_;
  std::map<Version, std::shared_ptr<Offered>> offers_;
  std::deque<Leaving> leaving_;
  ChangeLinks links_;
  std::set<Place> to_merge_;  // where links lead over a version, and may not be merged yet
  patch::LeafChangesMaker maker_;
  bool has_receivers_ = false;  // somebody has asked for a bucket
};

}  // namespace wsync::transport
