#include "inference_side/reload/pipeline_trace.h"

#include <algorithm>

#include "inference_side/reload/device_group.h"
#include "shared/base/format.h"

namespace wsync::reload {
namespace {

std::string h2d_lane(DeviceIndex device) {
  return fmt::format("H2D {}", static_cast<std::uint32_t>(device));
}
std::string ipc_lane(SlotIndex slot) {
  return fmt::format("IPC {}", static_cast<std::uint32_t>(slot));
}

}  // namespace

std::vector<std::string> PipelineTrace::chart_lanes(std::uint32_t devices) {
  std::vector<std::string> lanes;
  for (std::uint32_t d = 0; d < devices; ++d) lanes.push_back(h2d_lane(DeviceIndex{d}));
  for (std::uint32_t s = 0; s < kIpcSlots; ++s) lanes.push_back(ipc_lane(SlotIndex{s}));
  return lanes;
}

void PipelineTrace::started(const Command& command, TimePoint at) {
  if (recorder_ == nullptr) return;
  if (const auto* copy = std::get_if<StartH2D>(&command)) {
    copies_[copy->device] = at;
    own_links_ = copy->slot.has_value();
    if (own_links_)
      buckets_[{copy->bucket, copy->device}] = {
          .source = copy->device, .slot = *copy->slot, .begin = at, .broadcasts_left = 0};
  } else if (const auto* broadcast = std::get_if<StartBroadcast>(&command)) {
    buckets_[{broadcast->bucket, std::nullopt}] = {.source = broadcast->source,
                                                   .slot = broadcast->slot,
                                                   .begin = at,
                                                   .broadcasts_left = devices_};
  } else if (const auto* reload = std::get_if<StartReload>(&command)) {
    const auto device = own_links_ ? std::optional(reload->device) : std::nullopt;
    buckets_[{reload->bucket, device}].readers[reload->engine] = at;
  }
}

void PipelineTrace::ended(const Event& event, TimePoint at, std::uint64_t bytes) {
  if (recorder_ == nullptr) return;
  if (const auto* copy = std::get_if<H2DDone>(&event)) {
    copy_ended(*copy, at, bytes);
  } else if (const auto* broadcast = std::get_if<BroadcastDone>(&event)) {
    broadcast_ended(*broadcast, at, bytes);
  } else if (const auto* ack = std::get_if<BucketAck>(&event)) {
    reload_ended(ack->engine, ack->bucket, at);
  } else if (const auto* lost = std::get_if<EngineLost>(&event)) {
    std::vector<Key> open;
    for (const auto& [key, state] : buckets_)
      if (state.readers.contains(lost->engine)) open.push_back(key);
    for (const Key& key : open) {
      buckets_[key].readers.erase(lost->engine);
      close_if_over(key, at);
    }
  }
}

void PipelineTrace::copy_ended(const H2DDone& event, TimePoint at, std::uint64_t bytes) {
  if (unified_) return;
  TimePoint begin = copies_[event.device];
  if (const auto own = buckets_.find({event.bucket, event.device}); own != buckets_.end()) {
    own->second.bytes = bytes;
    own->second.broadcast_end = at;
    begin = own->second.begin;  // the next copy to this device may have begun
  }
  recorder_->record({.name = fmt::format("H2D copy of bucket {}", event.bucket),
                     .lane = h2d_lane(event.device),
                     .category = trace::Category::kH2D,
                     .begin = begin,
                     .end = at,
                     .label = {},
                     .args = args_of(trace::Stage::kH2D, event.bucket, bytes)});
}

void PipelineTrace::broadcast_ended(const BroadcastDone& event, TimePoint at, std::uint64_t bytes) {
  const auto found = buckets_.find({event.bucket, std::nullopt});
  if (found == buckets_.end()) return;
  Bucket& bucket = found->second;
  bucket.bytes = bytes;
  bucket.broadcast_end = std::max(bucket.broadcast_end, at);
  if (--bucket.broadcasts_left != 0) return;
  if (!unified_) {
    const auto source = static_cast<std::uint32_t>(bucket.source);
    std::vector<trace::Arg> args = args_of(trace::Stage::kBroadcast, event.bucket, bytes);
    args.push_back({.name = "source", .value = std::int64_t{source}});
    recorder_->record({.name = fmt::format("broadcast of bucket {}", event.bucket),
                       .lane = ipc_lane(bucket.slot),
                       .category = trace::Category::kBroadcast,
                       .begin = bucket.begin,
                       .end = bucket.broadcast_end,
                       .label = std::to_string(source),
                       .args = std::move(args)});
  }
  close_if_over(found->first, at);
}

void PipelineTrace::reload_ended(EngineId engine, std::uint64_t bucket, TimePoint at) {
  const auto found = std::ranges::find_if(buckets_, [&](const auto& open) {
    return open.first.first == bucket && open.second.readers.contains(engine);
  });
  if (found == buckets_.end()) return;
  const auto reader = found->second.readers.find(engine);
  TimePoint& free_at = engine_free_at_[engine];
  const std::string name = engine_name(engine);
  std::vector<trace::Arg> args = args_of(
      unified_ ? std::nullopt : std::optional(trace::Stage::kReload), bucket, found->second.bytes);
  args.push_back({.name = "engine", .value = name});
  recorder_->record({.name = fmt::format("reload of bucket {}", bucket),
                     .lane = "engine " + name,
                     .category = trace::Category::kReload,
                     .begin = std::min(at, std::max(free_at, reader->second)),
                     .end = at,
                     .label = {},
                     .args = std::move(args)});
  free_at = at;
  found->second.readers.erase(reader);
  close_if_over(found->first, at);
}

std::string PipelineTrace::engine_name(EngineId engine) const {
  const auto name = job_.names.find(engine);
  return name != job_.names.end() ? name->second
                                  : std::to_string(static_cast<std::uint32_t>(engine));
}

std::vector<trace::Arg> PipelineTrace::args_of(std::optional<trace::Stage> stage,
                                               std::uint64_t bucket, std::uint64_t bytes) const {
  if (stage && bucket < job_.bucket_offsets.size())
    return trace::stage_args(*stage, {.version = job_.version,
                                      .bucket = bucket,
                                      .offset = job_.bucket_offsets[bucket],
                                      .bytes = bytes});
  std::vector<trace::Arg> args = {{.name = "bucket", .value = static_cast<std::int64_t>(bucket)},
                                  {.name = "bytes", .value = static_cast<std::int64_t>(bytes)}};
  if (!job_.version.empty()) args.push_back({.name = "version", .value = job_.version});
  return args;
}

// On the IPC lane a reload begins at the end of the broadcast on the last device.
void PipelineTrace::close_if_over(const Key& key, TimePoint at) {
  const auto found = buckets_.find(key);
  const std::uint64_t bucket = key.first;
  const Bucket& state = found->second;
  if (state.broadcasts_left != 0 || !state.readers.empty()) return;
  if (!unified_ && at > state.broadcast_end)
    recorder_->record({.name = fmt::format("reload of bucket {}", bucket),
                       .lane = ipc_lane(state.slot),
                       .category = trace::Category::kReload,
                       .begin = state.broadcast_end,
                       .end = at,
                       .label = {},
                       .args = args_of(std::nullopt, bucket, state.bytes)});
  buckets_.erase(found);
}

}  // namespace wsync::reload
