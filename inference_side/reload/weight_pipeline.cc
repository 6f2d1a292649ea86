#include "inference_side/reload/weight_pipeline.h"

#include <algorithm>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"

namespace wsync::reload {
namespace {

constexpr BufferId h2d_buffer(DeviceIndex device) {
  return {.kind = BufferKind::kH2D, .device = device, .slot = SlotIndex{0}};
}
constexpr BufferId ipc_buffer(DeviceIndex device, SlotIndex slot) {
  return {.kind = BufferKind::kIpc, .device = device, .slot = slot};
}

}  // namespace

Result<WeightPipeline> WeightPipeline::create(PipelineShape shape, StageChoice choice) {
  if (shape.devices == 0 || shape.devices > limits::kDeviceCount)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("a pipeline over {} devices, expected 1 to {}", shape.devices,
                            limits::kDeviceCount));
  if (shape.ipc_slots == 0)
    return fail(ErrorCode::kInvalidInput, "a pipeline needs an IPC buffer on each device");
  if (shape.direct && shape.devices != 1)
    return fail(
        ErrorCode::kInvalidInput,
        fmt::format("a pipeline without broadcasts over {} devices, expected 1", shape.devices));
  std::vector<EngineId> ids;
  for (const EngineSeat& seat : shape.engines) {
    if (index_of(seat.device) >= shape.devices)
      return fail(ErrorCode::kInvalidInput,
                  fmt::format("engine {} is on device {}, but the group has {} devices",
                              number(seat.engine), index_of(seat.device), shape.devices));
    ids.push_back(seat.engine);
  }
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("engine {} is attached twice", number(*twice)));
  return WeightPipeline(std::move(shape), choice);
}

WeightPipeline::WeightPipeline(PipelineShape shape, StageChoice choice)
    : shape_(std::move(shape)),
      choice_(choice),
      buffers_(shape_.devices, shape_.ipc_slots),
      copying_(shape_.devices),
      slots_(shape_.ipc_slots) {
  for (std::uint32_t d = 0; d < shape_.devices; ++d) next_h2d_.push_back(d);
}

std::vector<Command> WeightPipeline::step(const Event& event, TimePoint at) {
  commands_.clear();
  if (phase_ == PipelinePhase::kFinished || phase_ == PipelinePhase::kFailed) return {};
  std::visit([&](const auto& e) { on(e, at); }, event);
  if (phase_ == PipelinePhase::kRunning) pump(at);
  if (phase_ == PipelinePhase::kFailed) commands_.clear();
  return std::exchange(commands_, {});
}

void WeightPipeline::on(const Begin&, TimePoint) {
  if (phase_ == PipelinePhase::kIdle) phase_ = PipelinePhase::kRunning;
}

void WeightPipeline::on(const H2DDone& event, TimePoint at) {
  if (shape_.direct) return direct_copy_ended(event, at);
  const auto device = index_of(event.device);
  if (device >= shape_.devices || !copying_[device] ||
      buffers_.bucket(h2d_buffer(event.device)) != event.bucket)
    return fail_with(
        {ErrorCode::kInternal,
         fmt::format("an H2D copy of bucket {} on device {} ended that was not started",
                     event.bucket, device)});
  moved(buffers_.filled(h2d_buffer(event.device)), slot_of(event.bucket));
  const Running copy = *std::exchange(copying_[device], std::nullopt);
  // Ignore the last bucket: it is seldom full, so its times would be too short.
  if (copy.company != Company::kMixed && event.bucket + 1 != shape_.buckets)
    choice_.h2d_took(at - copy.since, copy.company == Company::kTogether);
}

void WeightPipeline::on(const BroadcastDone& event, TimePoint at) {
  const SlotIndex slot = slot_of(event.bucket);
  if (index_of(event.device) >= shape_.devices || !broadcasting_ ||
      event.bucket + 1 != next_broadcast_ ||
      buffers_.state(ipc_buffer(event.device, slot)) != BufferState::kFilling)
    return fail_with(
        {ErrorCode::kInternal,
         fmt::format("a broadcast of bucket {} ended on device {} that was not started",
                     event.bucket, index_of(event.device))});
  moved(buffers_.filled(ipc_buffer(event.device, slot)), slot);
  start_reloads(event.device, event.bucket, at);
  if (--slots_[index_of(slot)].broadcasts_left == 0) broadcast_ended(event.bucket, at);
}

void WeightPipeline::on(const BucketAck& event, TimePoint) {
  const SlotIndex slot = slot_of(event.bucket);
  Slot& held = slots_[index_of(slot)];
  const auto reader = std::find_if(held.readers.begin(), held.readers.end(),
                                   [&](const Reader& r) { return r.engine == event.engine; });
  if (held.bucket != event.bucket || reader == held.readers.end()) {
    ++stray_;
    return;
  }
  const Reader ended = *reader;
  held.readers.erase(reader);
  reader_ended(slot, ended);
  if (planted("pipeline_first_bucket_ack_frees")) {
    for (const Reader& other : std::exchange(held.readers, {})) reader_ended(slot, other);
  }
  count_if_done(slot);
}

void WeightPipeline::on(const EngineLost& event, TimePoint) {
  if (std::erase_if(shape_.engines,
                    [&](const EngineSeat& s) { return s.engine == event.engine; }) == 0)
    return;
  if (shape_.engines.empty()) {
    // It owes nothing, although nothing can go on: otherwise the next run would wait for its
    // answers.
    if (!planted("last_engine_lost_owes"))
      for (Slot& held : slots_)
        std::erase_if(held.readers, [&](const Reader& r) { return r.engine == event.engine; });
    return fail_with({ErrorCode::kPeerLost,
                      fmt::format("every engine of the group is lost, engine {} was the last one",
                                  number(event.engine))});
  }
  for (std::uint32_t s = 0; s < shape_.ipc_slots; ++s) {
    Slot& held = slots_[s];
    const auto reader = std::find_if(held.readers.begin(), held.readers.end(),
                                     [&](const Reader& r) { return r.engine == event.engine; });
    if (reader == held.readers.end()) continue;
    const Reader ended = *reader;
    held.readers.erase(reader);
    reader_ended(SlotIndex{s}, ended);
    count_if_done(SlotIndex{s});
  }
}

void WeightPipeline::on(const Failed& event, TimePoint) { fail_with(event.error); }

// Start broadcasts first: a broadcast that starts now may allow the copies of the next round.
void WeightPipeline::pump(TimePoint at) {
  if (shape_.direct) {
    start_direct_copy(at);
  } else {
    start_broadcast(at);
    start_copies(at);
  }
  if (done_ == shape_.buckets) phase_ = PipelinePhase::kFinished;
}

void WeightPipeline::start_copies(TimePoint at) {
  for (std::uint32_t d = 0; d < shape_.devices; ++d) {
    const DeviceIndex device{d};
    const std::uint64_t bucket = next_h2d_[d];
    if (bucket >= shape_.buckets || !h2d_allowed(bucket) ||
        buffers_.state(h2d_buffer(device)) != BufferState::kFree)
      continue;
    moved(buffers_.fill(h2d_buffer(device), bucket), slot_of(bucket));
    next_h2d_[d] += shape_.devices;
    copying_[d] =
        Running{.since = at, .company = broadcasting_ ? Company::kTogether : Company::kAlone};
    if (broadcasting_) broadcasting_->company = Company::kTogether;
    commands_.emplace_back(StartH2D{.device = device, .bucket = bucket, .slot = std::nullopt});
  }
}

void WeightPipeline::start_direct_copy(TimePoint at) {
  const std::uint64_t bucket = next_h2d_[0];
  const SlotIndex slot = slot_of(bucket);
  const bool is_free = buffers_.slot_free(slot) || planted("pipeline_direct_into_read_slot");
  if (copying_[0] || bucket >= shape_.buckets || !is_free) return;
  moved(buffers_.fill(ipc_buffer(DeviceIndex{0}, slot), bucket), slot);
  slots_[index_of(slot)] = Slot{.bucket = bucket, .broadcasts_left = 1, .readers = {}};
  copying_[0] = Running{.since = at};
  next_h2d_[0] = bucket + 1;
  next_broadcast_ = bucket + 1;
  commands_.emplace_back(StartH2D{.device = DeviceIndex{0}, .bucket = bucket, .slot = slot});
}

void WeightPipeline::direct_copy_ended(const H2DDone& event, TimePoint at) {
  const SlotIndex slot = slot_of(event.bucket);
  const BufferId buffer = ipc_buffer(DeviceIndex{0}, slot);
  if (index_of(event.device) != 0 || !copying_[0] || buffers_.bucket(buffer) != event.bucket ||
      buffers_.state(buffer) != BufferState::kFilling)
    return fail_with(
        {ErrorCode::kInternal,
         fmt::format("an H2D copy of bucket {} on device {} ended that was not started",
                     event.bucket, index_of(event.device))});
  copying_[0].reset();
  moved(buffers_.filled(buffer), slot);
  slots_[index_of(slot)].broadcasts_left = 0;
  start_reloads(event.device, event.bucket, at);
  count_if_done(slot);
}

bool WeightPipeline::copying() const noexcept {
  return std::any_of(copying_.begin(), copying_.end(), [](const auto& c) { return c.has_value(); });
}

// Round 0 may always start. A later round may start when all broadcasts of the previous round are
// over, or when the previous round overlaps. The H2D buffer of the device is free only after the
// device's own broadcast.
bool WeightPipeline::h2d_allowed(std::uint64_t bucket) const noexcept {
  const std::uint64_t first_of_round = bucket - bucket % shape_.devices;
  if (first_of_round == 0) return true;
  const std::uint64_t broadcasts_over = next_broadcast_ - (broadcasting_ ? 1 : 0);
  return overlap_ || broadcasts_over >= first_of_round;
}

void WeightPipeline::start_broadcast(TimePoint at) {
  if (broadcasting_ || next_broadcast_ >= shape_.buckets) return;
  const std::uint64_t bucket = next_broadcast_;
  const DeviceIndex source = owner_of(bucket);
  const SlotIndex slot = slot_of(bucket);
  if (buffers_.bucket(h2d_buffer(source)) != bucket ||
      buffers_.state(h2d_buffer(source)) != BufferState::kReady || !buffers_.slot_free(slot))
    return;
  if (bucket % shape_.devices == 0) {
    if (!choice_.overlap() && copying()) return;
    overlap_ = choice_.overlap();
    if (overlap_ && bucket + shape_.devices < shape_.buckets) ++overlapped_rounds_;
  }
  moved(buffers_.begin_reload(h2d_buffer(source), 1), slot);
  for (std::uint32_t d = 0; d < shape_.devices; ++d)
    moved(buffers_.fill(ipc_buffer(DeviceIndex{d}, slot), bucket), slot);
  slots_[index_of(slot)] = Slot{.bucket = bucket, .broadcasts_left = shape_.devices, .readers = {}};
  broadcasting_ = Running{.since = at};
  for (auto& copy : copying_) {
    if (!copy) continue;
    if (copy->company == Company::kAlone) copy->company = Company::kMixed;
    if (broadcasting_->company != Company::kTogether) broadcasting_->company = copy->company;
  }
  ++next_broadcast_;
  commands_.emplace_back(StartBroadcast{.bucket = bucket, .source = source, .slot = slot});
}

void WeightPipeline::start_reloads(DeviceIndex device, std::uint64_t bucket, TimePoint at) {
  const SlotIndex slot = slot_of(bucket);
  Slot& held = slots_[index_of(slot)];
  std::uint32_t readers = 0;
  for (const EngineSeat& seat : shape_.engines) {
    if (seat.device != device) continue;
    if (planted("pipeline_skips_bucket") && bucket == 1) continue;
    ++readers;
    held.readers.push_back({.engine = seat.engine, .device = device, .since = at});
    SlotIndex told = slot;
    if (planted("pipeline_wrong_slot"))
      told = SlotIndex{(static_cast<std::uint32_t>(slot) + 1) % shape_.ipc_slots};
    commands_.emplace_back(
        StartReload{.engine = seat.engine, .device = device, .bucket = bucket, .slot = told});
  }
  moved(buffers_.begin_reload(ipc_buffer(device, slot), readers), slot);
}

void WeightPipeline::broadcast_ended(std::uint64_t bucket, TimePoint at) {
  moved(buffers_.reader_done(h2d_buffer(owner_of(bucket))), slot_of(bucket));
  const Running ended = *std::exchange(broadcasting_, std::nullopt);
  if (ended.company != Company::kMixed && bucket + 1 != shape_.buckets)
    choice_.broadcast_took(at - ended.since, ended.company == Company::kTogether);
  count_if_done(slot_of(bucket));
}

void WeightPipeline::reader_ended(SlotIndex slot, const Reader& reader) {
  moved(buffers_.reader_done(ipc_buffer(reader.device, slot)), slot);
}

// A bucket is done when its broadcast is over and no engine reads it any more.
void WeightPipeline::count_if_done(SlotIndex slot) {
  Slot& held = slots_[index_of(slot)];
  if (held.bucket == kNoBucket || held.broadcasts_left != 0 || !held.readers.empty()) return;
  held.bucket = kNoBucket;
  ++done_;
}

void WeightPipeline::fail_with(Error error) {
  error_ = std::move(error);
  phase_ = PipelinePhase::kFailed;
}

// Events are checked before they change a buffer, so a refused transition is a defect of this file.
void WeightPipeline::moved(const Result<>& result, SlotIndex slot) {
  WSYNC_CHECK(result.has_value(), result.error().message());
  const Result<> holds = buffers_.invariants_of(slot);
  WSYNC_CHECK(holds.has_value(), holds.error().message());
}

Result<> WeightPipeline::invariants() const {
  const auto broken = [](std::string rule) { return fail(ErrorCode::kInternal, std::move(rule)); };
  WSYNC_TRY(buffers_.invariants());
  if (done_ > next_broadcast_)
    return broken(
        fmt::format("{} buckets are done and only {} were broadcast", done_, next_broadcast_));
  for (std::uint32_t s = 0; s < shape_.ipc_slots; ++s) {
    const Slot& held = slots_[s];
    if (held.bucket == kNoBucket && !buffers_.slot_free(SlotIndex{s}))
      return broken(fmt::format("slot {} counts as done and is not free", s));
    for (const Reader& reader : held.readers) {
      const BufferId id = ipc_buffer(reader.device, SlotIndex{s});
      if (buffers_.state(id) != BufferState::kReloading || buffers_.bucket(id) != held.bucket)
        return broken(fmt::format("engine {} reads bucket {} from {}, which is {}",
                                  number(reader.engine), held.bucket, to_string(id),
                                  buffer_state_name(buffers_.state(id))));
    }
  }
  if (phase_ == PipelinePhase::kFinished && next_broadcast_ != shape_.buckets)
    return broken(fmt::format("finished after {} of {} buckets", next_broadcast_, shape_.buckets));
  return {};
}

std::vector<WeightPipeline::Outstanding> WeightPipeline::outstanding() const {
  std::vector<Outstanding> all;
  for (const Slot& held : slots_)
    for (const Reader& reader : held.readers)
      all.push_back({.engine = reader.engine, .bucket = held.bucket, .since = reader.since});
  return all;
}

SlotIndex WeightPipeline::slot_of(std::uint64_t bucket) const noexcept {
  return SlotIndex{static_cast<std::uint32_t>(bucket % shape_.ipc_slots)};
}

DeviceIndex WeightPipeline::owner_of(std::uint64_t bucket) const noexcept {
  return DeviceIndex{static_cast<std::uint32_t>(bucket % shape_.devices)};
}

}  // namespace wsync::reload
