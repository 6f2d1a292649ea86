// DeviceBuffers: decides when the IPC buffers of a group of devices may be allocated, handed to
// engines and freed, and when the group may be connected again. EngineDevices executes the
// decisions.
//
// Kept buffers exist from the start to the end. Other buffers (GPUs with keep_buffers: false) exist
// from the first load of a run until no load needs them and no connected engine has them mapped.
// Memory that an engine has mapped stays taken when the sidecar frees it, and the buffers of the
// next load would need as much again. An engine has the buffers mapped from the Load that brought
// their handles (kept buffers: from its welcome) until it has answered that load, or until its
// connection ends.
//
// Pure: no I/O, no time. Thread: confined to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::agent {

enum class BuffersState : std::uint8_t { kNone, kAllocating, kHeld, kFreeing };
// How one engine uses the buffers.
enum class MappingState : std::uint8_t {
  kUnmapped,
  kMapped,  // their handles were sent to it
};
// The streams and communicators of the group.
enum class GroupState : std::uint8_t { kConnected, kDisconnected, kConnecting };

[[nodiscard]] std::string_view state_name(BuffersState state) noexcept;
[[nodiscard]] std::string_view state_name(MappingState state) noexcept;
[[nodiscard]] std::string_view state_name(GroupState state) noexcept;
// Whether the transition table has a row from one state to the other.
[[nodiscard]] bool is_legal(BuffersState from, BuffersState to) noexcept;
[[nodiscard]] bool is_legal(MappingState from, MappingState to) noexcept;
[[nodiscard]] bool is_legal(GroupState from, GroupState to) noexcept;
// The transition tables, for the protocol documentation.
[[nodiscard]] TransitionTable buffers_transitions();
[[nodiscard]] TransitionTable mapping_transitions();
[[nodiscard]] TransitionTable group_transitions();

// A transition without a row in its table is refused with kInternal and changes nothing.
class DeviceBuffers {
 public:
  // `kept`: the buffers already exist and are never freed. The group starts connected.
  explicit DeviceBuffers(bool kept)
      : kept_(kept), buffers_(kept ? BuffersState::kHeld : BuffersState::kNone) {}

  // ---- the buffers ----

  [[nodiscard]] bool held() const noexcept { return buffers_ == BuffersState::kHeld; }
  [[nodiscard]] bool kept() const noexcept { return kept_; }
  // Call when a load needs the buffers. If it returns true, allocate them now and call allocated().
  [[nodiscard]] bool begin_allocate();
  // `ok`: the allocation succeeded.
  [[nodiscard]] Result<> allocated(bool ok);
  // Call with `in_use` = false if no load needs the buffers. If it returns true, free them now and
  // call freed().
  [[nodiscard]] bool begin_free(bool in_use);
  // `ok`: the buffers no longer exist.
  [[nodiscard]] Result<> freed(bool ok);

  // ---- engines that have the buffers mapped ----

  // Records that the handles were sent to an engine, either with its welcome (no request) or with
  // the Load of `request`, which the engine answers. Refused if there are no buffers.
  [[nodiscard]] Result<> exported(reload::EngineId engine, std::optional<std::uint64_t> request);
  // The engine has answered the Load of `request` and has unmapped the buffers of that Load. An
  // answer to another Load, or from an engine without a mapping, is ignored.
  void answered(reload::EngineId engine, std::uint64_t request);
  // The engine's connection has ended. Its process unmaps everything when it notices.
  void disconnected(reload::EngineId engine);
  [[nodiscard]] MappingState mapping_of(reload::EngineId engine) const;

  // ---- the group ----

  // Whether a run may start or a load may begin.
  [[nodiscard]] bool connected() const noexcept { return group_ == GroupState::kConnected; }
  [[nodiscard]] bool connecting() const noexcept { return group_ == GroupState::kConnecting; }
  // If it returns true, connect the devices now and call connect_finished(). Returns false if they
  // are connected, if a connection attempt is in progress, or during a run, which connects them
  // itself.
  [[nodiscard]] bool begin_connect(bool running);
  [[nodiscard]] Result<> connect_finished(bool ok);
  // A run has ended; `connected` says whether the group is still connected. A failed run
  // disconnects it.
  [[nodiscard]] Result<> run_finished(bool connected);

  [[nodiscard]] BuffersState buffers() const noexcept { return buffers_; }
  [[nodiscard]] GroupState group() const noexcept { return group_; }
  // Returns kInternal with the first broken rule. Rules: an engine has the buffers mapped only
  // while they exist; kept buffers always exist.
  [[nodiscard]] Result<> invariants() const;

 private:
  struct Mapping {
    MappingState state = MappingState::kUnmapped;
    std::optional<std::uint64_t> due;  // request of the Load that brought the handles
  };
  [[nodiscard]] Result<> move(BuffersState to);
  [[nodiscard]] Result<> move(GroupState to);
  [[nodiscard]] Result<> move(reload::EngineId engine, MappingState to);

  const bool kept_;
  BuffersState buffers_;
  GroupState group_ = GroupState::kConnected;
  std::map<reload::EngineId, Mapping> mappings_;  // engines that have the buffers mapped
};

}  // namespace wsync::agent
