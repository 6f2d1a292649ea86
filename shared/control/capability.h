// Capabilities: what releases of one protocol version can have and lack.
//
// kProtocolVersion is raised only when a message changes for everyone. A field that a receiver can
// do without gets a capability here instead, and stands behind it in its list of fields:
//
//   if (v.has(Capability::kSuspendedOutcomes)) v.flag("is_suspended", m.is_suspended);
//
// Each side names its own capabilities in its first message: Hello, Welcome, EngineHello,
// EngineWelcome. A sender sets Envelope::capabilities to those that its receiver has named,
// so the fields of the others stay out of the message. The header says which fields are in. So an
// older release of the same protocol version goes on working, and reads every message strictly.
//
// A receiver without the field has the default value of its member, which must be right for it. A
// bit that has been in a release is never used again for anything else.
#pragma once

#include <cstdint>

namespace wsync::control {

enum class Capability : std::uint32_t {
  // ReplicaOutcome::is_suspended: a rollback and a promotion do not wait for a replica that sleeps.
  kSuspendedOutcomes = 1U << 0U,
  // Heartbeat::patch_value_cost: without it, a trainer makes no patches while it copies.
  kPatchValueCost = 1U << 1U,
  // In EngineHello, of the rank and not of its release: it takes the layers that a patch changes,
  // although its `takes_patches` is false. An older sidecar would compare the sums of what a patch
  // touches, so it loads all bytes.
  kChangedLayers = 1U << 2U,
  // Heartbeat::lends_arenas: without it, a trainer keeps the arena of the target as it is.
  kLentArenas = 1U << 3U,
  // Welcome::trainer: without it, a sidecar stays connected to a trainer of its host that hangs and
  // was replaced, until that process ends.
  kTrainerProcess = 1U << 4U,
  // Of a sidecar: it answers RelayVersion. Nobody takes a version later from one without it, unless
  // it has received that version as a copy under this coordinator.
  kRelaysHeld = 1U << 5U,
  // Push::host and boot_id, and ErrorReply::may_publish: without it, the directory of a push is
  // read
  // by the trainer wherever it is. A command is told by the coordinator if that lacks it.
  kPushOrigin = 1U << 6U,
  // Of an engine's library: it takes PatchAhead. Without it, a patch is first read in the pause.
  kPatchAhead = 1U << 7U,
  // Announce::parts, Stage::parts and RelayReady::parts: without it, a sidecar takes no version of
  // a trainer whose ranks are on several hosts.
  kParts = 1U << 8U,
};

// A set of capabilities, as bits.
using Capabilities = std::uint32_t;

[[nodiscard]] constexpr Capabilities bits(Capability one) noexcept {
  return static_cast<Capabilities>(one);
}
[[nodiscard]] constexpr bool contains(Capabilities set, Capability one) noexcept {
  return (set & bits(one)) != 0;
}

// Those of this release.
inline constexpr Capabilities kCapabilities =
    bits(Capability::kSuspendedOutcomes) | bits(Capability::kPatchValueCost) |
    bits(Capability::kLentArenas) | bits(Capability::kTrainerProcess) |
    bits(Capability::kRelaysHeld) | bits(Capability::kPushOrigin) | bits(Capability::kPatchAhead) |
    bits(Capability::kParts);

}  // namespace wsync::control
