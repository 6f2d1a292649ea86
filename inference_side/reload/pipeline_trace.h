// Turns the operations of a pipeline into spans, for the trace and for the picture.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/observe/trace/recorder.h"
#include "shared/observe/trace/update_flows.h"

namespace wsync::reload {

// Data about the run that is not in its events.
struct PipelineTraceJob {
  std::map<EngineId, std::string> names = {};
  std::string version = {};
  std::vector<std::uint64_t> bucket_offsets = {};
};

// Lanes: "H2D <device>", "IPC <slot>" (broadcast, then reload until the last engine of all devices
// has acknowledged), and "engine <name>", with the id for an engine without a name. Unified devices
// have only engine lanes. Thread: confined to its driver.
class PipelineTrace {
 public:
  // `recorder` must outlive this object. If it is null, nothing is recorded.
  PipelineTrace(trace::Recorder* recorder, std::uint32_t devices, bool unified,
                PipelineTraceJob job = {})
      : recorder_(recorder), devices_(devices), unified_(unified), job_(std::move(job)) {}

  // Commands that an event causes must be reported before the ended() of that event.
  void started(const Command& command, TimePoint at);
  // `bytes`: size of the event's bucket.
  void ended(const Event& event, TimePoint at, std::uint64_t bytes);

  // The lanes of the chart from top to bottom: every H2D lane, then the IPC lanes.
  [[nodiscard]] static std::vector<std::string> chart_lanes(std::uint32_t devices);

 private:
  // Of a bucket, and of one device if it takes the bucket by its own link.
  using Key = std::pair<std::uint64_t, std::optional<DeviceIndex>>;
  struct Bucket {
    DeviceIndex source{};
    SlotIndex slot{};
    TimePoint begin{};
    TimePoint broadcast_end{};
    std::uint32_t broadcasts_left = 0;
    std::uint64_t bytes = 0;
    std::map<EngineId, TimePoint> readers;
  };
  void copy_ended(const H2DDone& event, TimePoint at, std::uint64_t bytes);
  void broadcast_ended(const BroadcastDone& event, TimePoint at, std::uint64_t bytes);
  void reload_ended(EngineId engine, std::uint64_t bucket, TimePoint at);
  void close_if_over(const Key& key, TimePoint at);
  [[nodiscard]] std::string engine_name(EngineId engine) const;
  [[nodiscard]] std::vector<trace::Arg> args_of(std::optional<trace::Stage> stage,
                                                std::uint64_t bucket, std::uint64_t bytes) const;

  trace::Recorder* recorder_;
  std::uint32_t devices_;
  bool unified_;
  PipelineTraceJob job_;
  std::map<DeviceIndex, TimePoint> copies_;
  std::map<Key, Bucket> buckets_;                 // not ended yet
  bool own_links_ = false;                        // copies go straight into IPC buffers
  std::map<EngineId, TimePoint> engine_free_at_;  // an engine copies one bucket at a time
};

}  // namespace wsync::reload
