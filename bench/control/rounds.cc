#include "bench/control/rounds.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"

namespace wsync::bench {
namespace {

using coordinator::CoordinatorEvent;
using coordinator::PeerMessage;

// the time never advances, so that no deadline expires
constexpr TimePoint kRoundTime{1'000'000'000};
constexpr std::uint64_t kRoundModelBytes = 1ULL << 30U;
constexpr unsigned kOrderSeed = 7;

control::Hello round_hello(const std::string& name) {
  control::Hello hello;
  hello.name = name;
  hello.host = name;
  hello.boot_id = "boot";
  hello.transports = {{"memfd", ""}, {"tcp", "tcp://127.0.0.1:1"}};
  hello.replicas = {{.replica = "r-" + name, .world_size = 1, .ranks_attached = 1}};
  return hello;
}

CoordinatorEvent from_peer(const std::string& peer, const control::Envelope& envelope,
                           control::Message message) {
  return {.now = kRoundTime,
          .what = PeerMessage{.peer = peer, .envelope = envelope, .message = std::move(message)}};
}

}  // namespace

Result<RoundDriver> RoundDriver::create(unsigned sidecars) {
  RoundDriver driver(coordinator::CoordinatorOptions{
      .run_id = {7, 7},
      .fleet_id = {.high = 1, .low = 1},
      .min_sidecars = sidecars,
      .min_replicas = sidecars,
      .transports = {{"memfd", "/run/host.sock"}, {"tcp", "tcp://127.0.0.1:1"}},
      .boot_id = "boot"});
  for (unsigned i = 0; i < sidecars; ++i) driver.names_.push_back(fmt::format("host{:04}", i));
  std::shuffle(driver.names_.begin(), driver.names_.end(), std::mt19937(kOrderSeed));
  std::vector<CoordinatorEvent> hellos;
  for (const std::string& name : driver.names_)
    hellos.push_back(from_peer(name, {}, round_hello(name)));
  driver.give(hellos);
  hellos.clear();
  for (const std::string& name : driver.names_)
    hellos.push_back(
        from_peer(name, {.fence = driver.coordinator_.fence(), .replica = {}}, round_hello(name)));
  driver.give(hellos);
  if (driver.coordinator_.phase() != coordinator::CoordinatorPhase::kReady)
    return fail(ErrorCode::kInternal,
                fmt::format("the coordinator is in phase '{}' after the Hellos of {} sidecars",
                            phase_name(driver.coordinator_.phase()), sidecars));
  return driver;
}

void RoundDriver::give(const std::vector<CoordinatorEvent>& events) {
  std::vector<std::vector<coordinator::CoordinatorCommand>> told;
  told.reserve(events.size());
  const TimePoint begin = now();
  for (const CoordinatorEvent& event : events) told.push_back(coordinator_.step(event));
  // The store answers at once, because the time of a real store is not the coordinator's.
  for (std::size_t i = 0; i < told.size(); ++i)
    for (std::size_t k = 0; k < told[i].size(); ++k)
      if (const auto* write = std::get_if<coordinator::Store>(&told[i][k]))
        told.push_back(coordinator_.step(
            {.now = kRoundTime,
             .what = coordinator::Stored{.token = write->token, .record = write->record}}));
  taken_ += now() - begin;
  for (auto& some : told)
    commands_.insert(commands_.end(), std::move_iterator(some.begin()),
                     std::move_iterator(some.end()));
}

Result<> RoundDriver::read_announces() {
  rounds_.clear();
  for (const coordinator::CoordinatorCommand& command : commands_)
    if (const auto* sent = std::get_if<coordinator::SendTo>(&command))
      if (std::holds_alternative<control::Announce>(sent->message))
        rounds_[sent->peer] = sent->envelope.round;
  if (rounds_.size() == names_.size()) return {};
  return fail(ErrorCode::kInternal, fmt::format("the round was announced to only {} of {} sidecars",
                                                rounds_.size(), names_.size()));
}

Result<std::uint64_t> RoundDriver::decided() const {
  for (const coordinator::CoordinatorCommand& command : commands_)
    if (const auto* sent = std::get_if<coordinator::SendTo>(&command))
      if (const auto* decide = std::get_if<control::Decide>(&sent->message)) return decide->number;
  return fail(ErrorCode::kInternal, "the coordinator did not decide the round");
}

Result<> RoundDriver::check_done() const {
  for (const coordinator::CoordinatorCommand& command : commands_)
    if (const auto* done = std::get_if<coordinator::RoundDone>(&command)) {
      if (done->request == request_ && done->reply.ok &&
          done->reply.outcomes.size() == names_.size())
        return {};
      return fail(ErrorCode::kInternal,
                  fmt::format("the round ended with {} of {} replicas: {}",
                              done->reply.outcomes.size(), names_.size(), done->reply.reason));
    }
  return fail(ErrorCode::kInternal, "the round has not ended");
}

std::vector<CoordinatorEvent> RoundDriver::from_all(const control::Message& message) {
  std::vector<CoordinatorEvent> events;
  for (const std::string& name : names_)
    events.push_back(from_peer(
        name, {.fence = coordinator_.fence(), .round = rounds_.at(name), .replica = {}}, message));
  return events;
}

std::vector<CoordinatorEvent> RoundDriver::switched(std::uint64_t number, const Version& version) {
  std::vector<CoordinatorEvent> events;
  const control::Envelope envelope{.fence = coordinator_.fence(), .replica = {}};
  for (const std::string& name : names_) {
    control::ReplicaOutcome outcome;
    outcome.replica = "r-" + name;
    outcome.outcome = control::SwitchOutcome::kCommitted;
    outcome.version = version;
    outcome.bytes = kRoundModelBytes;
    events.push_back(from_peer(name, envelope,
                               control::Decided{.number = number, .refused = false, .reason = {}}));
    events.push_back(
        from_peer(name, envelope,
                  control::Switched{.number = number, .target = version, .outcomes = {outcome}}));
  }
  return events;
}

Result<std::chrono::nanoseconds> RoundDriver::run_round() {
  commands_.clear();
  taken_ = {};
  const auto version = WSYNC_TRY(coordinator_.next_version());
  const Digest content{.low = 2, .high = version.step};
  give({{.now = kRoundTime,
         .what = coordinator::PublishRequested{.request = ++request_,
                                               .version = version,
                                               .layout_digest = {.low = 1, .high = 1},
                                               .content_digest = content,
                                               .layout = Bytes(4),
                                               .bucket_bytes = 1ULL << 26U,
                                               .arena_bytes = kRoundModelBytes}}});
  WSYNC_TRY(read_announces());
  give(from_all(control::Accept{.version = version}));
  control::Staged staged;
  staged.version = version;
  staged.content_digest = content;
  staged.bytes = kRoundModelBytes;
  give(from_all(staged));
  const auto number = WSYNC_TRY(decided());
  give(switched(number, version));
  WSYNC_TRY(check_done());
  return taken_;
}

}  // namespace wsync::bench
