// The coordinator, with well-formed messages of its peers in any order: none may bring it to a
// broken invariant, which aborts, or to a timer that is always due, and whatever was asked for
// ends.
//
// The first byte chooses its options. Each byte that follows chooses an event, and further ones its
// values. What it has asked for is answered rightly, wrongly, late and twice.
#include <array>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "shared/base/check.h"
#include "tests/fuzz/driven_machine.h"
#include "tests/fuzz/pooled_message.h"
#include "trainer_side/coordinator/coordinator.h"

namespace {

using namespace wsync;
using namespace wsync::fuzz;
using std::chrono::seconds;

class CoordinatorRun {
  // Defined before it is used, because its type is deduced.
  auto stepper() {
    return [this](auto what) { step(std::move(what)); };
  }

 public:
  CoordinatorRun(Input& in, unsigned choice)
      : in_(in), forgets_((choice & 32U) != 0), machine_(options(choice)) {}

  void run() {
    for (std::size_t i = 0; i < kEvents && !in_.empty(); ++i) {
      event();
      if (i % 16 != 0) continue;
      must_encode({.fence = machine_.fence()}, machine_.status());
      (void)machine_.moved_bytes();
      std::set<std::string> connected;
      for (const auto& [name, member] : machine_.roster().members())
        WSYNC_CHECK(member.peer.empty() || connected.insert(member.peer).second,
                    "a connection is that of one sidecar");
    }
    // Whoever has asked for something is told the end of it, however silent the sidecars are.
    for (int i = 0; i < 2'000 && !open_.empty(); ++i)
      if (!clock_.sleep(machine_, stepper())) break;
    WSYNC_CHECK(open_.empty(), "a publish or rollback never ends: " + machine_.status().activity);
  }

 private:
  // A process of a sidecar, as far as it has obeyed.
  struct Peer {
    control::Hello hello;
    control::Fence fence;
  };

  static coordinator::CoordinatorOptions options(unsigned choice) {
    coordinator::CoordinatorOptions options;
    options.run_id = {1, 1};
    options.new_fleet_id = kFleets[1];
    options.take_over = (choice & 1U) != 0;
    options.boot_id = "a";
    options.transports = {{"memfd", "host"}, {"tcp", "tcp://h:1"}};
    options.commit.rule = static_cast<CommitRule>((choice >> 1U) % 3);
    options.commit.quorum = 1;
    options.min_replicas = (choice >> 3U) % 2;
    options.max_paused = (choice >> 5U) % 3;
    if ((choice & 128U) != 0) {
      options.canary = "r";
      options.canary_time = seconds((choice >> 3U) % 2);
    }
    options.announce = seconds(2);
    options.stage = options.whole_switch = seconds(8);
    if ((choice & 32U) != 0) options.forget_after = seconds(5);
    if ((choice & 16U) != 0) {
      options.record.emplace();
      options.record->fence = {.epoch = 2, .run_id = {2, 1}, .fleet = kFleets[1]};
      options.record->number = 3;
      options.record->origin = {.fence = options.record->fence, .number = 2};
      options.record->target = {.epoch = 1, .step = 2};
      options.record->content = {.low = 2};
      options.record->withdrawn = {{.epoch = 1, .step = 3}};
      options.record->members = {"a", "b"};
    }
    return options;
  }

  void step(decltype(coordinator::CoordinatorEvent::what) what) {
    auto commands = machine_.step({.now = clock_.now(), .what = std::move(what)});
    const Result<> holds = machine_.invariants();
    WSYNC_CHECK(holds.has_value(), holds.error().message());
    for (coordinator::CoordinatorCommand& command : commands)
      std::visit(Overloaded{
                     [&](coordinator::SendTo& one) {
                       must_encode(one.envelope, one.message);
                       sent_.push_back(std::move(one));
                     },
                     [&](coordinator::Store& one) { stores_.push_back(std::move(one)); },
                     [&](coordinator::RoundDone& one) { ended(one.request); },
                     [&](coordinator::RoundLost& one) { ended(one.request); },
                     [&](coordinator::RollbackDone& one) { ended(one.request); },
                     [&](coordinator::PromotionDone& one) {
                       if (one.request != 0) ended(one.request);
                     },
                     [&](coordinator::ForgetDone& one) { ended(one.request); },
                     [](auto&) {},
                 },
                 command);
  }

  void ended(std::uint64_t request) {
    WSYNC_CHECK(open_.erase(request) == 1, "what was asked for ends once");
  }

  void event() {
    switch (in_.below(17)) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        if (!sent_.empty()) answer(in_.recent(sent_));
        return;
      case 5:
        return message(some_peer(), {.fence = machine_.fence()},
                       Pooled(in_, machine_.fence()).message());
      case 6: {  // one with a past of its own
        const std::string from = some_peer();
        control::Hello& said = peer(from).hello;
        Pooled any(in_, machine_.fence());
        any.part("", said.decision);
        said.origin = said.decision;
        if (in_.one_in(2)) any.part("", said.origin);
        any.version("", said.target);
        any.digest("", said.target_content);
        any.list("", said.withdrawn, 4);
        return hello(from, machine_.fence(), 0);
      }
      case 7:
        return hello(some_peer(), in_.one_in(2) ? machine_.fence() : control::Fence{}, 0);
      case 8:
      case 9:
      case 10:
        return stored();
      case 11:
        return publish();
      case 12: {
        coordinator::RollbackRequested rollback{.request = ++request_};
        Pooled(in_, {}).version("", rollback.to);
        open_[request_] = true;
        return step(rollback);
      }
      case 15: {
        open_[++request_] = true;
        return step(coordinator::PromoteRequested{.request = request_, .force = in_.one_in(2)});
      }
      case 13: {
        if (forgets_ && in_.one_in(2)) return forget();
        coordinator::CancelRequested cancel{.request = ++request_};
        if (in_.one_in(2)) Pooled(in_, {}).version("", cancel.version);
        return step(cancel);
      }
      case 14:
        return clock_.pass(in_, machine_, stepper());
      default:
        if (in_.one_in(4)) return end_snapshot();
        if (in_.one_in(16)) return step(coordinator::Replaced{.by = "another"});
        return step(coordinator::PeerLost{.peer = some_peer(), .reason = "silence"});
    }
  }

  void forget() {
    coordinator::ForgetRequested request{.request = ++request_, .force = in_.one_in(2)};
    request.sidecar = in_.one_in(4) ? "d" : peer(some_peer()).hello.name;
    open_[request_] = true;
    step(std::move(request));
  }

  // The first and the last are two processes of one name.
  std::string some_peer() {
    static const std::array<std::string, 4> pool{"p0", "p1", "p2", "p3"};
    return in_.from(pool);
  }
  Peer& peer(const std::string& address) {
    Peer& peer = peers_[address];
    if (!peer.hello.name.empty()) return peer;
    peer.hello.name = address == "p0" || address == "p3" ? "a" : address == "p1" ? "b" : "c";
    peer.hello.boot_id = address == "p2" ? "b" : "a";
    peer.hello.transports = {{"memfd", ""}};
    if (address != "p1") peer.hello.transports.push_back({"tcp", "tcp://" + address + ":1"});
    peer.hello.replicas = {{.replica = "r" + address,
                            .ranks_attached = 1,
                            .state = control::ReplicaState::kServing,
                            .ready = true}};
    return peer;
  }

  void message(const std::string& from, control::Envelope envelope, control::Message what) {
    spoil(in_, machine_.fence(), envelope, what);
    auto arrived = over_the_wire(envelope, what);
    if (!arrived) return;
    step(coordinator::PeerMessage{.peer = from,
                                  .envelope = std::move(arrived->envelope),
                                  .message = std::move(arrived->message),
                                  .predecessor_gone = in_.one_in(4)});
  }

  void hello(const std::string& from, const control::Fence& fence, std::uint64_t request) {
    message(from, {.fence = fence, .request = request}, peer(from).hello);
  }

  // What a sidecar says to it; it is not taken from the list, so that it can be said twice.
  void answer(const coordinator::SendTo& sent) {
    const std::string from = sent.peer;
    const control::Envelope envelope = sent.envelope;
    const control::Message question = sent.message;
    Peer& self = peer(from);
    std::visit(
        Overloaded{
            [&](const control::Welcome&) { hello(from, envelope.fence, envelope.request); },
            [&](const control::Announce& announce) {
              digests_[announce.version] = announce.content_digest;
              if (in_.one_in(8))
                return message(
                    from, envelope,
                    control::Refuse{.version = announce.version, .layout_unknown = in_.one_in(2)});
              message(from, envelope, control::Accept{.version = announce.version});
            },
            [&](const control::Stage& stage) {
              if (stage.content_digest != Digest{}) digests_[stage.version] = stage.content_digest;
              control::Staged staged{.version = stage.version,
                                     .content_digest = digests_[stage.version]};
              if (in_.one_in(8)) {
                staged.failure = "lost";
                staged.source_lost = in_.one_in(2);
              } else {
                self.hello.staged.push_back(stage.version);
                if (self.hello.staged.size() > 3)
                  self.hello.staged.erase(self.hello.staged.begin());
              }
              message(from, envelope, std::move(staged));
            },
            [&](const control::Decide& decide) {
              self.hello.decision = {.fence = envelope.fence, .number = decide.number};
              self.hello.origin = decide.origin;
              self.hello.target = decide.target;
              self.hello.target_content = decide.content_digest;
              self.hello.withdrawn = decide.withdrawn;
              if (in_.one_in(2))
                return message(from, envelope,
                               control::Decided{.number = decide.number, .refused = in_.one_in(4)});
              self.hello.replicas.front().version = decide.target;
              message(from, envelope,
                      control::Switched{.number = decide.number,
                                        .target = decide.target,
                                        .outcomes = {{.replica = "r" + from,
                                                      .outcome = control::SwitchOutcome::kCommitted,
                                                      .version = decide.target}}});
            },
            [&](const auto&) {
              message(from, envelope,
                      control::Heartbeat{.target = self.hello.target,
                                         .staged = self.hello.staged,
                                         .replicas = self.hello.replicas});
            },
        },
        question);
  }

  void stored() {
    if (stores_.empty()) return;
    const coordinator::Store& store = in_.recent(stores_);
    coordinator::Stored answer{.token = store.token, .record = store.record};
    if (in_.one_in(8)) {
      const bool fenced = in_.one_in(4);
      answer.record = fail(fenced ? ErrorCode::kFenced : ErrorCode::kIo, "the disc is full");
    }
    step(std::move(answer));
  }

  void end_snapshot() {
    coordinator::SnapshotEnded ended{.version = streamed_};
    Pooled(in_, {}).digest("", ended.content_digest);
    if (in_.one_in(4)) {
      ended.failure = "the source cannot be read";
      ended.cancelled = in_.one_in(2);
    }
    step(std::move(ended));
  }

  void publish() {
    coordinator::PublishRequested publish{.request = ++request_, .arena_bytes = 64};
    if (const auto version = machine_.next_version(in_.below(8)); version)
      publish.version = *version;
    else
      Pooled(in_, {}).version("", publish.version);
    Pooled(in_, {}).digest("", publish.content_digest);
    publish.layout_digest = {.low = in_.below(2)};
    if (in_.one_in(4)) {  // its snapshot is being taken
      publish.content_digest = {};
      publish.is_complete = false;
      publish.was_streamed = true;
      streamed_ = publish.version;
    }
    if (in_.one_in(4)) publish.deadline = clock_.now() + seconds(5);
    if (kept_ && in_.one_in(4)) {  // once more, whatever became of it
      publish = *kept_;
      publish.request = request_;
    } else if (in_.one_in(3)) {
      publish.is_kept = true;
      kept_ = publish;
    }
    open_[request_] = true;
    step(std::move(publish));
  }

  Input& in_;
  bool forgets_;
  coordinator::Coordinator machine_;
  Clock<coordinator::Coordinator, coordinator::CoordinatorTick> clock_;
  std::map<std::string, Peer> peers_;
  std::map<Version, Digest> digests_;
  std::vector<coordinator::SendTo> sent_;
  std::vector<coordinator::Store> stores_;
  std::uint64_t request_ = 0;
  Version streamed_;  // of the last publish that was requested before its snapshot was complete
  std::optional<coordinator::PublishRequested> kept_;  // the last one that is kept
  std::map<std::uint64_t, bool> open_;  // publishes and rollbacks that have not ended
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  Input in({data, size});
  const unsigned choice = in.byte();
  CoordinatorRun(in, choice).run();
  return 0;
}
