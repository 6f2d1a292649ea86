// Delivery: the transfer of one version to one sidecar, inside a round or as a catch-up. Thread:
// confined to one thread. No I/O: it creates the messages, and its caller sends them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/transitions.h"
#include "shared/control/messages.h"
#include "trainer_side/coordinator/coordinator_events.h"

namespace wsync::coordinator {

enum class DeliveryState : std::uint8_t {
  kNone,
  kAnnounced,
  kAccepted,
  kStaging,
  kStaged,
  kFailed
};
[[nodiscard]] std::string_view delivery_state_name(DeliveryState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable delivery_transitions();

class Delivery {
 public:
  [[nodiscard]] DeliveryState state() const noexcept { return state_; }
  [[nodiscard]] const Version& version() const noexcept { return version_; }
  // Round number in the envelopes of its messages. Each Announce to a sidecar has a new one.
  [[nodiscard]] std::uint64_t round() const noexcept { return round_; }
  // Kind of transport named in the last Stage; empty before the first one.
  [[nodiscard]] const std::string& transport() const noexcept { return source_.kind; }
  // From where it is read, as in the last Stage; empty before the first one.
  [[nodiscard]] const control::TransportAddress& source() const noexcept { return source_; }
  // How many sources have been lost.
  [[nodiscard]] std::size_t lost_sources() const noexcept { return lost_.size(); }
  // Why it has failed; empty if it has not.
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
  // When an answer is due, or when a failed delivery is tried again; std::nullopt if nothing is
  // awaited.
  [[nodiscard]] std::optional<TimePoint> deadline() const;
  [[nodiscard]] bool is_under_way() const noexcept;  // announced, accepted or staging
  // Whether other sidecars may read the version from this one.
  [[nodiscard]] bool relays() const noexcept;
  // Whether the sidecar is reading the version from one of these addresses.
  [[nodiscard]] bool reads_from(const std::vector<control::TransportAddress>& addresses) const;
  // Whether a message of this round and version is the answer expected in the current state.
  [[nodiscard]] bool is_answer(std::uint64_t round, const Version& version,
                               DeliveryState state) const;

  // Offers a version, in place of the current delivery.
  [[nodiscard]] control::Announce announce(const PublishRequested& publish, bool with_layout,
                                           std::uint64_t round, TimePoint deadline);
  // Offers the same version again, with its layout, because the sidecar did not know the layout.
  // Only once: see may_repeat().
  [[nodiscard]] control::Announce repeat(const PublishRequested& publish, std::uint64_t round,
                                         TimePoint deadline);
  [[nodiscard]] bool may_repeat() const noexcept { return attempts_ == 0; }
  void accept();
  // The sidecar begins to read, or continues from another source. `content`: zero while the
  // snapshot is being taken. Returns kPeerLost if its source was lost too often.
  // `key`: of the sidecar at this source; empty for a kind without keys. `parts`: the sources of
  // the other parts, if `source` has only the first one.
  [[nodiscard]] Result<control::Stage> stage(const control::TransportAddress& source,
                                             const Digest& content, TimePoint deadline,
                                             Bytes key = {},
                                             std::vector<control::PartSource> parts = {});
  // The last Stage once more, with the content digest that is known now. Only while staging.
  [[nodiscard]] control::Stage stage_again(const Digest& content) const;
  // The sidecar has lost its source. The reason is named if stage() fails afterwards.
  void lose_source(std::string why);
  // Whether it has lost this source. A relay that is dead may be known as such later only.
  [[nodiscard]] bool has_lost(const control::TransportAddress& source) const;
  void complete();
  void fail(std::string why, TimePoint retry);
  // Drops the delivery.
  void forget();

  // Returns kInternal with the first broken rule.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(DeliveryState to);

  DeliveryState state_ = DeliveryState::kNone;
  Version version_;
  std::uint64_t round_ = 0;
  control::TransportAddress source_;        // named in the last Stage
  Bytes key_;                               // the same
  std::vector<control::PartSource> parts_;  // the same
  std::uint32_t attempts_ = 0;              // Stages sent; a repeated Announce counts as one
  TimePoint deadline_{};
  std::string loss_;  // why the last source was lost
  std::vector<control::TransportAddress> lost_;
  std::string failure_;
};

}  // namespace wsync::coordinator
