// PublisherDesk: stands in a coordinator's process for the trainer, which is another process. It
// attaches one trainer at a time, passes its requests to the CoordinatorAgent, and tells it what
// becomes of them. It decides which process is the trainer, and when that trainer is lost.
//
// A trainer whose connection breaks may come back within kPublisherGrace, or until its process is
// known to have ended; only then the coordinator hears of its loss. Messages may be lost with a
// connection, so each Hello compares the open rounds and the served versions of both sides.
//
// Thread: the loop's.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "shared/control/messages.h"
#include "shared/loop/loop.h"
#include "shared/loop/timer.h"
#include "trainer_side/publish/coordinator_agent.h"

namespace wsync::publish {

inline constexpr std::chrono::seconds kPublisherGrace{5};

// This class has more than 25 methods: each message of the trainer, and each event of its rounds,
// has its own.
class PublisherDesk {
 public:
  explicit PublisherDesk(Loop& loop);
  PublisherDesk(const PublisherDesk&) = delete;
  PublisherDesk& operator=(const PublisherDesk&) = delete;

  // For the agent that serve() names. The desk must outlive it.
  [[nodiscard]] CoordinatorAgentCallbacks callbacks(
      std::function<void(const Error& reason)> on_stopped);
  // Call it once, before the loop runs.
  void serve(CoordinatorAgent& agent) { agent_ = &agent; }

 private:
  struct Trainer {
    std::string peer;
    bool is_connected = true;
    std::uint64_t process = 0;
    std::uint32_t pid = 0;
    std::uint64_t pid_namespace = 0;
    std::string host;
    std::string boot_id;
    [[nodiscard]] std::string text() const;
    // Its process has certainly ended.
    [[nodiscard]] bool is_gone() const;
  };
  // A round that runs or waits, by its number at the coordinator.
  struct Round {
    std::uint64_t process = 0;  // of its trainer
    std::uint64_t request = 0;  // its number there
    Version version;
    std::optional<control::ProgressPhase> phase;
  };
  struct Asked {
    std::string peer;
    std::uint64_t request = 0;
    bool may_publish = false;  // it can publish itself, and knows of it
  };

  // Returns whether the message was for this desk.
  [[nodiscard]] bool handle(const std::string& peer, const control::Envelope& envelope,
                            control::Message& message);
  [[nodiscard]] bool is_trainer(const std::string& peer) const {
    return trainer_ && trainer_->is_connected && trainer_->peer == peer;
  }
  void handle_hello(const std::string& peer, std::uint64_t request,
                    const control::PublisherHello& hello);
  // Has a process that is not attached, or not any more, say Hello.
  void ask_for_hello(const std::string& peer);
  // Compares what the trainer has said with what this side knows.
  void compare(const control::PublisherHello& hello);
  [[nodiscard]] std::optional<std::string> how_decided(const Version& version) const;
  void handle_request(control::RoundRequest& request);
  void answered(std::uint64_t number, control::Message message);
  void handle_lost(const std::string& peer, const Error& why);
  // The trainer has ended in order.
  void handle_leave();
  // The trainer is lost for good, for this reason.
  void drop(const std::string& why);
  void forget_trainer(const std::string& why);
  // `may_publish`: what was asked of it has not begun.
  void refuse_questions(const std::string& why, bool may_publish = false);

  void push(const std::string& peer, std::uint64_t request, const control::Push& push);
  [[nodiscard]] control::ErrorReply no_trainer() const;
  void cancel(const Version& version, std::function<void(control::CancelReply)> answer);
  void enter_phase(const coordinator::PhaseEntered& phase);
  // Tells the trainer how its round ended, now or when it is connected again.
  void end_round(std::uint64_t number, const std::function<control::Message(std::uint64_t)>& end);

  [[nodiscard]] control::FleetFacts facts() const;
  void send_facts();  // if they have changed
  void note_step();
  // Sends it with the facts that it depends on.
  void notify(const control::Message& message);

  CoordinatorAgent* agent_ = nullptr;
  std::optional<Trainer> trainer_;
  std::string last_peer_;  // of the trainer that said Hello last
  std::map<std::uint64_t, Round> rounds_;
  // By the trainer's number: a RoundEnd or RoundLoss that it could not be sent.
  std::map<std::uint64_t, control::Message> unsent_ends_;
  std::uint64_t next_question_ = 1;
  std::map<std::uint64_t, Asked> pushes_;
  std::map<std::uint64_t, std::function<void(control::CancelReply)>> cancels_;
  Timer grace_;
  std::string why_lost_;
  Timer facts_timer_;
  TimePoint facts_sent_{};
  std::optional<Bytes> last_facts_;  // as they were sent
};

}  // namespace wsync::publish
