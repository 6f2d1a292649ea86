// Choices that configurations name, messages carry and state machines follow: each is defined here
// and nowhere else. Their numbers travel in messages (shared/control), so none is ever changed.
#pragma once

#include <cstdint>

namespace wsync {

enum class DeviceKind : std::uint8_t {
  kUnified,   // host device without memory of its own: a staged bucket is its IPC buffer
  kSeparate,  // host device with memory of its own and real copies; stands for a GPU
  kCuda,      // a GPU
};

// How the devices of a host broadcast to each other.
enum class Collective : std::uint8_t { kAuto, kNccl, kLocal };

// Into how many stages the weight pipeline parts a load; kAuto measures both.
enum class Stages : std::uint8_t { kAuto, kTwo, kThree };

// How weights come to a sidecar.
enum class TransportPolicy : std::uint8_t {
  kAuto,  // memfd to a sidecar of this host; TCP to the others, and where the hand-over has failed
  kMemfd,
  kTcp,
};

// What becomes of the requests that a switch meets: ended, awaited, or carried over.
enum class PauseMode : std::uint8_t { kAbort, kWait, kKeep };

// Who must have staged a version before it is decided.
enum class CommitRule : std::uint8_t {
  kAll,     // every live sidecar; one refusal fails the round
  kQuorum,  // sidecars with at least `quorum` whole replicas
  kEach,    // each switches as soon as it has staged
};
struct CommitPolicy {
  CommitRule rule = CommitRule::kAll;
  std::uint32_t quorum = 0;  // replicas; with kQuorum only
  friend bool operator==(const CommitPolicy&, const CommitPolicy&) = default;
};

}  // namespace wsync
