// DeviceBuffers: when the IPC buffers of a group of devices may be allocated, handed to engines and
// freed, and when the group may be connected anew. It decides; EngineDevices executes.
//
// Buffers that are kept exist from the start to the end. Others (GPUs with keep_buffers: false)
// exist from the first load of a run until nothing needs them and no engine has them mapped: memory
// that is freed while another process has it mapped is undefined to CUDA. An engine has buffers
// mapped from the Load that brought their handles (kept ones: from its welcome) until it has
// answered that load, or until its process has closed its end of the connection.
//
// Pure: no I/O, no time. Thread: one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/error.h"
#include "shared/base/transitions.h"

namespace wsync::agent {

enum class BuffersState : std::uint8_t { kNone, kAllocating, kHeld, kFreeing };
// The buffers as one engine has them.
enum class MappingState : std::uint8_t {
  kUnmapped,
  kMapped,     // it was sent their handles
  kDeparting,  // its connection has ended here; its process has not closed its end yet
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
// The transition tables, for the page of the protocol.
[[nodiscard]] TransitionTable buffers_transitions();
[[nodiscard]] TransitionTable mapping_transitions();
[[nodiscard]] TransitionTable group_transitions();

// Every move without a row in its table is refused with kInternal, and then changes nothing.
class DeviceBuffers {
 public:
  // `kept`: the buffers exist already, and stay. The group is connected.
  explicit DeviceBuffers(bool kept)
      : kept_(kept), buffers_(kept ? BuffersState::kHeld : BuffersState::kNone) {}

  // ---- the buffers ----

  [[nodiscard]] bool held() const noexcept { return buffers_ == BuffersState::kHeld; }
  [[nodiscard]] bool kept() const noexcept { return kept_; }
  // A load needs the buffers. True: allocate them now, and call allocated().
  [[nodiscard]] bool begin_allocate();
  // `ok`: they exist.
  [[nodiscard]] Result<> allocated(bool ok);
  // Nothing of a load may need them any more when `in_use` is false. True: free them now, and call
  // freed().
  [[nodiscard]] bool begin_free(bool in_use);
  // `ok`: they exist no more.
  [[nodiscard]] Result<> freed(bool ok);

  // ---- who has them ----

  // An engine is sent their handles: with its welcome (no request), or with the Load of `request`,
  // which it answers. Refused while there are no buffers.
  [[nodiscard]] Result<> exported(reload::EngineId engine, std::optional<std::uint64_t> request);
  // The engine has answered the Load of `request`. It has unmapped what that Load brought; an
  // answer to another one, or of an engine that has nothing, means nothing here.
  void answered(reload::EngineId engine, std::uint64_t request);
  // The engine's connection has ended here. `closed`: its process has closed its end as well, and
  // has unmapped everything before that.
  void disconnected(reload::EngineId engine, bool closed);
  // The process of an engine that was departing has closed its end.
  void closed(reload::EngineId engine);
  // Engines whose process has not closed its end yet.
  [[nodiscard]] std::vector<reload::EngineId> departing() const;
  [[nodiscard]] MappingState mapping_of(reload::EngineId engine) const;

  // ---- the group ----

  // A run may start, or a load begin.
  [[nodiscard]] bool connected() const noexcept { return group_ == GroupState::kConnected; }
  [[nodiscard]] bool connecting() const noexcept { return group_ == GroupState::kConnecting; }
  // True: connect the devices now, and call connect_finished(). False when they are connected, when
  // that is under way, and while a run is in progress, which connects them itself.
  [[nodiscard]] bool begin_connect(bool running);
  [[nodiscard]] Result<> connect_finished(bool ok);
  // A run has ended, and left the group like this. A failed one takes it down.
  [[nodiscard]] Result<> run_finished(bool connected);

  [[nodiscard]] BuffersState buffers() const noexcept { return buffers_; }
  [[nodiscard]] GroupState group() const noexcept { return group_; }
  // The first broken rule (kInternal). Rules: an engine has the buffers mapped only while they
  // exist; one that is departing owes no answer; buffers that are kept always exist.
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
  std::map<reload::EngineId, Mapping> mappings_;  // of engines that have the buffers
};

}  // namespace wsync::agent
