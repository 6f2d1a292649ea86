#include "inference_side/reload/pipeline_set.h"

#include <algorithm>
#include <utility>

#include "shared/base/planted.h"

namespace wsync::reload {
namespace {

// 0.90 / 0.65, less a tenth for what the prediction does not know.
constexpr double kOwnLinksMax = 1.25;

std::optional<EngineId> engine_of(const Event& event) {
  if (const auto* ack = std::get_if<BucketAck>(&event)) return ack->engine;
  if (const auto* lost = std::get_if<EngineLost>(&event)) return lost->engine;
  return std::nullopt;
}

DeviceIndex* device_in(Event& event) {
  if (auto* copied = std::get_if<H2DDone>(&event)) return &copied->device;
  if (auto* sent = std::get_if<BroadcastDone>(&event)) return &sent->device;
  return nullptr;
}

DeviceIndex* device_in(Command& command) {
  if (auto* copy = std::get_if<StartH2D>(&command)) return &copy->device;
  if (auto* reload = std::get_if<StartReload>(&command)) return &reload->device;
  return nullptr;
}

}  // namespace

bool own_links_pay(std::uint64_t version_bytes, std::span<const std::uint64_t> links) {
  if (links.empty()) return false;
  // Nothing is broadcast behind one link.
  if (links.size() == 1) return links.front() <= version_bytes;
  const auto most = static_cast<double>(*std::ranges::max_element(links));
  return most * static_cast<double>(links.size()) <=
         kOwnLinksMax * static_cast<double>(version_bytes);
}

Result<PipelineSet> PipelineSet::create(PipelineShape shape, StageChoice choice, bool own_links) {
  PipelineSet set(own_links, choice);
  // Also finds what no part would find: an engine without a device, and one that comes twice.
  auto whole = WSYNC_TRY(WeightPipeline::create(shape, choice));
  if (!own_links) {
    std::vector<EngineId> engines;
    for (const EngineSeat& seat : shape.engines) engines.push_back(seat.engine);
    set.parts_.push_back(
        {.device = {}, .engines = std::move(engines), .pipeline = std::move(whole)});
    return set;
  }
  for (std::uint32_t d = 0; d < shape.devices; ++d) {
    PipelineShape own{.devices = 1,
                      .buckets = shape.buckets,
                      .ipc_slots = shape.ipc_slots,
                      .direct = true,
                      .engines = {}};
    std::vector<EngineId> engines;
    for (const EngineSeat& seat : shape.engines) {
      if (index_of(seat.device) != d) continue;
      own.engines.push_back({.engine = seat.engine, .device = DeviceIndex{0}});
      engines.push_back(seat.engine);
    }
    if (engines.empty()) continue;
    auto pipeline = WSYNC_TRY(WeightPipeline::create(std::move(own), choice));
    set.parts_.push_back(
        {.device = DeviceIndex{d}, .engines = std::move(engines), .pipeline = std::move(pipeline)});
  }
  return set;
}

std::vector<Command> PipelineSet::step(const Event& event, TimePoint at) {
  if (phase_ == PipelinePhase::kFinished || phase_ == PipelinePhase::kFailed) return {};
  std::vector<Command> commands;
  if (const auto* failed = std::get_if<Failed>(&event)) {
    // Whatever the parts say: those that have ended hear nothing any more, and a copy to a device
    // without engines may be what has failed.
    for (Part& part : parts_) step(part, event, at, commands);
    if (planted("failure_after_loss_ignored")) {
      settle();
      return {};
    }
    phase_ = PipelinePhase::kFailed;
    error_ = failed->error;
    return {};
  }
  if (std::holds_alternative<Begin>(event)) {
    phase_ = PipelinePhase::kRunning;
    for (Part& part : parts_) step(part, event, at, commands);
  } else if (Part* part = part_of(event)) {
    step(*part, event, at, commands);
  }
  settle();
  if (phase_ == PipelinePhase::kFailed) commands.clear();
  return commands;
}

// The pipeline of an engine or of a device. Without it nothing is left to do, because an engine
// that is in none is lost.
PipelineSet::Part* PipelineSet::part_of(const Event& event) {
  if (!own_links_) return &parts_.front();
  Event copy = event;
  const DeviceIndex* device = device_in(copy);
  const auto engine = engine_of(event);
  const auto found = std::ranges::find_if(parts_, [&](const Part& part) {
    if (device != nullptr) return part.device == *device;
    return engine && std::ranges::count(part.engines, *engine) != 0;
  });
  return found == parts_.end() ? nullptr : &*found;
}

void PipelineSet::step(Part& part, const Event& event, TimePoint at,
                       std::vector<Command>& commands) {
  if (!own_links_) {
    commands = part.pipeline.step(event, at);
    return;
  }
  Event own = event;
  if (DeviceIndex* device = device_in(own)) *device = DeviceIndex{0};
  if (std::holds_alternative<H2DDone>(own) && part.copying > 0) --part.copying;
  for (Command& command : part.pipeline.step(own, at)) {
    if (DeviceIndex* device = device_in(command)) *device = part.device;
    if (std::holds_alternative<StartH2D>(command)) ++part.copying;
    commands.push_back(std::move(command));
  }
  part.is_given_up = part.is_given_up || (std::holds_alternative<EngineLost>(own) &&
                                          part.pipeline.phase() == PipelinePhase::kFailed);
}

// What the phases of the parts mean for the run.
void PipelineSet::settle() {
  bool is_over = true;
  for (const Part& part : parts_) {
    const PipelinePhase phase = part.pipeline.phase();
    const bool copies = part.copying > 0 && !planted("lost_device_not_awaited");
    if (phase == PipelinePhase::kFailed && !(own_links_ && part.is_given_up)) {
      phase_ = PipelinePhase::kFailed;
      if (!error_) error_ = part.pipeline.error();
      return;
    }
    is_over = is_over && (part.is_given_up ? !copies : phase == PipelinePhase::kFinished);
  }
  if (phase_ != PipelinePhase::kRunning || !is_over) return;
  const auto lost = [](const Part& part) { return part.is_given_up; };
  if (own_links_ && !parts_.empty() && std::ranges::all_of(parts_, lost)) {
    phase_ = PipelinePhase::kFailed;
    error_ = parts_.back().pipeline.error();
    return;
  }
  phase_ = PipelinePhase::kFinished;
}

std::vector<WeightPipeline::Outstanding> PipelineSet::outstanding() const {
  std::vector<WeightPipeline::Outstanding> all;
  for (const Part& part : parts_)
    for (const auto& one : part.pipeline.outstanding()) all.push_back(one);
  return all;
}

std::uint64_t PipelineSet::buckets_done() const noexcept {
  std::optional<std::uint64_t> least;
  for (const Part& part : parts_) {
    if (part.is_given_up) continue;
    const std::uint64_t done = part.pipeline.buckets_done();
    least = least ? std::min(*least, done) : done;
  }
  return least.value_or(0);
}

std::uint64_t PipelineSet::stray_bucket_acks() const noexcept {
  std::uint64_t stray = 0;
  for (const Part& part : parts_) stray += part.pipeline.stray_bucket_acks();
  return stray;
}

std::uint64_t PipelineSet::overlapped_rounds() const noexcept {
  std::uint64_t rounds = 0;
  for (const Part& part : parts_) rounds += part.pipeline.overlapped_rounds();
  return rounds;
}

const StageChoice& PipelineSet::choice() const noexcept {
  return own_links_ ? choice_ : parts_.front().pipeline.choice();
}

}  // namespace wsync::reload
