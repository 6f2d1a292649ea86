// The messages of a led step and the two ends of it, as pure state machines: no sockets, no time.
//
// One step, between the leader and each follower:
//
//   leader                         follower
//     go|stop(step, version)  ->               the header: only the leader begins
//                             <-  ready        go: I hold that version, I am inside the step
//                             <-  refused      go: I do not; the leader aborts the step
//                             <-  stopped      stop: I am outside every step
//     proceed | aborted       ->               every rank is ready | one is not: leave the step
//                             <-  partial      my share of the reduction, and what I saw
//     total                   ->               the reduction over all ranks; the step is over
//
// Whatever is not expected where it arrives is an error, which breaks the group.
// Thread: each object is confined to one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shared/base/error.h"
#include "shared/weights/version.h"

namespace wsync::engine::reference {

// What one rank read in one step: its share of the reduction, and whether it saw anything but the
// step's version in any of its layers.
struct Reading {
  std::uint64_t value = 0;
  bool torn = false;
  std::uint32_t layers = 0;  // whose version was compared; of this rank alone, no message has it
  friend bool operator==(const Reading&, const Reading&) = default;
};

enum class StepKind : std::uint8_t {
  kJoin,     // follower: first message of a connection, with its rank and the last step it knows
  kGo,       // leader
  kStop,     // leader
  kReady,    // follower
  kRefused,  // follower, with the version that it holds (0.0: none)
  kStopped,  // follower
  kProceed,  // leader
  kAborted,  // leader
  kPartial,  // follower
  kTotal,    // leader
};
inline constexpr StepKind kLastStepKind = StepKind::kTotal;

struct StepMessage {
  StepKind kind = StepKind::kJoin;
  bool torn = false;             // kPartial, kTotal
  std::uint32_t rank = 0;        // of the sender
  std::uint32_t world_size = 0;  // kJoin
  std::uint64_t step = 0;
  Version version;          // kGo, kReady, kRefused
  std::uint64_t value = 0;  // kPartial, kTotal; kJoin: GroupOptions::agreement
  friend bool operator==(const StepMessage&, const StepMessage&) = default;
};

inline constexpr std::size_t kStepMessageBytes = 48;
// Little-endian, fixed size.
[[nodiscard]] std::array<std::byte, kStepMessageBytes> encode(const StepMessage& message);
// kInvalidInput unless the bytes are exactly what encode() makes of some message.
[[nodiscard]] Result<StepMessage> decode(std::span<const std::byte> bytes);

// The leader's end of one step of all followers; rank 0 is the leader itself.
class LeaderStep {
 public:
  enum class Phase : std::uint8_t {
    kAgreeing,   // waits for ready, refused or stopped of every follower
    kComputing,  // go only: all agreed; waits for every partial
    kDone,
    kAborted,  // go only: a follower refused; all have answered
  };
  // The header to send to every follower: kGo with its version, or kStop.
  LeaderStep(std::uint32_t world_size, StepMessage header);

  [[nodiscard]] const StepMessage& header() const noexcept { return header_; }
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  // kInvalidInput, naming rank, expected and found, when the message has no place here.
  [[nodiscard]] Result<> handle(std::uint32_t rank, const StepMessage& message);
  // The leader's own share; in phase kComputing, once.
  void add_own(const Reading& reading);
  // Over all ranks, in phase kDone.
  [[nodiscard]] Reading total() const noexcept { return total_; }
  // The first follower that refused, and the version that it holds.
  struct Refusal {
    std::uint32_t rank = 0;
    Version holds;
  };
  [[nodiscard]] const std::optional<Refusal>& refusal() const noexcept { return refusal_; }

 private:
  void advance();
  StepMessage header_;
  Phase phase_ = Phase::kAgreeing;
  std::vector<bool> answered_;  // of this phase; [0] is the leader
  std::optional<Refusal> refusal_;
  Reading total_;
};

// What a follower has to do about a message of its leader.
enum class FollowerAction : std::uint8_t {
  kEnter,    // go: enter the step if the version is right, then answered()
  kStop,     // stop: leave off serving, answer stopped
  kCompute,  // proceed: read the weights, answer partial
  kLeave,    // aborted: leave the step; there is no total
  kFinish,   // total: the step is over
};

// The follower's end of its connection.
class FollowerStep {
 public:
  // kInvalidInput, naming expected and found, when the message has no place here. A header whose
  // step is lower than an earlier one has none.
  [[nodiscard]] Result<FollowerAction> handle(const StepMessage& message);
  // A new connection: whatever was open is over; the step number is kept.
  void reset() noexcept { phase_ = Phase::kIdle; }
  // The answer to a go that has been sent: inside the step, or refused.
  void answered(bool ready) noexcept;
  // In a step: another header may not come, and a lost leader means to leave it.
  [[nodiscard]] bool inside() const noexcept {
    return phase_ == Phase::kReady || phase_ == Phase::kComputed;
  }
  // Some message of the leader must come soon: a step has begun that it has not ended.
  [[nodiscard]] bool owed() const noexcept { return phase_ != Phase::kIdle; }
  // Of the newest header.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] const Version& version() const noexcept { return version_; }

 private:
  enum class Phase : std::uint8_t { kIdle, kEntering, kReady, kRefused, kComputed };
  Phase phase_ = Phase::kIdle;
  std::uint64_t step_ = 0;
  Version version_;
};

}  // namespace wsync::engine::reference
