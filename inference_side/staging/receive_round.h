// ReceiveRound: the incoming version, from its offer until its copy is decided or dropped.
//
// There is one at a time: a newer offer replaces an older one.
//
// Thread: confined to one thread. Pure: the owner checks layouts, releases memory and stages.
#pragma once

#include <cstdint>
#include <string_view>

#include "inference_side/staging/sidecar_events.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::staging {

enum class ReceiveState : std::uint8_t {
  kIdle,      // nothing is offered
  kChecking,  // its layout is being compared with the engines' layouts
  kAccepted,  // the coordinator has not named a source yet
  kWaiting,   // a source is named; another version must be released first
  kStaging,   // its bytes are arriving
  kStalled,   // its source was lost; the received bytes are kept for the next source
  kStaged,    // its copy is held
};

[[nodiscard]] std::string_view receive_state_name(ReceiveState state) noexcept;
// The transition table, for the protocol documentation.
[[nodiscard]] TransitionTable receive_transitions();

class ReceiveRound {
 public:
  [[nodiscard]] ReceiveState state() const noexcept { return state_; }
  // Properties of the incoming version; none, zero or empty in kIdle.
  [[nodiscard]] const Version& version() const noexcept { return announce_.version; }
  [[nodiscard]] const control::Announce& announce() const noexcept { return announce_; }
  [[nodiscard]] std::uint64_t round() const noexcept { return round_; }
  // The request to which the next reply belongs.
  [[nodiscard]] std::uint64_t request() const noexcept { return request_; }
  // Whether staging has begun, so that some bytes may have arrived.
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  [[nodiscard]] bool is(std::uint64_t round, const Version& version) const;
  // What happens to the version, in a few words for people; empty in kIdle.
  [[nodiscard]] std::string activity() const;
  // Whether the result of this attempt is expected.
  [[nodiscard]] bool stages(std::uint64_t attempt) const;

  // Records a round of the coordinator. Returns false if it is not newer than the newest known
  // round; its offer is then void.
  [[nodiscard]] bool raise_round(std::uint64_t round);
  // Under another fence the round numbers start again.
  void forget_rounds() noexcept { newest_round_ = 0; }

  // idle -> checking, or idle -> staged if a copy of the version is held.
  void open(const control::Envelope& envelope, const control::Announce& announce, bool held);
  // checking -> accepted.
  void accept();
  // Whether the content digest of the version is known. It may follow its bytes.
  [[nodiscard]] bool has_content() const noexcept { return announce_.content_digest != Digest{}; }
  // Records the content digest. Returns false if it is zero or the one that is known. A version has
  // one content: another digest than the known one must have been refused before.
  [[nodiscard]] bool learn_content(const Digest& content);
  // The coordinator names a source: -> waiting, if bytes must come from it. Returns false and
  // starts nothing if the version is staged, is waiting, or already comes from this source.
  [[nodiscard]] bool assign(std::uint64_t request, const control::Stage& stage);
  // waiting -> staging. `base`: a complete copy that is kept meanwhile, or none; at the first start
  // of a version.
  [[nodiscard]] StartStaging start(const Version& base);
  // Whether what is being staged may come as what changes from this copy.
  [[nodiscard]] bool reads(const Version& version) const noexcept {
    return begun_ && !base_.none() && base_ == version && state_ != ReceiveState::kStaged;
  }
  // staging -> staged.
  void complete();
  // staging -> stalled.
  void stall();
  // -> idle.
  void close();

  // Returns kInternal with the first broken rule: an idle round has no version; bytes arrive only
  // under an attempt; nothing has begun before a source was named.
  [[nodiscard]] Result<> invariants() const;

 private:
  void move(ReceiveState to);

  ReceiveState state_ = ReceiveState::kIdle;
  std::uint64_t newest_round_ = 0;  // under the fence of the record
  std::uint64_t attempts_ = 0;      // of all versions
  std::uint64_t round_ = 0;
  std::uint64_t request_ = 0;
  std::uint64_t attempt_ = 0;
  bool begun_ = false;
  Version base_;
  control::Announce announce_;
  control::Stage stage_;
};

}  // namespace wsync::staging
