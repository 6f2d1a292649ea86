// The messages of a step and its two ends as pure state machines, without sockets and without time.
//
// One step, between the leader and each follower:
//
//   leader                         follower
//     go|stop(step, version)  ->               the header; only the leader begins a step
//                             <-  ready        go: I hold that version and am inside the step
//                             <-  refused      go: I do not; the leader aborts the step
//                             <-  stopped      stop: I am outside every step
//     proceed | aborted       ->               every rank is ready | one is not: leave the step
//                             <-  partial      my share of the reduction, and what I saw
//     total                   ->               the reduction over all ranks; the step is over
//
// A message that arrives where it is not expected is an error and breaks the group.
//
// Thread: each object is confined to one thread.
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

// What one rank read in one step: its share of the reduction, and whether any of its layers had
// another version than the step's.
struct Reading {
  std::uint64_t value = 0;
  bool torn = false;
  std::uint32_t layers = 0;  // layers compared by this rank; not part of any message
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
// Returns kInvalidInput unless the bytes are exactly the encoding of a message.
[[nodiscard]] Result<StepMessage> decode(std::span<const std::byte> bytes);

// The leader's end of one step, for all followers. Rank 0 is the leader itself.
class LeaderStep {
 public:
  enum class Phase : std::uint8_t {
    kAgreeing,   // waits for ready, refused or stopped from every follower
    kComputing,  // go only: all agreed; waits for every partial
    kDone,
    kAborted,  // go only: a follower refused; all have answered
  };
  // `header` is the message to send to every follower: kGo with its version, or kStop.
  LeaderStep(std::uint32_t world_size, StepMessage header);

  [[nodiscard]] const StepMessage& header() const noexcept { return header_; }
  [[nodiscard]] Phase phase() const noexcept { return phase_; }
  // Returns kInvalidInput, with rank, expected and received message, if the message is not allowed
  // in this phase.
  [[nodiscard]] Result<> handle(std::uint32_t rank, const StepMessage& message);
  // Adds the leader's own share. Call once, in phase kComputing.
  void add_own(const Reading& reading);
  // Reduction over all ranks; valid in phase kDone.
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
  std::vector<bool> answered_;  // in this phase; [0] is the leader
  std::optional<Refusal> refusal_;
  Reading total_;
};

// What a follower must do after a message of its leader.
enum class FollowerAction : std::uint8_t {
  kEnter,    // go: enter the step if the version matches, then call answered()
  kStop,     // stop: stop serving, answer stopped
  kCompute,  // proceed: read the weights, answer partial
  kLeave,    // aborted: leave the step; there is no total
  kFinish,   // total: the step is over
};

// The follower's end of its connection.
class FollowerStep {
 public:
  // Returns kInvalidInput, with the expected and the received message, if the message is not
  // allowed here, or if a header has a lower step number than an earlier one.
  [[nodiscard]] Result<FollowerAction> handle(const StepMessage& message);
  // Call for a new connection. Ends the current step but keeps the step number.
  void reset() noexcept { phase_ = Phase::kIdle; }
  // Records which answer to a go was sent: ready (inside the step) or refused.
  void answered(bool ready) noexcept;
  // Whether the rank is inside a step. No other header may arrive then, and the loss of the leader
  // means that the rank must leave the step.
  [[nodiscard]] bool inside() const noexcept {
    return phase_ == Phase::kReady || phase_ == Phase::kComputed;
  }
  // Whether a message of the leader is due soon, because the leader has begun a step and not ended
  // it.
  [[nodiscard]] bool owed() const noexcept { return phase_ != Phase::kIdle; }
  // Step number of the newest header.
  [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
  [[nodiscard]] const Version& version() const noexcept { return version_; }

 private:
  enum class Phase : std::uint8_t { kIdle, kEntering, kReady, kRefused, kComputed };
  Phase phase_ = Phase::kIdle;
  std::uint64_t step_ = 0;
  Version version_;
};

}  // namespace wsync::engine::reference
