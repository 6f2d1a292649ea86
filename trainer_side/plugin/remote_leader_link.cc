#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/base/log.h"
#include "shared/control/keys/key_file.h"
#include "shared/control/zmq/ports.h"
#include "shared/loop/timer.h"
#include "trainer_side/plugin/leader_link.h"

namespace wsync::plugin {
namespace {

class RemoteLeaderLink final : public LeaderLink {
 public:
  RemoteLeaderLink(Loop& loop, const config::TrainerConfig& config, LeaderLinkCallbacks callbacks)
      : loop_(loop),
        config_(config),
        callbacks_(std::move(callbacks)),
        reconnect_(loop, [this] { connect_again(); }) {}

  [[nodiscard]] Result<> start() override {
    if (!config_.publisher_key.empty()) {
      auto key = control::load_key_file(config_.publisher_key);
      if (!key) return fail(key.error().with_context("publisher_key"));
      if (key->owner.role != control::KeyRole::kPublisher)
        return fail(ErrorCode::kInvalidInput,
                    fmt::format("publisher_key: {}: expected the key of a publisher, found that of "
                                "{}: make one with `wsync keys add publisher NAME`",
                                config_.publisher_key, key->owner.text()));
      key_ = std::move(*key);
    }
    callbacks_.on_no_reply(fmt::format("nobody has answered at {}", config_.leader));
    return connect();
  }
  [[nodiscard]] bool is_connected() const noexcept override { return is_connected_; }
  [[nodiscard]] const std::string& where() const noexcept override { return config_.leader; }

  [[nodiscard]] Result<> send(const control::Message& message, std::vector<UniqueFd> fds) override {
    if (!is_connected_)
      return fail(ErrorCode::kPeerLost,
                  fmt::format("rank 0 is not connected at {}", config_.leader));
    if (!fds.empty())
      return fail(ErrorCode::kInvalidInput, "descriptors do not travel to another host");
    return dealer_->send({}, message);
  }

  void restart(const Error& why) override {
    dealer_.reset();
    reconnect_.start(pause_);
    pause_ = std::min(2 * pause_, std::chrono::milliseconds(limits::kReconnectMaxMs));
    if (std::exchange(is_connected_, false)) callbacks_.on_lost(why);
  }

  void stop() override {
    reconnect_.stop();
    dealer_.reset();
    is_connected_ = false;
  }

 private:
  [[nodiscard]] Result<> connect() {
    control::DealerCallbacks callbacks;
    callbacks.on_message = [this](const control::Envelope& /*envelope*/, control::Message message) {
      if (std::holds_alternative<control::Heartbeat>(message)) return;
      if (!std::holds_alternative<control::ErrorReply>(message))
        pause_ = std::chrono::milliseconds(limits::kReconnectMinMs);
      callbacks_.on_message(std::move(message));
    };
    callbacks.on_connected = [this] {
      is_connected_ = true;
      callbacks_.on_connected();
    };
    callbacks.on_lost = [this](const Error& why) {
      if (std::exchange(is_connected_, false)) callbacks_.on_lost(why);
    };
    callbacks.on_bad_message = [](const Error& error) {
      log_warning("a message of rank 0 was dropped: {}", error.message());
    };
    callbacks.on_refused = [this](const Error& error) { callbacks_.on_no_reply(error.message()); };
    auto dealer = control::connect_zmq(loop_,
                                       {.address = config_.leader,
                                        .name = "rank",
                                        .times = {.heartbeat_interval = config_.heartbeat.interval,
                                                  .silence_deadline = config_.heartbeat.deadline},
                                        .key = key_},
                                       std::move(callbacks));
    if (!dealer) return fail(dealer.error().with_context("leader"));
    dealer_ = std::move(*dealer);
    return {};
  }

  void connect_again() {
    if (const auto connected = connect(); !connected) {
      callbacks_.on_no_reply(connected.error().message());
      reconnect_.start(pause_);
    }
  }

  Loop& loop_;
  const config::TrainerConfig config_;
  const LeaderLinkCallbacks callbacks_;
  std::optional<control::KeyFile> key_;
  std::unique_ptr<control::DealerPort> dealer_;
  bool is_connected_ = false;
  std::chrono::milliseconds pause_{limits::kReconnectMinMs};
  Timer reconnect_;
};

}  // namespace

std::unique_ptr<LeaderLink> make_remote_leader_link(Loop& loop, const config::TrainerConfig& config,
                                                    LeaderLinkCallbacks callbacks) {
  return std::make_unique<RemoteLeaderLink>(loop, config, std::move(callbacks));
}

}  // namespace wsync::plugin
