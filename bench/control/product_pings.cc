#include "bench/control/product_pings.h"

#include <optional>

#include "bench/baseline/sockets.h"
#include "bench/control/loop_thread.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/control/link.h"
#include "shared/control/unix_stream.h"
#include "shared/control/zmq/ports.h"
#include "shared/loop/timer.h"

namespace wsync::bench {
namespace {

using control::Decoded;
using control::Envelope;
using control::Message;
using std::chrono::nanoseconds;

constexpr std::chrono::seconds kWaitLimit{kStallSeconds};
constexpr std::uint64_t kFirst = 1;  // first question of a call

Decoded numbered(std::uint64_t i, Message message) {
  return {.envelope = {.fence = {.epoch = 1, .run_id = {2, 3}}, .round = 4, .request = i},
          .message = std::move(message)};
}

// State of the answering end for one call. Used only in the thread of its loop.
struct Answering {
  unsigned answer_every = 1;    // number of questions per answer
  std::uint64_t next = kFirst;  // number of the next question
  // Returns whether this question is to be answered. A question out of order is never answered, so
  // that the call ends with kDeadline.
  bool takes(std::uint64_t number) {
    if (number != next) return false;
    return next++ % answer_every == 0;
  }
};

// ---- ports ----

struct PortAnswers {
  Answering state;
  std::unique_ptr<control::RouterPort> router;
};

Result<LoopThread::Guest> answer_port(Loop& loop, const std::string& address,
                                      const std::shared_ptr<PortAnswers>& answers) {
  PortAnswers* self = answers.get();
  auto router = control::listen_zmq(
      loop, {.address = address, .times = {}},
      {.on_message =
           [self](const std::string& peer, const Envelope& envelope, const Message& message) {
             const auto* question = std::get_if<control::Cancel>(&message);
             if (question == nullptr || !self->state.takes(question->version.step)) return;
             // An error needs no handling here: the end that asks then reports a missing answer.
             std::ignore =
                 self->router->send(peer, envelope, port_answer(question->version.step).message);
           },
       .on_lost = {},
       .on_bad_message = {},
       .heartbeat = {}});
  if (!router) return fail(std::move(router).error());
  self->router = std::move(*router);
  return LoopThread::Guest(answers);
}

class PortPings final : public Pings {
 public:
  static Result<std::unique_ptr<Pings>> create(const std::string& address) {
    std::unique_ptr<PortPings> made(new PortPings());
    made->thread_ = WSYNC_TRY(
        LoopThread::start([&](Loop& loop) { return answer_port(loop, address, made->answers_); }));
    std::string reached;
    made->thread_->run([&] { reached = made->answers_->router->address(); });
    // Only the thread owns the object from now on, so that it is destroyed on its own loop.
    made->answering_ = &made->answers_->state;
    made->answers_.reset();
    WSYNC_TRY(made->connect(reached));
    return std::unique_ptr<Pings>(std::move(made));
  }

  Result<nanoseconds> round_trips(unsigned count) override { return call(count, 1); }
  Result<nanoseconds> one_way(unsigned count) override { return call(count, count); }

 private:
  PortPings() = default;

  Result<> connect(const std::string& address) {
    loop_ = WSYNC_TRY(Loop::create());
    guard_ = std::make_unique<Timer>(*loop_, [this] {
      end(fail(
          ErrorCode::kDeadline,
          fmt::format("the other end of the port did not answer within {} s", kWaitLimit.count())));
    });
    auto dealer = control::connect_zmq(
        *loop_, {.address = address, .name = "bench", .times = {}},
        {.on_message = [this](const Envelope& envelope,
                              const Message& message) { on_answer(envelope, message); },
         .on_connected = [this] { loop_->stop(); },
         .on_lost = [this](const Error& error) { end(fail(error)); },
         .on_bad_message = {},
         .heartbeat = {}});
    if (!dealer) return fail(std::move(dealer).error());
    dealer_ = std::move(*dealer);
    guard_->start(kWaitLimit);
    loop_->run();
    guard_->stop();
    return outcome_;
  }

  Result<nanoseconds> call(unsigned count, unsigned answer_every) {
    thread_->run([&] { *answering_ = {.answer_every = answer_every}; });
    count_ = count;
    answer_every_ = answer_every;
    asked_ = 0;
    outcome_ = {};
    guard_->start(kWaitLimit);
    const TimePoint begin = now();
    ask();
    loop_->run();
    guard_->stop();
    WSYNC_TRY(outcome_);
    return end_ - begin;
  }
  // Asks until it must wait for an answer or the queue is full.
  void ask() {
    do {
      const Decoded question = port_question(asked_ + 1);
      if (auto sent = dealer_->send(question.envelope, question.message); !sent) {
        if (sent.error().code() != ErrorCode::kBusy) return end(fail(sent.error()));
        return loop_->post([this] { ask(); });
      }
      ++asked_;
    } while (asked_ % answer_every_ != 0);
  }
  void on_answer(const Envelope& envelope, const Message& message) {
    const auto* answer = std::get_if<control::CancelReply>(&message);
    if (answer == nullptr) return;  // a heartbeat
    if (!answer->ok || answer->version.step != asked_ || envelope.request != asked_)
      return end(fail(ErrorCode::kInternal, fmt::format("received answer {} to request {}",
                                                        answer->version.step, asked_)));
    if (asked_ == count_) return end({});
    ask();
  }
  void end(Result<> outcome) {
    end_ = now();
    outcome_ = std::move(outcome);
    loop_->stop();
  }

  // until the thread owns it
  std::shared_ptr<PortAnswers> answers_ = std::make_shared<PortAnswers>();
  // used on the thread's loop only
  Answering* answering_ = nullptr;
  std::unique_ptr<LoopThread> thread_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<Timer> guard_;
  std::unique_ptr<control::DealerPort> dealer_;
  unsigned count_ = 0;
  unsigned answer_every_ = 1;
  std::uint64_t asked_ = 0;
  TimePoint end_{};
  Result<> outcome_;
};

// ---- an engine's link ----

struct EngineAnswers {
  Answering state;
  std::unique_ptr<control::UnixListener> listener;
  std::unique_ptr<control::UnixStream> stream;
};

void answer_engine(EngineAnswers& answers, Loop& loop, UniqueFd socket) {
  auto stream = control::UnixStream::adopt(
      loop, std::move(socket),
      {.on_frame =
           [&answers](const control::Frame& frame) {
             const auto* question = std::get_if<control::BucketAck>(&frame.message);
             if (question == nullptr || !answers.state.takes(question->bucket)) return;
             std::ignore =
                 answers.stream->send(frame.envelope, engine_answer(question->bucket).message);
           },
       .on_close = [](const Error&) {}});
  // If there is no stream, the engine sees a closed connection.
  if (stream) answers.stream = std::move(*stream);
}

class EnginePings final : public Pings {
 public:
  static Result<std::unique_ptr<Pings>> create(const std::string& path) {
    EngineAnswers* answers = nullptr;
    auto thread = LoopThread::start([&](Loop& loop) -> Result<LoopThread::Guest> {
      auto made = std::make_shared<EngineAnswers>();
      answers = made.get();
      auto listener = WSYNC_TRY(control::UnixListener::create(
          loop, path, [answers, &loop](UniqueFd socket, const PeerCredentials&) {
            answer_engine(*answers, loop, std::move(socket));
          }));
      made->listener = std::move(listener);
      return LoopThread::Guest(std::move(made));
    });
    if (!thread) return fail(std::move(thread).error());
    auto link = WSYNC_TRY(control::Link::connect(path, now() + kWaitLimit));
    return std::unique_ptr<Pings>(
        new EnginePings(std::move(*thread), &answers->state, std::move(link)));
  }

  Result<nanoseconds> round_trips(unsigned count) override { return call(count, 1); }
  Result<nanoseconds> one_way(unsigned count) override { return call(count, count); }

 private:
  EnginePings(std::unique_ptr<LoopThread> thread, Answering* answering, control::Link link)
      : thread_(std::move(thread)), answering_(answering), link_(std::move(link)) {}

  Result<nanoseconds> call(unsigned count, unsigned answer_every) {
    thread_->run([&] { *answering_ = {.answer_every = answer_every}; });
    const TimePoint begin = now();
    const TimePoint deadline = begin + kWaitLimit;
    for (std::uint64_t i = kFirst; i <= count; ++i) {
      const Decoded question = engine_question(i);
      WSYNC_TRY(link_.send(question.envelope, question.message, {}, deadline));
      if (i % answer_every != 0) continue;
      const auto frame = WSYNC_TRY(link_.receive(deadline));
      const auto* answer = std::get_if<control::BucketReady>(&frame.message);
      if (answer == nullptr || answer->bucket != i || frame.envelope.request != i)
        return fail(ErrorCode::kInternal,
                    fmt::format("received an unexpected answer to request {}", i));
    }
    return now() - begin;
  }

  std::unique_ptr<LoopThread> thread_;
  Answering* answering_;  // used on the thread's loop only
  control::Link link_;
};

}  // namespace

Decoded port_question(std::uint64_t i) {
  return numbered(i, control::Cancel{.version = {.epoch = 1, .step = i}});
}
Decoded port_answer(std::uint64_t i) {
  return numbered(i, control::CancelReply{.ok = true,
                                          .reason = {},
                                          .version = {.epoch = 1, .step = i},
                                          .phase = control::ProgressPhase::kStage});
}
Decoded engine_question(std::uint64_t i) {
  return numbered(i, control::BucketAck{.bucket = i, .failure = {}});
}
Decoded engine_answer(std::uint64_t i) {
  return numbered(i, control::BucketReady{.bucket = i, .slot = 1});
}

Result<std::unique_ptr<Pings>> ping_port(const std::string& address) {
  return PortPings::create(address);
}

Result<std::unique_ptr<Pings>> ping_engine_link(const std::string& path) {
  return EnginePings::create(path);
}

}  // namespace wsync::bench
