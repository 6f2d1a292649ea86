// Ports with keys: who is admitted, by which key a message is judged, and attacks.
#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>
#include <netinet/in.h>
#include <optional>
#include <set>
#include <string>
#include <sys/socket.h>
#include <vector>

#include "shared/base/unique_fd.h"
#include "tests/contract/control/key_fixture.h"

namespace wsync::control {
namespace {

using testing::HasSubstr;

TEST_F(KeyPort, EachMessageIsJudgedByTheKeyOfItsConnection) {
  const KeyFile host7 = keys_.list(KeyRole::kSidecar, "host7");
  const KeyFile eve = keys_.list(KeyRole::kReader, "eve");
  std::set<std::string> judged;
  std::set<std::string> delivered;
  listen({.on_message =
              [&](const std::string& peer, const Envelope&, const Message& message) {
                if (std::holds_alternative<Heartbeat>(message)) return;
                delivered.insert(peer.substr(0, peer.find('-')));
              },
          .why_refused = [&](const KeyOwner& sender,
                             const Message& message) -> std::optional<std::string> {
            if (std::holds_alternative<Heartbeat>(message)) return std::nullopt;
            judged.insert(sender.text());
            if (sender.role == KeyRole::kSidecar) return std::nullopt;
            return "a reader changes nothing";
          }});
  // Both call themselves host7: the name that a peer chooses proves nothing.
  connect("host7", host7,
          {.on_connected = [&] { EXPECT_TRUE(dealers_["host7"]->send({}, Hello{}).has_value()); }});
  std::optional<ErrorReply> answer;
  std::uint64_t round = 0;
  connect(
      "thief", eve,
      {.on_message =
           [&](const Envelope& envelope, const Message& message) {
             if (const auto* error = std::get_if<ErrorReply>(&message)) {
               answer = *error;
               round = envelope.round;
             }
             if (answer && !delivered.empty()) loop_->stop();
           },
       .on_connected =
           [&] {
             EXPECT_TRUE(dealers_["thief"]->send({.round = 5, .request = 9}, Hello{}).has_value());
           }});
  loop_->run();
  EXPECT_THAT(judged, testing::ElementsAre("reader eve", "sidecar host7"));
  EXPECT_THAT(delivered, testing::ElementsAre("host7"));
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, ErrorCode::kRefused);
  EXPECT_EQ(answer->message, "a reader changes nothing");
  EXPECT_EQ(round, 5U);
  EXPECT_EQ(router_->counters().refused, 1U);
  ASSERT_EQ(refusals_.size(), 1U);
  EXPECT_EQ(refusals_[0].who, "reader eve");
}

TEST_F(KeyPort, AKeyThatIsNotListedIsRefusedCountedAndSaidOnBothSides) {
  (void)keys_.list(KeyRole::kSidecar, "host7");
  const KeyFile stranger = keys_.unlisted(KeyRole::kSidecar, "host7");
  listen({.on_message = [](const std::string& peer, const Envelope&, const Message&) {
    ADD_FAILURE() << "a message of " << peer << ", whose key is not listed";
  }});
  std::optional<Error> refused;
  bool seen = false;
  connect("host7", stranger,
          {.on_connected =
               [&] {
                 ADD_FAILURE() << "the router admitted a key that is not listed";
                 loop_->stop();
               },
           .on_refused =
               [&](const Error& error) {
                 refused = error;
                 seen = true;
               }});
  stop_when(seen);
  loop_->run();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), ErrorCode::kRefused);
  EXPECT_THAT(refused->message(), HasSubstr("does not admit the key of sidecar host7"));
  EXPECT_GE(router_->counters().refused, 1U);
  EXPECT_EQ(router_->counters().received, 0U);
  ASSERT_FALSE(refusals_.empty());
  EXPECT_THAT(refusals_[0].who, HasSubstr("127.0.0.1"));
  EXPECT_THAT(refusals_[0].why, HasSubstr(stranger.pair.public_key));
  EXPECT_THAT(refusals_[0].why, testing::Not(HasSubstr(stranger.pair.secret_key)));
}

TEST_F(KeyPort, APortMayBeDestroyedWhileItRefuses) {
  const KeyFile stranger = keys_.unlisted(KeyRole::kSidecar, "host7");
  const KeyFile eve = keys_.list(KeyRole::kReader, "eve");
  const auto stop_when_refused = [&](RouterCallbacks callbacks) {
    callbacks.on_refused = [&, token = std::make_shared<int>(5)](const std::string&, const Error&) {
      router_.reset();
      EXPECT_EQ(*token, 5);
      loop_->stop();
    };
    callbacks.on_message = [](const std::string&, const Envelope&, const Message&) {
      ADD_FAILURE() << "a message came through";
    };
    listen(std::move(callbacks));
  };
  stop_when_refused({});
  connect("stranger", stranger, {});
  loop_->run();  // a connection was refused
  EXPECT_EQ(router_, nullptr);
  dealers_.clear();
  stop_when_refused({.why_refused = [](const KeyOwner&, const Message&) { return "no"; }});
  connect("eve", eve, {});
  loop_->run();  // a message was
  EXPECT_EQ(router_, nullptr);
  dealers_.clear();
  listen({.on_message = [](const std::string&, const Envelope&,
                           const Message&) { ADD_FAILURE() << "a message came through"; },
          .why_refused = [&](const KeyOwner&, const Message&) -> std::optional<std::string> {
            router_.reset();
            loop_->stop();
            return std::nullopt;
          }});
  connect("eve", eve, {});
  loop_->run();  // while it was judged
  EXPECT_EQ(router_, nullptr);
}

// Both ends see by the greeting of the other that they do not fit, and only the one that does so
// first knows why the connection ended. The peer tries again until each has been the first.
TEST_F(KeyPort, APeerWithoutAKeyIsRefused) {
  listen({.on_message = [](const std::string&, const Envelope&, const Message&) { FAIL(); }});
  std::optional<Error> refused;
  bool seen = false;
  connect("host7", std::nullopt,
          {.on_connected = [] { FAIL(); },
           .on_refused =
               [&](const Error& error) {
                 refused = error;
                 seen = true;
               }},
          kTriesAgain);
  stop_when(seen);
  loop_->run();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), ErrorCode::kRefused);
  EXPECT_THAT(refused->message(), HasSubstr("admits only who has a key"));
  ASSERT_FALSE(refusals_.empty());
  EXPECT_EQ(refusals_[0].why, "it has no key");
  EXPECT_GE(router_->counters().refused, 1U);
}

TEST_F(KeyPort, APasswordIsNoKey) {
  listen({.on_message = [](const std::string&, const Envelope&, const Message&) { FAIL(); }});
  stop_when_refused_ = true;
  // The greeting of a peer that speaks ZeroMQ 3 with user name and password.
  std::array<char, 64> greeting{};
  greeting[0] = '\xff';
  greeting[8] = 1;
  greeting[9] = '\x7f';
  greeting[10] = 3;
  std::string("PLAIN").copy(greeting.data() + 12, 20);
  const std::string& address = router_->address();
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  to.sin_port =
      htons(static_cast<std::uint16_t>(std::stoul(address.substr(address.find_last_of(':') + 1))));
  ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  ASSERT_EQ(::send(fd.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 64);
  loop_->run();
  ASSERT_FALSE(refusals_.empty());
  EXPECT_EQ(refusals_[0].why, "it has no key");
}

TEST_F(KeyPort, APeerThatExpectsAnotherCoordinatorIsRefusedAndNeverShowsItsKey) {
  KeyFile key = keys_.list(KeyRole::kSidecar, "host7");
  key.server_key = make_key_pair().value().public_key;
  listen({.on_message = [](const std::string&, const Envelope&, const Message&) { FAIL(); }});
  std::optional<Error> refused;
  bool seen = false;
  connect("host7", key,
          {.on_connected = [] { FAIL(); },
           .on_refused =
               [&](const Error& error) {
                 refused = error;
                 seen = true;
               }});
  stop_when(seen);
  loop_->run();
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->code(), ErrorCode::kPeerLost);
  EXPECT_THAT(refused->message(), HasSubstr("is not the coordinator that the key of sidecar host7 "
                                            "was made for"));
  ASSERT_FALSE(refusals_.empty());
  EXPECT_THAT(refusals_[0].why, HasSubstr("expects a coordinator with another key"));
}

TEST_F(KeyPort, APeerWithAKeyDoesNotTalkToARouterWithoutKeys) {
  const KeyFile key = keys_.list(KeyRole::kSidecar, "host7");
  listen({.on_message = [](const std::string&, const Envelope&, const Message&) { FAIL(); }},
         false);
  std::optional<Error> refused;
  connect("host7", key,
          {.on_connected = [] { FAIL(); },
           .on_refused =
               [&](const Error& error) {
                 if (error.code() != ErrorCode::kRefused) {
                   EXPECT_THAT(error.message(), HasSubstr("it has no keys, is not the"));
                   return;
                 }
                 refused = error;
                 loop_->stop();
               }},
          kTriesAgain);
  loop_->run();
  ASSERT_TRUE(refused.has_value());
  EXPECT_THAT(refused->message(), HasSubstr("has no keys, but this process has that of sidecar "
                                            "host7"));
}

TEST_F(KeyPort, ARemovedKeysConnectionEndsAndNobodyElses) {
  const KeyFile gone = keys_.list(KeyRole::kSidecar, "gone");
  const KeyFile stays = keys_.list(KeyRole::kSidecar, "stays");
  std::vector<std::string> lost;
  std::vector<std::string> events;
  bool is_removed = false;
  int words = 0;  // of the one that stays, after the other was removed
  const auto stop_when_all = [&] {
    if (events.size() == 2 && lost.size() == 1 && words >= 3) loop_->stop();
  };
  std::set<std::string> heard;
  RouterCallbacks callbacks;
  callbacks.on_message = [&](const std::string& peer, const Envelope&, const Message&) {
    const std::string name = peer.substr(0, peer.find('-'));
    if (is_removed) {
      EXPECT_EQ(name, "stays");
      ++words;
      return stop_when_all();
    }
    heard.insert(name);
    if (heard.size() < 2) return;
    is_removed = true;
    router_->admit(keys_.without(gone));
    EXPECT_TRUE(lost.empty()) << "a callback came inside a call to the port";
  };
  callbacks.on_lost = [&](const std::string& peer, const Error& error) {
    lost.push_back(peer.substr(0, peer.find('-')));
    EXPECT_EQ(error.message(), "its key is not listed any more");
    stop_when_all();
  };
  listen(std::move(callbacks));
  connect("gone", gone,
          {.on_lost =
               [&](const Error& error) {
                 events.push_back("lost");
                 EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.message();
                 stop_when_all();
               },
           .on_refused =
               [&](const Error& error) {
                 EXPECT_EQ(error.code(), ErrorCode::kRefused) << error.message();
                 if (events.size() < 2) events.push_back("refused");
                 stop_when_all();
               }});
  connect("stays", stays,
          {.on_lost = [](const Error& error) { ADD_FAILURE() << error.message(); }});
  loop_->run();
  EXPECT_THAT(lost, testing::ElementsAre("gone"));
  EXPECT_THAT(events, testing::ElementsAre("lost", "refused"));
  EXPECT_GE(router_->counters().refused, 1U);
}

TEST_F(KeyPort, AKeyThatIsListedAgainIsAdmittedAgain) {
  const KeyFile key = keys_.list(KeyRole::kSidecar, "host7");
  bool was_refused = false;
  int connected = 0;
  listen({.on_message = [&](const std::string&, const Envelope&, const Message&) {
    if (connected == 1 && !was_refused) router_->admit(AuthorizedKeys());
  }});
  connect("host7", key,
          {.on_connected =
               [&] {
                 if (++connected == 2) loop_->stop();
               },
           .on_refused =
               [&](const Error&) {
                 was_refused = true;
                 router_->admit(keys_.listed());
               }},
          kTriesAgain);
  loop_->run();
  EXPECT_TRUE(was_refused);
  EXPECT_EQ(connected, 2);
}

TEST_F(KeyPort, AKeyThatGetsAnotherHolderMustConnectAgain) {
  const KeyFile key = keys_.list(KeyRole::kSidecar, "host7");
  AuthorizedKeys others;
  ASSERT_TRUE(others.add({.role = KeyRole::kReader, .name = "eve"}, key.pair.public_key));
  std::vector<std::string> holders;
  std::vector<std::string> lost;
  RouterCallbacks callbacks;
  callbacks.why_refused = [&](const KeyOwner& sender,
                              const Message&) -> std::optional<std::string> {
    if (!holders.empty() && holders.back() == sender.text()) return std::nullopt;
    holders.push_back(sender.text());
    if (holders.size() == 2) {
      loop_->stop();
    } else {
      router_->admit(others);
    }
    return std::nullopt;
  };
  callbacks.on_lost = [&](const std::string& peer, const Error&) { lost.push_back(peer); };
  listen(std::move(callbacks));
  connect("host7", key, {});
  loop_->run();
  EXPECT_THAT(holders, testing::ElementsAre("sidecar host7", "reader eve"));
  EXPECT_EQ(lost.size(), 1U);
}

TEST_F(KeyPort, TheIdentityOfAnotherHolderBringsNothing) {
  const KeyFile host7 = keys_.list(KeyRole::kSidecar, "host7");
  const KeyFile eve = keys_.list(KeyRole::kReader, "eve");
  std::vector<std::string> lost;
  int heard = 0;
  RouterCallbacks callbacks;
  callbacks.on_message = [&](const std::string& peer, const Envelope&, const Message& message) {
    EXPECT_EQ(peer, "victim");
    if (!std::holds_alternative<Accept>(message)) {
      ADD_FAILURE() << "the message of the thief came through";
      return loop_->stop();
    }
    if (++heard == 1) send_raw("victim", eve, Leave{});
  };
  callbacks.on_lost = [&](const std::string& peer, const Error& error) {
    lost.push_back(peer);
    EXPECT_THAT(error.message(), HasSubstr("another connection has taken its identity"));
    loop_->stop();
  };
  listen(std::move(callbacks));
  send_raw("victim", host7, Accept{});
  loop_->run();
  EXPECT_EQ(heard, 1);
  EXPECT_THAT(lost, testing::ElementsAre("victim"));
  ASSERT_EQ(refusals_.size(), 1U);
  EXPECT_EQ(refusals_[0].who, "reader eve");
  EXPECT_THAT(refusals_[0].why, HasSubstr("has taken the identity victim of sidecar host7"));
}

TEST_F(KeyPort, ARouterWhoseQuestionsNobodyAnswersAdmitsNobody) {
  const KeyFile key = keys_.list(KeyRole::kSidecar, "host7");
  const auto router = Socket::create(ZMQ_ROUTER, "").value();
  ASSERT_TRUE(router->serve_keys(keys_.of_router().secret_key).has_value());
  ASSERT_TRUE(router->bind(parse_port_address("tcp://127.0.0.1:0").value()).has_value());
  bool was_asked = false;
  std::unique_ptr<Timer> end;
  Timer look(*loop_, [&] {
    // The dealer waits from here on; what it would do wrongly, it would do in these rounds.
    if (!was_asked && (was_asked = router->has_key_question())) {
      end = std::make_unique<Timer>(*loop_, [&] { loop_->stop(); });
      end->start(milliseconds(50));
    }
  });
  look.start_repeating(milliseconds(1));
  auto dealer = connect_zmq(
      *loop_,
      {.address = router->last_endpoint(), .name = "host7", .times = kPatientTimes, .key = key},
      {.on_message = [](const Envelope&, const Message&) { FAIL(); },
       .on_connected = [] { FAIL() << "it was admitted"; },
       .on_lost = [](const Error&) {}});
  ASSERT_TRUE(dealer.has_value()) << dealer.error().message();
  loop_->run();
  EXPECT_TRUE(was_asked);
}

}  // namespace
}  // namespace wsync::control
