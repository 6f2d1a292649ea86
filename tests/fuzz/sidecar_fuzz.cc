// A sidecar with its replicas, or the switch of one replica alone, with well-formed messages of its
// coordinator and its engines in any order: none may bring it to a broken invariant, which aborts,
// or to a timer that is always due.
//
// The lowest bit of the first byte chooses the machine, the others its options. Each byte that
// follows chooses an event, and further ones its values. What the machine has asked for is answered
// rightly, wrongly, late and twice.
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "inference_side/reload/replica_switch.h"
#include "inference_side/staging/sidecar.h"
#include "tests/fuzz/driven_machine.h"
#include "tests/fuzz/pooled_message.h"

namespace {

using namespace wsync;
using namespace wsync::fuzz;
using std::chrono::seconds;

// ---- engine ranks, as a switch sees them ----

// What an engine rank does upon a command, or says unasked.
class Ranks {
 public:
  explicit Ranks(Input& in) : in_(in) {}

  void take(const std::string& replica, const reload::SwitchCommand& command) {
    asked_.emplace_back(replica, command);
  }
  [[nodiscard]] bool asked() const { return !asked_.empty(); }

  [[nodiscard]] std::pair<std::string, staging::RankEvent> answer() {
    const auto& [replica, command] = in_.recent(asked_);
    const auto rank = static_cast<std::uint32_t>(in_.below(3));
    const bool spoilt = in_.one_in(8);
    std::string failure;
    Version version;
    if (spoilt) {
      if (in_.one_in(2)) failure = "it could not";
      Pooled(in_, {}).version("", version);
    }
    const auto named = [&](const Version& right) { return spoilt ? version : right; };
    staging::RankEvent event = std::visit(
        Overloaded{
            [&](const reload::SendPause& pause) -> staging::RankEvent {
              return reload::RankPaused{.rank = rank, .request = pause.request};
            },
            [&](const reload::BeginLoad& load) -> staging::RankEvent {
              if (in_.one_in(8))
                return reload::LoadNotBegun{.request = load.request, .why = "no room"};
              return reload::RankLoaded{.rank = rank,
                                        .request = load.request,
                                        .version = named(load.version),
                                        .bytes = 8,
                                        .failure = failure};
            },
            [&](const reload::SendCommit& commit) -> staging::RankEvent {
              return reload::RankCommitted{.rank = commit.rank,
                                           .request = commit.request,
                                           .version = named(commit.version),
                                           .failure = failure};
            },
            [&](const reload::SendResume& resume) -> staging::RankEvent {
              return reload::RankResumed{.rank = resume.rank, .request = resume.request};
            },
            [&](const auto&) -> staging::RankEvent { return reload::RankDetached{.rank = rank}; },
        },
        command);
    return {replica, std::move(event)};
  }

  [[nodiscard]] staging::RankEvent attach() {
    reload::RankAttached attached{.rank = static_cast<std::uint32_t>(in_.below(3))};
    attached.leader = in_.one_in(4) ? in_.one_in(2) : attached.rank == 0;
    attached.state = static_cast<control::RankState>(in_.below(5));
    if (in_.one_in(2)) Pooled(in_, {}).version("", attached.active);
    return attached;
  }

  [[nodiscard]] staging::RankEvent unasked() {
    const auto rank = static_cast<std::uint32_t>(in_.below(4));
    const std::uint64_t request = in_.below(8);
    Version version;
    Pooled(in_, {}).version("", version);
    switch (in_.below(7)) {
      case 0:
        return reload::RankDetached{.rank = rank};
      case 1:
        return reload::RankPaused{.rank = rank, .request = in_.one_in(2) ? request : 0};
      case 2:
        return reload::RankLoaded{
            .rank = rank, .request = request, .version = version, .bytes = ~0ULL};
      case 3:
        return reload::LoadNotBegun{.request = request, .why = "no room"};
      case 4:
        return reload::RankCommitted{.rank = rank, .request = request, .version = version};
      case 5:
        return reload::RankRefused{.rank = rank, .request = request, .why = "no"};
      default:
        return reload::RankResumed{.rank = rank, .request = request};
    }
  }

 private:
  Input& in_;
  std::vector<std::pair<std::string, reload::SwitchCommand>> asked_;
};

// ---- the sidecar ----

class SidecarRun {
  // Defined before it is used, because its type is deduced.
  auto stepper() {
    return [this](auto what) { step(std::move(what)); };
  }

 public:
  SidecarRun(Input& in, unsigned choice)
      : in_(in), ranks_(in), machine_(options(choice), record(choice)) {}

  void run() {
    for (std::size_t i = 0; i < kEvents && !in_.empty(); ++i) {
      event();
      if (i % 16 != 0) continue;
      must_encode({.fence = machine_.fence()}, machine_.heartbeat(clock_.now()));
      must_encode({.fence = machine_.fence()}, machine_.status(clock_.now()));
      (void)machine_.incoming();
    }
  }

 private:
  static staging::SidecarOptions options(unsigned choice) {
    staging::SidecarOptions options;
    options.name = "a";
    options.versions_held = 2 + (choice & 1U);
    options.pause = options.load = seconds(2);
    if ((choice & 4U) != 0) options.forget_after = seconds(5);
    options.replica.commit = options.replica.rank_return = seconds(1);
    return options;
  }
  static staging::SidecarRecord record(unsigned choice) {
    staging::SidecarRecord record;
    if ((choice & 2U) == 0) return record;
    record.fence = {.epoch = 1, .run_id = {1, 1}, .fleet = kFleets[1]};
    record.decision = record.origin = {.fence = record.fence, .number = 2};
    record.target = {.epoch = 1, .step = 2};
    record.content = {.low = 2};
    record.withdrawn = {{.epoch = 1, .step = 1}};
    return record;
  }

  void step(decltype(staging::SidecarEvent::what) what) {
    auto commands = machine_.step({.now = clock_.now(), .what = std::move(what)});
    for (staging::SidecarCommand& command : commands)
      std::visit(Overloaded{
                     [&](const staging::Reply& one) { must_encode(one.envelope, one.message); },
                     [&](staging::Persist& one) { persists_.push_back(std::move(one)); },
                     [&](staging::CheckLayout& one) { layouts_.push_back(std::move(one)); },
                     [&](staging::StartStaging& one) { stagings_.push_back(std::move(one)); },
                     [&](staging::CheckCopy& one) { checks_.push_back(one); },
                     [&](staging::ForReplica& one) { ranks_.take(one.replica, one.command); },
                     [](const auto&) {},
                 },
                 command);
  }

  void event() {
    switch (in_.below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return coordinator();
      case 4:
        return message({.fence = fence_, .round = round_}, Pooled(in_, fence_).message());
      case 5:
      case 6:
      case 7:
        return answer();
      case 8:
      case 9:
      case 10:
        if (ranks_.asked()) {
          auto [replica, what] = ranks_.answer();
          return step(staging::ReplicaEvent{.replica = replica, .what = std::move(what)});
        }
        return attach();
      case 11:
        return attach();
      case 12:
        return step(staging::ReplicaEvent{.replica = replica(), .what = ranks_.unasked()});
      case 13:
      case 14:
        return clock_.pass(in_, machine_, stepper());
      default:
        if (in_.one_in(2)) return step(staging::LinkUp{});
        return step(staging::CoordinatorLost{});
    }
  }

  std::string replica() { return in_.one_in(2) ? "r1" : "r0"; }
  void attach() {
    step(staging::ReplicaEvent{.replica = replica(),
                               .world_size = 1 + static_cast<std::uint32_t>(in_.below(3)),
                               .what = ranks_.attach()});
  }

  void message(control::Envelope envelope, control::Message what) {
    spoil(in_, fence_, envelope, what);
    if (auto arrived = over_the_wire(envelope, what); arrived)
      step(staging::CoordinatorMessage{.envelope = std::move(arrived->envelope),
                                       .message = std::move(arrived->message)});
  }

  // What a coordinator says in its rounds; sometimes another one speaks, under the next fence.
  void coordinator() {
    if (in_.one_in(16)) {
      ++fence_.epoch;
      number_ = 0;
    }
    control::Envelope envelope{.fence = fence_, .round = round_};
    Pooled any(in_, fence_);
    switch (in_.below(6)) {
      case 0:
      case 1: {
        control::Announce announce;
        any.version("", announce.version);
        any.digest("", announce.content_digest);
        envelope.round = ++round_;
        announced_ = announce.version;
        content_ = announce.content_digest;
        if (in_.one_in(4)) announce.content_digest = {};  // it follows with a Stage
        return message(envelope, announce);
      }
      case 2: {
        control::Stage stage{.version = announced_, .transport = "memfd", .source = "host"};
        if (in_.one_in(2)) {
          stage.transport = "tcp";
          stage.source = "tcp://h:1";
        }
        if (!in_.one_in(4)) stage.content_digest = content_;
        if (in_.one_in(16)) any.digest("", stage.content_digest);
        return message(envelope, std::move(stage));
      }
      case 3:
      case 4: {
        if (!in_.one_in(4)) ++number_;
        control::Decide decide{.number = number_, .target = announced_};
        if (in_.one_in(4)) any.version("", decide.target);
        if (!in_.one_in(4)) decide.content_digest = content_;
        if (in_.one_in(4)) any.digest("", decide.content_digest);
        if (in_.one_in(4)) any.list("", decide.withdrawn, 4);
        if (in_.one_in(4)) decide.kind = control::DecisionKind::kRollback;
        if (!in_.one_in(4)) decide.origin = {.fence = fence_, .number = decide.number};
        if (in_.one_in(2)) decide.pause_deadline_ms = decide.load_deadline_ms = 1'000;
        return message(envelope, std::move(decide));
      }
      default:
        if (in_.one_in(2)) return message(envelope, control::Abort{.version = announced_});
        return message({.fence = fence_}, control::Welcome{});
    }
  }

  // Of what stands around the machine: disc, layouts, arenas.
  void answer() {
    switch (in_.below(5)) {
      case 0:
        if (!persists_.empty())
          step(staging::Persisted{.token = in_.recent(persists_).token,
                                  .failure = in_.one_in(8) ? "the disc is full" : ""});
        return;
      case 1:
        if (!layouts_.empty())
          step(staging::LayoutChecked{.round = in_.recent(layouts_).round,
                                      .layout_unknown = in_.one_in(8),
                                      .fits_beside = in_.one_in(2)});
        return;
      case 2: {
        if (stagings_.empty()) return;
        const staging::StartStaging& begun = in_.recent(stagings_);
        if (in_.one_in(8))
          return step(staging::StagingFailed{.attempt = begun.attempt,
                                             .reason = in_.one_in(2) ? "why" : "",
                                             .source_lost = in_.one_in(2)});
        Digest content = begun.announce.content_digest;
        if (in_.one_in(8)) Pooled(in_, {}).digest("", content);
        staging::StagingDone done{.attempt = begun.attempt, .content_digest = content, .bytes = 64};
        if (in_.one_in(2)) done.base = begun.base;
        if (in_.one_in(16)) Pooled(in_, {}).version("", done.base);
        return step(std::move(done));
      }
      case 3: {
        staging::VersionCompleted completed{.version = machine_.held().completing()};
        if (in_.one_in(8)) Pooled(in_, {}).version("", completed.version);
        if (in_.one_in(8)) completed.failure = "why";
        completed.in_place = in_.one_in(2);
        completed.base_lost = !completed.failure.empty() && in_.one_in(2);
        completed.no_memory = !completed.failure.empty() && in_.one_in(2);
        return step(std::move(completed));
      }
      default:
        if (!checks_.empty())
          step(staging::CopyChecked{.check = in_.recent(checks_).check, .intact = in_.one_in(2)});
        return;
    }
  }

  Input& in_;
  Ranks ranks_;
  staging::Sidecar machine_;
  Clock<staging::Sidecar, reload::Tick> clock_;
  control::Fence fence_{.epoch = 1, .run_id = {1, 1}, .fleet = kFleets[1]};
  std::uint64_t round_ = 0;
  std::uint64_t number_ = 2;
  Version announced_{.epoch = 1, .step = 3};
  Digest content_;
  std::vector<staging::Persist> persists_;
  std::vector<staging::CheckLayout> layouts_;
  std::vector<staging::StartStaging> stagings_;
  std::vector<staging::CheckCopy> checks_;
};

// ---- one replica alone ----

class ReplicaRun {
  // Defined before it is used, because its type is deduced.
  auto stepper() {
    return [this](auto what) { step(std::move(what)); };
  }

 public:
  ReplicaRun(Input& in, unsigned choice)
      : in_(in),
        ranks_(in),
        machine_({.replica = "r0",
                  .world_size = 1 + (choice & 1U),
                  .rank_return = seconds(1),
                  .commit = seconds(1)}) {}

  void run() {
    for (std::size_t i = 0; i < kEvents && !in_.empty(); ++i) event();
  }

 private:
  void step(decltype(reload::SwitchEvent::what) what) {
    for (const auto& command : machine_.step({.now = clock_.now(), .what = std::move(what)}))
      ranks_.take("r0", command);
    (void)machine_.report(clock_.now());
  }
  void step(const staging::RankEvent& event) {
    std::visit([this](const auto& what) { step(decltype(reload::SwitchEvent::what)(what)); },
               event);
  }

  void event() {
    switch (in_.below(8)) {
      case 0:
        return step(ranks_.attach());
      case 1:
        return step(ranks_.unasked());
      case 2: {
        reload::StagedSet staged;
        Pooled(in_, {}).list("", staged.versions, 4);
        return step(decltype(reload::SwitchEvent::what)(std::move(staged)));
      }
      case 3: {
        reload::TargetSet target{.decision = {.fence = {.epoch = 1}, .number = ++number_},
                                 .pause_deadline = seconds(1),
                                 .load_deadline = seconds(1)};
        Pooled(in_, {}).version("", target.target);
        Pooled(in_, {}).list("", target.withdrawn, 4);
        target.owed = in_.one_in(2);
        return step(decltype(reload::SwitchEvent::what)(std::move(target)));
      }
      case 4:
        return clock_.pass(in_, machine_, stepper());
      default:
        if (ranks_.asked()) step(ranks_.answer().second);
        return;
    }
  }

  Input& in_;
  Ranks ranks_;
  reload::ReplicaSwitch machine_;
  Clock<reload::ReplicaSwitch, reload::Tick> clock_;
  std::uint64_t number_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Input in({data, size});
  const unsigned choice = in.byte();
  if (choice % 2 == 0)
    SidecarRun(in, choice / 2).run();
  else
    ReplicaRun(in, choice / 2).run();
  return 0;
}
