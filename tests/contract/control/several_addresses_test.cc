// A dealer that is given several addresses, at one of which its router listens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>
#include <vector>

#include "tests/contract/control/key_fixture.h"

namespace wsync::control {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class SeveralAddresses : public testing::Test {
 protected:
  SeveralAddresses() {
    guard_ = std::make_unique<Timer>(*loop_, [this] {
      ADD_FAILURE() << "nothing ended the loop";
      loop_->stop();
    });
    guard_->start(std::chrono::seconds(60));
    // Addresses that were free a moment ago.
    for (const char* name : {"one", "two", "three"}) {
      listen(name, "tcp://127.0.0.1:0");
      addresses_[name] = routers_[name]->address();
    }
    routers_.clear();
  }
  ~SeveralAddresses() override {
    dealer_.reset();
    routers_.clear();
    guard_.reset();
  }
  void listen(const std::string& name, const std::string& address = {}) {
    RouterCallbacks callbacks;
    callbacks.on_message = [this, name](const std::string&, const Envelope&,
                                        const Message& message) {
      if (!std::holds_alternative<Hello>(message)) return;  // but a heartbeat
      heard_.push_back(name);
      on_heard_();
    };
    auto router = listen_zmq(
        *loop_, {.address = address.empty() ? addresses_[name] : address, .times = kPatientTimes},
        std::move(callbacks));
    ASSERT_TRUE(router.has_value()) << router.error().message();
    routers_[name] = std::move(*router);
  }
  void connect(const std::string& addresses, PortTimes times = kPatientTimes) {
    DealerCallbacks callbacks;
    callbacks.on_message = [](const Envelope&, const Message&) {};
    callbacks.on_connected = [this] {
      connected_.push_back(dealer_->address());
      EXPECT_TRUE(dealer_->send({}, Hello{}).has_value());
    };
    callbacks.on_lost = [this](const Error& error) {
      lost_.push_back(error.message());
      on_lost_();
    };
    auto dealer =
        connect_zmq(*loop_, {.address = addresses, .name = "s", .times = times}, callbacks);
    ASSERT_TRUE(dealer.has_value()) << dealer.error().message();
    dealer_ = std::move(*dealer);
  }
  [[nodiscard]] std::string all() {
    return addresses_["one"] + ", " + addresses_["two"] + "," + addresses_["three"];
  }

  std::unique_ptr<Loop> loop_ = Loop::create().value();
  std::unique_ptr<Timer> guard_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, std::unique_ptr<RouterPort>> routers_;
  std::unique_ptr<DealerPort> dealer_;
  std::vector<std::string> heard_;
  std::vector<std::string> connected_;
  std::vector<std::string> lost_;
  std::function<void()> on_heard_ = [this] { loop_->stop(); };
  std::function<void()> on_lost_ = [] {};
};

TEST_F(SeveralAddresses, TheOneIsFoundAtWhichARouterListens) {
  listen("three");
  connect(all());
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("three"));
  EXPECT_THAT(connected_, ElementsAre(addresses_["three"]));
}

TEST_F(SeveralAddresses, ARouterThatEndsIsFollowedToTheNextOne) {
  listen("one");
  connect(all());
  loop_->run();
  on_lost_ = [this] { listen("two"); };
  routers_.erase("one");
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("one", "two"));
  EXPECT_THAT(lost_, ElementsAre(HasSubstr(addresses_["one"])));
  // And back.
  on_lost_ = [this] { listen("one"); };
  routers_.erase("two");
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("one", "two", "one"));
}

// Its kernel takes connections, and it says nothing.
TEST_F(SeveralAddresses, OneThatHangsIsLeft) {
  auto silent = Socket::create(ZMQ_ROUTER, "").value();
  ASSERT_TRUE(silent->bind(parse_port_address(addresses_["one"]).value()).has_value());
  listen("two");
  connect(addresses_["one"] + "," + addresses_["two"], kTriesAgain);
  loop_->run();
  EXPECT_THAT(heard_, ElementsAre("two"));
  EXPECT_THAT(lost_, ElementsAre(HasSubstr("silent")));
}

TEST_F(SeveralAddresses, WithKeysTheOthersAreTriedAsWell) {
  TestKeys keys;
  const KeyFile key = keys.list(KeyRole::kSidecar, "s");
  auto router = listen_zmq(
      *loop_, {.address = addresses_["two"], .times = kPatientTimes, .keys = keys.of_router()},
      {.on_message = [this](const std::string&, const Envelope&, const Message&) {
        loop_->stop();
      }});
  ASSERT_TRUE(router.has_value()) << router.error().message();
  DealerCallbacks callbacks;
  callbacks.on_message = [](const Envelope&, const Message&) {};
  callbacks.on_connected = [this] { EXPECT_TRUE(dealer_->send({}, Hello{}).has_value()); };
  callbacks.on_lost = [](const Error&) {};
  dealer_ = connect_zmq(*loop_, {.address = all(), .name = "s", .times = kPatientTimes, .key = key},
                        std::move(callbacks))
                .value();
  loop_->run();
  EXPECT_EQ(dealer_->address(), addresses_["two"]);
  dealer_.reset();
}

TEST_F(SeveralAddresses, EachAddressIsChecked) {
  for (const std::string bad :
       {"tcp://127.0.0.1:1,", "tcp://127.0.0.1:1,nonsense", "tcp://127.0.0.1:1,tcp://10.9.8.7:1"}) {
    const auto dealer = connect_zmq(*loop_, {.address = bad, .name = "s", .times = kPatientTimes},
                                    {.on_message = [](const Envelope&, const Message&) {},
                                     .on_connected = [] {},
                                     .on_lost = [](const Error&) {}});
    EXPECT_FALSE(dealer.has_value()) << bad;
  }
}

}  // namespace
}  // namespace wsync::control
