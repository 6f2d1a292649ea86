// The weight pipeline on real devices. It executes the commands of WeightPipeline, notifies engines
// of their buckets, and receives their bucket acknowledgements.
//
// Thread: every public function may be called from any thread. Each run has one driver thread, on
// which the listener is called. The listener may call handle_bucket_ack(), engine_lost() and
// abort(), but neither start() nor the destructor.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "inference_side/reload/device_group.h"
#include "inference_side/reload/pipeline_set.h"
#include "inference_side/reload/pipeline_trace.h"
#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/switch_deadlines.h"

namespace wsync::reload {

// An engine may copy this bucket out of this IPC buffer of its device. On unified devices it copies
// from the staged version, and the slot is not used. Every notification must be answered by
// handle_bucket_ack() or engine_lost(), even after the run has failed.
struct BucketReady {
  EngineId engine{};
  DeviceIndex device{};
  std::uint64_t bucket = 0;
  SlotIndex slot{};
  std::uint64_t bytes = 0;
};

struct LostEngine {
  EngineId engine{};
  Error reason;
};

// The result of a run.
struct PipelineReport {
  std::uint64_t buckets = 0;
  std::uint64_t bytes = 0;  // size of one model
  TimePoint begin{};
  TimePoint end{};
  std::vector<LostEngine> lost;  // all other engines have every bucket
  std::uint64_t stray_bucket_acks = 0;
  bool own_links = false;               // each device took its bytes by its own link
  std::uint64_t overlapped_rounds = 0;  // rounds that ran in three-stage form
  std::optional<Stages> stages;         // the chosen form; std::nullopt while measuring
  StageTimings timings;
};

// Bytes copied by all runs since the runner was created; 0 on unified devices.
struct DeviceCopies {
  std::uint64_t h2d_bytes = 0;
  std::uint64_t broadcast_bytes = 0;  // counted for each device's IPC buffer
};

class PipelineListener {
 public:
  virtual ~PipelineListener() = default;
  virtual void on_bucket_ready(const BucketReady& ready) = 0;
  // The runner has dropped an engine that did not answer. The engine must not be counted as loaded,
  // whatever it reports later, because its IPC buffers may have been overwritten while it read
  // them.
  virtual void on_engine_dropped(const LostEngine& dropped) = 0;
  // The last call of a run. On success every engine that is not in `lost` has acknowledged every
  // bucket. Otherwise the error contains the reason, and no device work is running any more.
  virtual void on_finished(const Result<PipelineReport>& result) = 0;
};

struct PipelineOptions {
  // All of one kind; the position is the device index.
  std::vector<std::unique_ptr<device::Device>> devices;
  std::uint64_t buffer_bytes = 0;  // at least the largest bucket; 0: choose_buffer_bytes()
  Stages stages = Stages::kAuto;
  // An engine that holds buckets and sends no acknowledgement for this long is dropped.
  std::chrono::nanoseconds bucket_ack_deadline =
      std::chrono::milliseconds(limits::kBucketAckDeadlineMs);
  trace::Recorder* trace = nullptr;  // may be null; outlives the runner
  bool keep_buffers = true;          // see DeviceGroupOptions
  std::optional<collective::GroupKind> collective = std::nullopt;
  Transfer transfer = Transfer::kAuto;
};

// One version to load into the engines.
struct PipelineJob {
  std::uint64_t buckets = 0;
  // The staged bytes of a bucket. Called on the driver thread, once for each bucket, or with own
  // links once for each device and bucket. The bytes must stay valid until on_finished. An error
  // fails the run.
  std::function<Result<std::span<const std::byte>>(std::uint64_t bucket)> bucket_bytes;
  std::vector<EngineSeat> engines;  // an engine must keep its id in all runs
  // By device: what its engines need. Empty: they need all of each bucket, and own links are not
  // used.
  std::vector<std::vector<std::shared_ptr<const NeededBytes>>> needed = {};
  std::uint64_t version_bytes = 0;               // of all buckets; with `needed`
  std::map<EngineId, std::string> engine_names;  // for the trace; may be empty
  // Also for the trace: the version, and the offset of each bucket in its arena. Without them the
  // spans are not assigned to an update.
  std::string version = {};
  std::vector<std::uint64_t> bucket_offsets = {};
  TimePoint deadline{};
  // Replaces the deadline of the options if it is shorter.
  std::chrono::nanoseconds bucket_ack_deadline = std::chrono::nanoseconds::max();
};

// This class has more than 25 methods: the callers on two threads, each command of WeightPipeline
// and each callback have their own.
class PipelineRunner {
 public:
  // Allocates the buffers if they are kept. On GPUs it also connects the devices, which takes NCCL
  // seconds. Errors as DeviceGroup::create.
  [[nodiscard]] static Result<std::unique_ptr<PipelineRunner>> create(PipelineOptions options);
  // Aborts a run in progress, and waits for its end.
  ~PipelineRunner();
  PipelineRunner(const PipelineRunner&) = delete;
  PipelineRunner& operator=(const PipelineRunner&) = delete;

  // Begins a run and returns. `listener` must outlive the run. Returns kBusy while another run is
  // in progress; kInvalidInput for an engine on a device that does not exist; kRefused without
  // buffers. A run after a failed run first waits for the missing bucket acknowledgements, because
  // engines may still be reading the buffers.
  [[nodiscard]] Result<> start(PipelineJob job, PipelineListener& listener);
  // Bucket acknowledgement: the engine has copied the bucket and synchronised its device, so the
  // buffer may be overwritten.
  void handle_bucket_ack(EngineId engine, std::uint64_t bucket);
  // The engine is gone or has failed. It no longer reads any buffer, and the run does not wait for
  // it.
  void engine_lost(EngineId engine, const Error& reason);
  // Ends the run in progress as soon as its copies have stopped. Does nothing without a run.
  void abort(const Error& reason);
  // Waits until the newest run has ended and on_finished has returned, and returns its result.
  // Returns kNotFound if there was no run. Must not be called from the listener.
  [[nodiscard]] Result<PipelineReport> wait();

  [[nodiscard]] bool running() const;
  // As in DeviceGroup, but only between runs: returns kBusy during a run. These calls block and
  // must not be made from the listener.
  [[nodiscard]] Result<> hold_buffers();
  [[nodiscard]] Result<> free_buffers();
  // The same for streams and communicators on GPUs, which a failed run has destroyed. Creates them
  // again, so that the next run is not delayed. Does nothing if they exist, and on host devices.
  [[nodiscard]] Result<> connect();
  // Devices, buffers and their handles.
  [[nodiscard]] const DeviceGroup& group() const noexcept { return *group_; }
  // Any thread.
  [[nodiscard]] DeviceCopies copies() const noexcept {
    return {.h2d_bytes = h2d_bytes_, .broadcast_bytes = broadcast_bytes_};
  }

 private:
  struct Posted {
    Event event;
    TimePoint at{};
  };
  // The state of one run. It belongs to the driver thread.
  struct Run;
  using Owed = std::pair<EngineId, std::uint64_t>;

  PipelineRunner(PipelineOptions options, std::unique_ptr<DeviceGroup> group);
  void post(Event event);
  [[nodiscard]] Result<bool> choose_own_links(const PipelineJob& job) const;
  void drive(PipelineJob job, PipelineListener& listener, PipelineSet pipeline);
  [[nodiscard]] Result<> settle_debts(Run& run);
  void loop(Run& run);
  [[nodiscard]] std::deque<Posted> next_events(TimePoint until);
  void step(Run& run, const Event& event, TimePoint at);
  void execute(Run& run, const Command& command);
  void execute(Run& run, const StartH2D& command);
  [[nodiscard]] Result<std::uint64_t> copy(Run& run, const StartH2D& command,
                                           std::span<const std::byte> bytes);
  void execute(Run& run, const StartBroadcast& command);
  void execute(Run& run, const StartReload& command);
  void check_clock(Run& run, TimePoint at);
  void drop(Run& run, EngineId engine, Error reason);
  [[nodiscard]] Error deadline_error(const Run& run) const;
  void finish(Run& run);

  PipelineOptions options_;
  std::unique_ptr<DeviceGroup> group_;
  std::vector<std::size_t> links_;  // by device: its link; devices of one GPU have the same one
  std::size_t link_count_ = 0;
  StageChoice choice_;  // driver thread
  std::atomic<std::uint64_t> h2d_bytes_ = 0;
  std::atomic<std::uint64_t> broadcast_bytes_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Posted> events_;
  std::vector<LostEngine> lost_;  // of the run in progress
  std::set<Owed> owed_;           // acknowledgements that engines still owe from a failed run
  std::optional<Error> abort_;
  bool running_ = false;
  bool notifying_ = false;  // on_finished is being called
  std::optional<Result<PipelineReport>> result_;
  std::mutex driver_mutex_;  // guards driver_
  std::jthread driver_;
};

}  // namespace wsync::reload
