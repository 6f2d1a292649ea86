// Choices that configurations name, messages carry and state machines use. Each is defined only
// here. Their numeric values are part of messages (shared/control), so they never change.
#pragma once

#include <cstdint>

namespace wsync {

enum class DeviceKind : std::uint8_t {
  kUnified,   // host device without its own memory: a staged bucket is its IPC buffer
  kSeparate,  // host device with its own memory and real copies; emulates a GPU
  kCuda,      // a GPU
};

// How the devices of a host broadcast to each other.
enum class Collective : std::uint8_t { kAuto, kNccl, kLocal };

// How a version reaches the devices of a host in a load: each takes what its engines need by its
// own link, or each byte crosses one link and is broadcast. kAuto takes what is predicted to be
// faster.
enum class Transfer : std::uint8_t { kAuto, kOwnLinks, kBroadcast };

// Huge pages for arenas. kAdvise asks for them where the system gives them on request
// (shmem_enabled), kExplicit takes them from the reserved pool.
enum class HugePages : std::uint8_t { kOff, kAdvise, kExplicit };

// How weights are protected on their way to other hosts: encrypted with a key of each pair of ends,
// or not at all, because nobody else is on the network.
enum class DataSecurity : std::uint8_t { kTls, kTrustedNetwork };

// Number of stages of the weight pipeline during a load. kAuto measures both.
enum class Stages : std::uint8_t { kAuto, kTwo, kThree };

// What happens to running requests at a switch: they are aborted, awaited or kept.
enum class PauseMode : std::uint8_t { kAbort, kWait, kKeep };

// What becomes of what an engine has computed with the old weights, such as cached prefixes: the
// engine decides, or it is dropped or kept.
enum class CachePolicy : std::uint8_t { kEngine, kClear, kKeep };

// Which sidecars must have staged a version before it is decided.
enum class CommitRule : std::uint8_t {
  kAll,     // every live sidecar; one refusal fails the round
  kQuorum,  // sidecars with at least `quorum` whole replicas
  kEach,    // each sidecar switches as soon as it has staged
};
struct CommitPolicy {
  CommitRule rule = CommitRule::kAll;
  std::uint32_t quorum = 0;  // number of replicas; only with kQuorum
  friend bool operator==(const CommitPolicy&, const CommitPolicy&) = default;
};

// What the known offset of another process's clock from ours rests on.
enum class ClockKind : std::uint8_t {
  kSame,      // same clock: nothing was corrected
  kMeasured,  // measured by an exchange
  kUnknown,   // no valid exchange: nothing was corrected
};

}  // namespace wsync
