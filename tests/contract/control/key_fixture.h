// A router with keys and its peers, for tests.
#pragma once

#include <chrono>
#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shared/control/codec.h"
#include "shared/control/zmq/ports.h"
#include "shared/control/zmq/socket.h"
#include "shared/loop/timer.h"
#include "tests/contract/control/test_keys.h"

namespace wsync::control {

using std::chrono::milliseconds;

inline constexpr PortTimes kPatientTimes{.heartbeat_interval = milliseconds(20),
                                         .silence_deadline = milliseconds(60'000)};
// A dealer that was refused tries again after this silence.
inline constexpr PortTimes kTriesAgain{.heartbeat_interval = milliseconds(20),
                                       .silence_deadline = milliseconds(1000)};

struct Refusal {
  std::string who;
  std::string why;
};

class KeyPort : public testing::Test {
 protected:
  KeyPort() {
    guard_ = std::make_unique<Timer>(*loop_, [this] {
      ADD_FAILURE() << "nothing ended the loop";
      loop_->stop();
    });
    guard_->start(std::chrono::seconds(60));
  }
  ~KeyPort() override {
    dealers_.clear();
    raw_timers_.clear();
    raw_.clear();
    router_.reset();
    guard_.reset();
  }

  void listen(RouterCallbacks callbacks, bool has_keys = true) {
    if (!callbacks.on_message)
      callbacks.on_message = [](const std::string&, const Envelope&, const Message&) {};
    if (!callbacks.on_refused)
      callbacks.on_refused = [this](const std::string& who, const Error& error) {
        refusals_.push_back({who, error.message()});
        if (stop_when_refused_) loop_->stop();
      };
    RouterOptions options{.address = "tcp://127.0.0.1:0", .times = kPatientTimes};
    if (has_keys) options.keys = keys_.of_router();
    auto router = listen_zmq(*loop_, options, std::move(callbacks));
    ASSERT_TRUE(router.has_value()) << router.error().message();
    router_ = std::move(*router);
  }
  DealerPort& connect(const std::string& name, std::optional<KeyFile> key,
                      DealerCallbacks callbacks, PortTimes times = kPatientTimes) {
    if (!callbacks.on_message) callbacks.on_message = [](const Envelope&, const Message&) {};
    if (!callbacks.on_connected) callbacks.on_connected = [] {};
    if (!callbacks.on_lost) callbacks.on_lost = [](const Error&) {};
    auto dealer = connect_zmq(
        *loop_,
        {.address = router_->address(), .name = name, .times = times, .key = std::move(key)},
        std::move(callbacks));
    EXPECT_TRUE(dealer.has_value()) << dealer.error().message();
    dealers_[name] = std::move(*dealer);
    return *dealers_[name];
  }
  // A peer with an identity of its choice, which sends one message as soon as it is connected.
  void send_raw(const std::string& identity, const KeyFile& key, const Message& message) {
    auto raw = Socket::create(ZMQ_DEALER, identity).value();
    ASSERT_TRUE(raw->use_key(key).has_value());
    ASSERT_TRUE(raw->connect(parse_port_address(router_->address()).value()).has_value());
    raw_timers_.push_back(std::make_unique<Timer>(
        *loop_, [this, at = raw_.size(), bytes = encode({}, message).value()] {
          if (raw_[at]->send("", bytes).has_value()) raw_timers_[at]->stop();
        }));
    raw_.push_back(std::move(raw));
    raw_timers_.back()->start_repeating(milliseconds(1));
  }
  // Two sides see a refusal, each by itself; the loop ends when both have.
  void stop_when(const bool& seen) {
    both_ = std::make_unique<Timer>(*loop_, [this, &seen] {
      if (!refusals_.empty() && seen) loop_->stop();
    });
    both_->start_repeating(milliseconds(1));
  }

  TestKeys keys_;
  std::unique_ptr<Loop> loop_ = Loop::create().value();
  std::unique_ptr<Timer> guard_;
  std::unique_ptr<RouterPort> router_;
  std::map<std::string, std::unique_ptr<DealerPort>> dealers_;
  std::vector<std::unique_ptr<Socket>> raw_;
  std::vector<std::unique_ptr<Timer>> raw_timers_;
  std::unique_ptr<Timer> both_;
  std::vector<Refusal> refusals_;
  bool stop_when_refused_ = false;
};

}  // namespace wsync::control
