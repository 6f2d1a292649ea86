#include "inference_side/reference_engine/step_protocol.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "shared/base/bytes.h"
#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"

namespace wsync::engine::reference {
namespace {

constexpr std::uint32_t kStepMagic = 0x53534e57;  // "WNSS"

std::string_view kind_name(StepKind kind) {
  switch (kind) {
    case StepKind::kJoin:
      return "join";
    case StepKind::kGo:
      return "go";
    case StepKind::kStop:
      return "stop";
    case StepKind::kReady:
      return "ready";
    case StepKind::kRefused:
      return "refused";
    case StepKind::kStopped:
      return "stopped";
    case StepKind::kProceed:
      return "proceed";
    case StepKind::kAborted:
      return "aborted";
    case StepKind::kPartial:
      return "partial";
    case StepKind::kTotal:
      return "total";
  }
  return "unknown";
}

}  // namespace

std::array<std::byte, kStepMessageBytes> encode(const StepMessage& message) {
  ByteWriter writer;
  writer.put(kStepMagic);
  writer.put(message.kind);
  writer.put(static_cast<std::uint8_t>(message.torn ? 1 : 0));
  writer.put(std::uint16_t{0});
  writer.put(message.rank);
  writer.put(message.world_size);
  writer.put(message.step);
  writer.put(message.version.step);
  writer.put(message.value);
  writer.put(message.version.epoch);
  writer.put(std::uint32_t{0});
  std::array<std::byte, kStepMessageBytes> bytes{};
  WSYNC_CHECK(writer.size() == bytes.size(), "a step message has its fixed size");
  std::ranges::copy(writer.buffer(), bytes.begin());
  return bytes;
}

Result<StepMessage> decode(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  const auto magic = reader.get<std::uint32_t>("magic");
  if (reader.ok() && magic != kStepMagic)
    reader.violate("magic", "these are not messages of a replica's step");
  StepMessage message;
  message.kind = reader.get_enum(kLastStepKind, "kind");
  message.torn = reader.get_bool("torn");
  if (reader.get<std::uint16_t>("reserved") != 0) reader.violate("reserved", "must be 0");
  message.rank = reader.get<std::uint32_t>("rank");
  message.world_size = reader.get<std::uint32_t>("world size");
  message.step = reader.get<std::uint64_t>("step");
  message.version.step = reader.get<std::uint64_t>("version step");
  message.value = reader.get<std::uint64_t>("value");
  message.version.epoch = reader.get<std::uint32_t>("version epoch");
  if (reader.get<std::uint32_t>("end") != 0) reader.violate("end", "must be 0");
  if (message.rank >= limits::kReplicaRankCount || message.world_size > limits::kReplicaRankCount)
    reader.violate("rank", fmt::format("rank {} of {}, at most {} ranks allowed", message.rank,
                                       message.world_size, limits::kReplicaRankCount));
  WSYNC_TRY(reader.finish("step message"));
  return message;
}

LeaderStep::LeaderStep(std::uint32_t world_size, StepMessage header)
    : header_(std::move(header)), answered_(world_size) {
  WSYNC_CHECK(header_.kind == StepKind::kGo || header_.kind == StepKind::kStop,
              "a step begins with go or stop");
  answered_[0] = true;
  advance();
}

Result<> LeaderStep::handle(std::uint32_t rank, const StepMessage& message) {
  const auto out_of_place = [&](std::string_view expected) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("rank {} sent {} for step {} inside step {}, expected {}", rank,
                            kind_name(message.kind), message.step, header_.step, expected));
  };
  const bool agreeing = phase_ == Phase::kAgreeing;
  const bool go = header_.kind == StepKind::kGo;
  const std::string_view expected = !agreeing ? "partial" : go ? "ready or refused" : "stopped";
  if (rank == 0 || rank >= answered_.size() || message.rank != rank || answered_[rank] ||
      message.step != header_.step)
    return out_of_place(expected);
  switch (message.kind) {
    case StepKind::kReady:
      if (!agreeing || !go || message.version != header_.version) return out_of_place(expected);
      break;
    case StepKind::kRefused:
      if (!agreeing || !go) return out_of_place(expected);
      if (!refusal_) refusal_ = Refusal{.rank = rank, .holds = message.version};
      break;
    case StepKind::kStopped:
      if (!agreeing || go) return out_of_place(expected);
      break;
    case StepKind::kPartial:
      if (phase_ != Phase::kComputing) return out_of_place(expected);
      total_.value += message.value;
      total_.torn = total_.torn || message.torn;
      break;
    case StepKind::kJoin:
    case StepKind::kGo:
    case StepKind::kStop:
    case StepKind::kProceed:
    case StepKind::kAborted:
    case StepKind::kTotal:
      return out_of_place(expected);
  }
  answered_[rank] = true;
  advance();
  return {};
}

void LeaderStep::add_own(const Reading& reading) {
  WSYNC_CHECK(phase_ == Phase::kComputing && !answered_[0], "the leader reads once, inside a step");
  total_.value += reading.value;
  total_.torn = total_.torn || reading.torn;
  answered_[0] = true;
  advance();
}

void LeaderStep::advance() {
  if (!std::ranges::all_of(answered_, [](bool answered) { return answered; })) return;
  if (phase_ == Phase::kComputing || header_.kind == StepKind::kStop) {
    phase_ = Phase::kDone;
  } else if (refusal_) {
    phase_ = Phase::kAborted;
  } else {
    phase_ = Phase::kComputing;
    answered_.assign(answered_.size(), false);
  }
}

Result<FollowerAction> FollowerStep::handle(const StepMessage& message) {
  const auto out_of_place = [&](std::string_view expected) {
    return fail(ErrorCode::kInvalidInput,
                fmt::format("the leader sent {} for step {} after step {}, expected {}",
                            kind_name(message.kind), message.step, step_, expected));
  };
  switch (message.kind) {
    case StepKind::kGo:
    case StepKind::kStop:
      if (phase_ != Phase::kIdle || message.step < step_) return out_of_place("a newer header");
      step_ = message.step;
      version_ = message.version;
      if (message.kind == StepKind::kStop) return FollowerAction::kStop;
      phase_ = Phase::kEntering;
      return FollowerAction::kEnter;
    case StepKind::kProceed:
      if (phase_ != Phase::kReady || message.step != step_) return out_of_place("no proceed");
      phase_ = Phase::kComputed;
      return FollowerAction::kCompute;
    case StepKind::kAborted:
      if ((phase_ != Phase::kReady && phase_ != Phase::kRefused) || message.step != step_)
        return out_of_place("no abort");
      phase_ = Phase::kIdle;
      return FollowerAction::kLeave;
    case StepKind::kTotal:
      if (phase_ != Phase::kComputed || message.step != step_) return out_of_place("no total");
      phase_ = Phase::kIdle;
      return FollowerAction::kFinish;
    case StepKind::kJoin:
    case StepKind::kReady:
    case StepKind::kRefused:
    case StepKind::kStopped:
    case StepKind::kPartial:
      return out_of_place("a message that a leader sends");
  }
  return out_of_place("a message that a leader sends");
}

void FollowerStep::answered(bool ready) noexcept {
  WSYNC_CHECK(phase_ == Phase::kEntering, "only a go is answered");
  phase_ = ready ? Phase::kReady : Phase::kRefused;
}

}  // namespace wsync::engine::reference
