#include "inference_side/sidecar/device_buffers.h"

#include <algorithm>
#include <array>

#include "shared/base/format.h"

namespace wsync::agent {
namespace {

constexpr std::array<Transition<BuffersState>, 6> kBuffers = {{
    {BuffersState::kNone, "a load needs them", BuffersState::kAllocating, "allocate them"},
    {BuffersState::kAllocating, "they are allocated", BuffersState::kHeld, "send the loads"},
    {BuffersState::kAllocating, "they cannot be allocated", BuffersState::kNone,
     "report that the loads have not begun"},
    {BuffersState::kHeld, "no load needs them and no engine has them mapped",
     BuffersState::kFreeing, "free them"},
    {BuffersState::kFreeing, "they are freed", BuffersState::kNone, ""},
    {BuffersState::kFreeing, "they cannot be freed", BuffersState::kHeld, ""},
}};

constexpr std::array<Transition<MappingState>, 4> kMappings = {{
    {MappingState::kUnmapped, "the handles are sent with a welcome or a Load",
     MappingState::kMapped, ""},
    {MappingState::kMapped, "the handles are sent with another Load", MappingState::kMapped, ""},
    {MappingState::kMapped, "the Load that brought them is answered", MappingState::kUnmapped, ""},
    {MappingState::kMapped, "the connection ends", MappingState::kUnmapped, ""},
}};

constexpr std::array<Transition<GroupState>, 5> kGroup = {{
    {GroupState::kConnected, "a failed run has disconnected it", GroupState::kDisconnected,
     "connect it again"},
    {GroupState::kDisconnected, "a version or a load needs it", GroupState::kConnecting,
     "connect it again"},
    {GroupState::kDisconnected, "a run has connected it", GroupState::kConnected, ""},
    {GroupState::kConnecting, "it is connected", GroupState::kConnected, "send the loads"},
    {GroupState::kConnecting, "it cannot be connected", GroupState::kDisconnected,
     "report that the loads have not begun"},
}};

template <class State>
tl::unexpected<Error> refuse(std::string_view what, State from, State to) {
  return fail(ErrorCode::kInternal,
              fmt::format("{} cannot go from {} to {}", what, state_name(from), state_name(to)));
}

}  // namespace

std::string_view state_name(BuffersState state) noexcept {
  switch (state) {
    case BuffersState::kNone:
      return "none";
    case BuffersState::kAllocating:
      return "allocating";
    case BuffersState::kHeld:
      return "held";
    case BuffersState::kFreeing:
      return "freeing";
  }
  return "unknown";
}

std::string_view state_name(MappingState state) noexcept {
  switch (state) {
    case MappingState::kUnmapped:
      return "unmapped";
    case MappingState::kMapped:
      return "mapped";
  }
  return "unknown";
}

std::string_view state_name(GroupState state) noexcept {
  switch (state) {
    case GroupState::kConnected:
      return "connected";
    case GroupState::kDisconnected:
      return "disconnected";
    case GroupState::kConnecting:
      return "connecting";
  }
  return "unknown";
}

bool is_legal(BuffersState from, BuffersState to) noexcept {
  return allows<BuffersState>(kBuffers, from, to);
}
bool is_legal(MappingState from, MappingState to) noexcept {
  return allows<MappingState>(kMappings, from, to);
}
bool is_legal(GroupState from, GroupState to) noexcept {
  return allows<GroupState>(kGroup, from, to);
}

namespace {
template <class State>
std::string_view name_of(State state) {
  return state_name(state);
}
}  // namespace

TransitionTable buffers_transitions() {
  return describe<BuffersState>("DeviceBuffers (buffers)",
                                "The IPC buffers of a sidecar's devices that are not kept.",
                                kBuffers, name_of<BuffersState>);
}
TransitionTable mapping_transitions() {
  return describe<MappingState>("DeviceBuffers (mapping)",
                                "The IPC buffers as one engine has them.", kMappings,
                                name_of<MappingState>);
}
TransitionTable group_transitions() {
  return describe<GroupState>("DeviceBuffers (group)",
                              "The streams and communicators of a sidecar's GPUs.", kGroup,
                              name_of<GroupState>);
}

// ---- moves ----

Result<> DeviceBuffers::move(BuffersState to) {
  if (!is_legal(buffers_, to)) return refuse("the device buffers", buffers_, to);
  buffers_ = to;
  return {};
}

Result<> DeviceBuffers::move(GroupState to) {
  if (!is_legal(group_, to)) return refuse("the device group", group_, to);
  group_ = to;
  return {};
}

Result<> DeviceBuffers::move(reload::EngineId engine, MappingState to) {
  const MappingState from = mapping_of(engine);
  if (!is_legal(from, to))
    return refuse(fmt::format("the mapping of engine {}", reload::number(engine)), from, to);
  if (to == MappingState::kUnmapped)
    mappings_.erase(engine);
  else
    mappings_[engine] = {.state = to, .due = std::nullopt};
  return {};
}

// ---- the buffers ----

bool DeviceBuffers::begin_allocate() {
  return buffers_ == BuffersState::kNone && move(BuffersState::kAllocating).has_value();
}

// Check which answer is due: a repeated answer to freeing must not be mistaken for the end of an
// allocation.
Result<> DeviceBuffers::allocated(bool ok) {
  const BuffersState to = ok ? BuffersState::kHeld : BuffersState::kNone;
  if (buffers_ != BuffersState::kAllocating) return refuse("the device buffers", buffers_, to);
  return move(to);
}

bool DeviceBuffers::begin_free(bool in_use) {
  if (kept_ || in_use || !held() || !mappings_.empty()) return false;
  return move(BuffersState::kFreeing).has_value();
}

Result<> DeviceBuffers::freed(bool ok) {
  const BuffersState to = ok ? BuffersState::kNone : BuffersState::kHeld;
  if (buffers_ != BuffersState::kFreeing) return refuse("the device buffers", buffers_, to);
  return move(to);
}

// ---- engines that have the buffers mapped ----

Result<> DeviceBuffers::exported(reload::EngineId engine, std::optional<std::uint64_t> request) {
  if (!held())
    return fail(ErrorCode::kInternal,
                fmt::format("engine {} is sent handles of buffers while they are {}",
                            reload::number(engine), state_name(buffers_)));
  WSYNC_TRY(move(engine, MappingState::kMapped));
  mappings_[engine].due = request;
  return {};
}

void DeviceBuffers::answered(reload::EngineId engine, std::uint64_t request) {
  const auto found = mappings_.find(engine);
  if (found == mappings_.end() || found->second.due != request) return;
  (void)move(engine, MappingState::kUnmapped);
}

void DeviceBuffers::disconnected(reload::EngineId engine) {
  if (mapping_of(engine) == MappingState::kMapped) (void)move(engine, MappingState::kUnmapped);
}

MappingState DeviceBuffers::mapping_of(reload::EngineId engine) const {
  const auto found = mappings_.find(engine);
  return found == mappings_.end() ? MappingState::kUnmapped : found->second.state;
}

// ---- the group ----

bool DeviceBuffers::begin_connect(bool running) {
  if (running || group_ != GroupState::kDisconnected) return false;
  return move(GroupState::kConnecting).has_value();
}

Result<> DeviceBuffers::connect_finished(bool ok) {
  const GroupState to = ok ? GroupState::kConnected : GroupState::kDisconnected;
  if (group_ != GroupState::kConnecting) return refuse("the device group", group_, to);
  return move(to);
}

Result<> DeviceBuffers::run_finished(bool connected) {
  const GroupState to = connected ? GroupState::kConnected : GroupState::kDisconnected;
  if (group_ == GroupState::kConnecting) return refuse("the device group", group_, to);
  return to == group_ ? Result<>{} : move(to);
}

// ---- invariants ----

Result<> DeviceBuffers::invariants() const {
  for (const auto& [engine, mapping] : mappings_)
    if (!held())
      return fail(
          ErrorCode::kInternal,
          fmt::format("engine {} has the buffers {} while they are {}", reload::number(engine),
                      state_name(mapping.state), state_name(buffers_)));
  if (kept_ && !held())
    return fail(ErrorCode::kInternal,
                fmt::format("the buffers are kept, and they are {}", state_name(buffers_)));
  return {};
}

}  // namespace wsync::agent
