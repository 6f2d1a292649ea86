// A RankMachine, driven by tests as EngineLink drives it, and what it decides as text.
#pragma once

#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference_side/engine_link/rank_machine.h"
#include "shared/base/format.h"
#include "shared/control/codec.h"

namespace wsync::engine::test {

using control::RankState;

inline constexpr Version kFirst{.epoch = 1, .step = 1};
inline constexpr Version kSecond{.epoch = 1, .step = 2};
inline constexpr TimePoint kNow{5'000'000'000};

inline const Result<> kFailed = fail(ErrorCode::kIo, "no room");

// One action as text. An answer has the number of its request behind it, and its failure.
inline std::string text_of(const RankAction& action) {
  if (const auto* reply = std::get_if<SendReply>(&action)) {
    const std::string failure = std::visit(
        [](const auto& m) -> std::string {
          if constexpr (requires { m.failure; })
            return m.failure.empty() ? "" : ": " + m.failure;
          else
            return {};
        },
        reply->message);
    return fmt::format("{} #{}{}", control::message_name(control::type_of(reply->message)),
                       reply->request.request, failure);
  }
  if (const auto* refusal = std::get_if<SendRefusal>(&action))
    return fmt::format("refuse #{}: {}", refusal->request.request, refusal->why);
  if (const auto* note = std::get_if<NoteError>(&action)) return "note: " + note->sentence;
  if (const auto* note = std::get_if<NoteRefusal>(&action)) return "refused: " + note->sentence;
  if (std::holds_alternative<AcceptWelcome>(action)) return "welcome";
  if (const auto* prepare = std::get_if<PrepareVersion>(&action))
    return "prepare " + prepare->message->version.to_string();
  if (const auto* prepared = std::get_if<NotifyPrepared>(&action))
    return "prepared " + prepared->version.to_string();
  if (const auto* forget = std::get_if<ForgetVersion>(&action))
    return "forget " + forget->version.to_string();
  if (std::holds_alternative<ForgetArenas>(action)) return "forget arenas";
  if (std::holds_alternative<PauseEngine>(action)) return "pause";
  if (std::holds_alternative<MapBuffers>(action)) return "map";
  if (const auto* start = std::get_if<StartLoad>(&action))
    return "load " + start->version.to_string();
  if (std::holds_alternative<CancelLoad>(action)) return "cancel";
  if (const auto* take = std::get_if<TakeBucket>(&action))
    return fmt::format("take {} of {}", take->bucket, take->slot);
  if (const auto* loaded = std::get_if<NotifyLoaded>(&action))
    return "loaded " + loaded->version.to_string();
  if (const auto* commit = std::get_if<CommitEngine>(&action))
    return "commit " + commit->version.to_string();
  if (std::holds_alternative<ActivateLoaded>(action)) return "activate";
  if (const auto* resume = std::get_if<ResumeEngine>(&action))
    return resume->overtakes_pause ? "resume over pause" : "resume";
  if (const auto* ahead = std::get_if<ReadPatchAhead>(&action))
    return "read patch to " + ahead->message->version.to_string();
  if (const auto* scrub = std::get_if<ScrubWeights>(&action))
    return fmt::format("scrub {}", scrub->message.pass);
  return "read " + std::get<ReadTensors>(action).version.to_string();
}

// A machine, and the texts of what it has decided since they were last asked for.
class Rank {
 public:
  explicit Rank(RankIdentity identity) : machine(std::move(identity)) {}
  static RankIdentity copying() { return {.replica = "r0"}; }
  static RankIdentity adopting() { return {.replica = "r0", .adopts = true}; }

  // ---- events ----
  void send(const control::Message& message) {
    ++envelope.request;
    const RankState before = machine.state();
    note(machine.handle(envelope, message));
    EXPECT_EQ(machine.state(), before) << "a command alone changes no state";
  }
  void welcome() {
    send(control::EngineWelcome{});
    machine.handle_welcomed();
  }
  void prepare(const Version& version, const Result<>& outcome = {}) {
    send(control::Prepare{.version = version});
    note(machine.handle_prepared(envelope, version, outcome));
  }
  void load(const control::Load& load, const Result<>& mapped = {}) {
    send(load);
    note(machine.handle_buffers_mapped(envelope, load, mapped, kNow));
  }
  void load(const Version& version) { load(control::Load{.version = version}); }
  void end_load(const Result<>& result = {}) {
    note(machine.handle_load_ended({.bytes = 9, .copy_ns = 4, .result = result}));
  }
  void commit(const Version& version, const Result<>& outcome = {}) {
    send(control::Commit{.version = version});
    note(machine.handle_committed(envelope, version, outcome));
  }
  void resume(const Result<>& outcome = {}, std::optional<std::uint64_t> paused_at = {}) {
    send(control::Resume{});
    note(machine.handle_resumed(envelope, outcome, paused_at));
  }
  void report(RankReport::What what, std::uint64_t step = 7) {
    note(machine.handle_report({.what = what, .step = step}));
  }
  void lose(const std::string& why) { note(machine.handle_loss(why)); }

  // Brings a new machine to a state, by the shortest way; both versions are prepared.
  void bring(RankState state) {
    welcome();
    prepare(kFirst);
    prepare(kSecond);
    if (state == RankState::kLoading) return forget();
    load(kFirst);
    if (state == RankState::kTainted) return forget();
    end_load();
    if (state == RankState::kLoaded) return forget();
    commit(kFirst);
    if (state == RankState::kPaused) return forget();
    resume();
    forget();
  }

  void note(const RankActions& actions) {
    for (const RankAction& action : actions) texts_.push_back(text_of(action));
    const auto holds = machine.invariants();
    EXPECT_TRUE(holds) << holds.error().message();
  }
  void forget() { texts_.clear(); }
  std::vector<std::string> texts() { return std::exchange(texts_, {}); }

  RankMachine machine;
  control::Envelope envelope{.fence = {.epoch = 3, .run_id = {1, 2}}, .replica = "r0"};

 private:
  std::vector<std::string> texts_;
};

}  // namespace wsync::engine::test
