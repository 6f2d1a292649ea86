// ReceiveRound: the version on its way in, from its offer until its copy is decided or given up.
//
// There is one at a time: a newer offer replaces an older one.
//
// Thread: one. Pure: the owner checks layouts, makes room and stages.
#pragma once

#include <cstdint>
#include <string_view>

#include "inference_side/staging/sidecar_events.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::staging {

enum class ReceiveState : std::uint8_t {
  kIdle,      // nothing is offered
  kChecking,  // its layout is compared with the engines'
  kAccepted,  // the coordinator has not named a source yet
  kWaiting,   // a source is named; another version has to be released first
  kStaging,   // its bytes come in
  kStalled,   // its source was lost; what has arrived is kept for the next source
  kStaged,    // its copy is held
};

[[nodiscard]] std::string_view receive_state_name(ReceiveState state) noexcept;
// For the page of the protocol.
[[nodiscard]] TransitionTable receive_transitions();

class ReceiveRound {
 public:
  [[nodiscard]] ReceiveState state() const noexcept { return state_; }
  // Of what is on its way in; none, zero or empty in kIdle.
  [[nodiscard]] const Version& version() const noexcept { return announce_.version; }
  [[nodiscard]] const control::Announce& announce() const noexcept { return announce_; }
  [[nodiscard]] std::uint64_t round() const noexcept { return round_; }
  // The request to which the next reply belongs.
  [[nodiscard]] std::uint64_t request() const noexcept { return request_; }
  // Whether staging has begun, so that some of its bytes may be here.
  [[nodiscard]] bool begun() const noexcept { return begun_; }
  [[nodiscard]] bool is(std::uint64_t round, const Version& version) const;
  // Whether the end of this attempt is awaited.
  [[nodiscard]] bool stages(std::uint64_t attempt) const;

  // Notes a round of the coordinator. False: it is not newer than the newest one, so its offer is
  // void.
  [[nodiscard]] bool raise_round(std::uint64_t round);
  // Rounds count anew under another fence.
  void forget_rounds() noexcept { newest_round_ = 0; }

  // idle -> checking, or -> staged when a copy of the version is held.
  void open(const control::Envelope& envelope, const control::Announce& announce, bool held);
  // checking -> accepted.
  void accept();
  // The coordinator names a source: -> waiting, when bytes have to come from it. False: nothing
  // begins, because the version is staged, waits, or comes from this source already.
  [[nodiscard]] bool assign(std::uint64_t request, const control::Stage& stage);
  // waiting -> staging.
  [[nodiscard]] StartStaging start();
  // staging -> staged.
  void complete();
  // staging -> stalled.
  void stall();
  // -> idle.
  void close();

  // kInternal with the first broken rule: an idle round names no version, bytes come in only under
  // an attempt, and nothing has begun before a source was named.
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
  control::Announce announce_;
  control::Stage stage_;
};

}  // namespace wsync::staging
