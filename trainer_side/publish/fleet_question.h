// FleetQuestions: questions of a command that each sidecar answers for itself (verify, plan,
// trace), and some a trainer of another process, too. Answers are collected until each sidecar has
// answered or is lost, or until the deadline.
//
// Thread: the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/control/port.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "trainer_side/coordinator/roster.h"

namespace wsync::publish {

// A process that is asked besides the sidecars.
struct OtherPeer {
  std::string name;  // "trainer"
  std::string peer;
};

struct FleetAnswer {
  std::string name;  // of the sidecar, or OtherPeer::name
  bool is_sidecar = true;
  // Why there is no answer, for example "is not connected"; `message` is then not valid.
  std::optional<std::string> failure;
  control::Message message;
};

class FleetQuestions {
 public:
  using OnDone = std::function<void(std::vector<FleetAnswer> answers)>;
  using Send = std::function<Result<>(const std::string& peer, std::uint64_t request,
                                      const control::Message& message)>;
  // `loop` must outlive this object. `send` returns at once whether the message could be written to
  // the peer.
  FleetQuestions(Loop& loop, Send send) : loop_(loop), send_(std::move(send)) {}

  // Asks every known sidecar. `request` identifies the question and its answers, and is used once.
  // `on_done` receives one answer for each sidecar, ordered by the names at the time of the
  // question. It may be called before this returns.
  void ask(const coordinator::Roster& roster, std::uint64_t request,
           const control::Message& question, std::chrono::milliseconds deadline, OnDone on_done);
  // The same, and asks this process first.
  void ask(const OtherPeer& other, const coordinator::Roster& roster, std::uint64_t request,
           const control::Message& question, std::chrono::milliseconds deadline, OnDone on_done);
  // Asks one sidecar. `on_done` receives its answer.
  void ask(const coordinator::Member& sidecar, std::uint64_t request,
           const control::Message& question, std::chrono::milliseconds deadline, OnDone on_done);
  // Returns false if `peer` was asked nothing under this request, or has already answered.
  bool answered(const std::string& peer, std::uint64_t request, control::Message message);
  // `peer` can no longer answer; `why` says how it was lost.
  void lost(const std::string& peer, const std::string& why);

 private:
  struct Pending {
    std::vector<FleetAnswer> answers;
    std::map<std::string, std::size_t> waiting;  // peer of a sidecar -> place in `answers`
    OnDone on_done;
    std::unique_ptr<Timer> deadline;
  };
  void send(Pending& pending, const coordinator::Member& sidecar, std::uint64_t request,
            const control::Message& question);
  void send(Pending& pending, FleetAnswer& answer, const std::string& peer, std::uint64_t request,
            const control::Message& question);
  void wait(Pending& pending, std::uint64_t request, std::chrono::milliseconds deadline);
  void finish(std::uint64_t request);

  Loop& loop_;
  Send send_;
  std::map<std::uint64_t, Pending> pending_;
};

}  // namespace wsync::publish
