// The weight pipeline as a pure state machine: it decides which copy, broadcast and reload may
// start when. It executes nothing: a driver executes the commands, and reports which operations
// have ended and when. PipelineRunner is the driver for devices; tests have one with a virtual
// clock.
//
// Rules (README.md has the chart):
//   - device b % N owns bucket b, and copies it from host memory into its H2D buffer;
//   - broadcasts run one after the other in bucket order, so the devices are the source in
//     rotation;
//     bucket b goes to IPC slot b % slots of every device;
//   - a broadcast into a slot starts only when the slot is free on every device, which means that
//     every bucket acknowledgement for it has arrived;
//   - a device that is alone needs no broadcast: a bucket is copied straight into its IPC slot, as
//     soon as that slot is free and the copy before has ended;
//   - two stages: H2D never overlaps a broadcast. The H2D copies of a round start after the last
//     broadcast of the previous round, its broadcasts after its last H2D copy;
//   - three stages: the next H2D copy of a device starts as soon as its own broadcast has ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "inference_side/reload/buffer_state.h"
#include "inference_side/reload/stage_choice.h"
#include "shared/base/clock.h"
#include "shared/base/error.h"

namespace wsync::reload {

// An engine rank attached to the group. The caller chooses the id, which must be unique in the
// pipeline.
enum class EngineId : std::uint32_t {};
// The id as a plain number, for messages.
[[nodiscard]] constexpr std::uint32_t number(EngineId engine) noexcept {
  return static_cast<std::uint32_t>(engine);
}

// The device of an engine.
struct EngineSeat {
  EngineId engine{};
  DeviceIndex device{};
};

struct PipelineShape {
  std::uint32_t devices = 1;
  std::uint64_t buckets = 0;
  std::uint32_t ipc_slots = 2;  // unified devices: one for each bucket
  // H2D copies go straight into the IPC slots, and there are no broadcasts. One device only.
  bool direct = false;
  std::vector<EngineSeat> engines;  // any number on each device
};

// ---- commands ----
struct StartH2D {
  DeviceIndex device{};
  std::uint64_t bucket = 0;
  std::optional<SlotIndex> slot;  // straight into this one; none: into the H2D buffer
};
struct StartBroadcast {
  std::uint64_t bucket = 0;
  DeviceIndex source{};  // from its H2D buffer, into the slot of every device, its own included
  SlotIndex slot{};
};
struct StartReload {
  EngineId engine{};
  DeviceIndex device{};
  std::uint64_t bucket = 0;
  SlotIndex slot{};
};
using Command = std::variant<StartH2D, StartBroadcast, StartReload>;

// ---- events ----
struct Begin {};
struct H2DDone {
  DeviceIndex device{};
  std::uint64_t bucket = 0;
};
// The bucket is complete in the slot of this device. The source reports this after every other
// device has read from it.
struct BroadcastDone {
  DeviceIndex device{};
  std::uint64_t bucket = 0;
};
// Bucket acknowledgement: the engine has copied the bucket and synchronised its device.
struct BucketAck {
  EngineId engine{};
  std::uint64_t bucket = 0;
};
// The engine is gone. It no longer reads anything, and the pipeline does not wait for it.
struct EngineLost {
  EngineId engine{};
};
struct Failed {
  Error error;
};
using Event = std::variant<Begin, H2DDone, BroadcastDone, BucketAck, EngineLost, Failed>;

enum class PipelinePhase : std::uint8_t { kIdle, kRunning, kFinished, kFailed };

// Thread: confined to its driver. This class has more than 25 methods: each event has an overload,
// and each stage has a method that starts it.
class WeightPipeline {
 public:
  // Returns kInvalidInput for no device, more than limits::kDeviceCount, an engine on a device that
  // does not exist, two engines with the same id, or several devices with `direct`.
  [[nodiscard]] static Result<WeightPipeline> create(PipelineShape shape, StageChoice choice);

  // Returns the operations to start now. A bucket acknowledgement that is not expected is counted
  // as stray and changes nothing. The pipeline fails if an operation ends that was not started, or
  // if the last engine is lost (kPeerLost). After the end every event is ignored.
  [[nodiscard]] std::vector<Command> step(const Event& event, TimePoint at);

  [[nodiscard]] PipelinePhase phase() const noexcept { return phase_; }
  // Why the pipeline failed; only in kFailed.
  [[nodiscard]] const Error& error() const { return *error_; }
  // Returns kInternal with the first broken rule. A part of the rules is checked after every
  // transition.
  [[nodiscard]] Result<> invariants() const;

  // Reloads that were started and are not acknowledged yet.
  struct Outstanding {
    EngineId engine{};
    std::uint64_t bucket = 0;
    TimePoint since{};
  };
  [[nodiscard]] std::vector<Outstanding> outstanding() const;
  // Buckets that every engine has acknowledged.
  [[nodiscard]] std::uint64_t buckets_done() const noexcept { return done_; }
  [[nodiscard]] std::uint64_t stray_bucket_acks() const noexcept { return stray_; }
  [[nodiscard]] const StageChoice& choice() const noexcept { return choice_; }
  [[nodiscard]] const PipelineShape& shape() const noexcept { return shape_; }
  // Rounds run in each form: with the H2D copies of the following round during their broadcasts, or
  // after them.
  [[nodiscard]] std::uint64_t overlapped_rounds() const noexcept { return overlapped_rounds_; }

 private:
  // How an operation ran, for the measurement. Only a copy that began during a broadcast shows how
  // both kinds run together. A copy that only overlaps the beginning of the next broadcast does not
  // count.
  enum class Company : std::uint8_t { kAlone, kTogether, kMixed };
  struct Running {
    TimePoint since{};
    Company company = Company::kAlone;
  };
  struct Reader {
    EngineId engine{};
    DeviceIndex device{};
    TimePoint since{};
  };
  struct Slot {
    std::uint64_t bucket = kNoBucket;
    std::uint32_t broadcasts_left = 0;  // devices
    std::vector<Reader> readers;
  };

  WeightPipeline(PipelineShape shape, StageChoice choice);
  void on(const Begin& event, TimePoint at);
  void on(const H2DDone& event, TimePoint at);
  void on(const BroadcastDone& event, TimePoint at);
  void on(const BucketAck& event, TimePoint at);
  void on(const EngineLost& event, TimePoint at);
  void on(const Failed& event, TimePoint at);

  void pump(TimePoint at);
  void start_copies(TimePoint at);
  void start_broadcast(TimePoint at);
  void start_direct_copy(TimePoint at);
  void direct_copy_ended(const H2DDone& event, TimePoint at);
  void start_reloads(DeviceIndex device, std::uint64_t bucket, TimePoint at);
  void broadcast_ended(std::uint64_t bucket, TimePoint at);
  void reader_ended(SlotIndex slot, const Reader& reader);
  void count_if_done(SlotIndex slot);
  void fail_with(Error error);
  void moved(const Result<>& result, SlotIndex slot);
  [[nodiscard]] bool copying() const noexcept;
  [[nodiscard]] bool h2d_allowed(std::uint64_t bucket) const noexcept;
  [[nodiscard]] SlotIndex slot_of(std::uint64_t bucket) const noexcept;
  [[nodiscard]] DeviceIndex owner_of(std::uint64_t bucket) const noexcept;

  PipelineShape shape_;
  StageChoice choice_;
  BufferTable buffers_;
  PipelinePhase phase_ = PipelinePhase::kIdle;
  std::optional<Error> error_;
  std::vector<Command> commands_;                // of the step in progress
  std::vector<std::uint64_t> next_h2d_;          // by device: the bucket it copies next
  std::vector<std::optional<Running>> copying_;  // by device
  std::optional<Running> broadcasting_;          // bucket next_broadcast_ - 1
  std::uint64_t next_broadcast_ = 0;
  bool overlap_ = false;  // of the round whose broadcasts are running
  std::vector<Slot> slots_;
  std::uint64_t done_ = 0;
  std::uint64_t stray_ = 0;
  std::uint64_t overlapped_rounds_ = 0;
};

}  // namespace wsync::reload
