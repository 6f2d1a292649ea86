#include "deploy/cli/fleet_watch.h"

#include <algorithm>
#include <utility>

#include "shared/base/format.h"
#include "shared/control/zmq/listening.h"
#include "shared/control/zmq/ports.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::seconds kFirstAnswer{1};

}  // namespace

FleetWatch::FleetWatch(Loop& loop, const std::string& address, OnChange on_change)
    : view_{.address = address},
      on_change_(std::move(on_change)),
      again_(loop, [this] { ask(); }),
      nobody_(loop, [this] {
        const std::string why =
            control::why_nobody_listens(view_.address).value_or("it accepts no connection");
        trouble(fmt::format("no process answers at {}: {}", view_.address, why));
      }) {}

Result<std::unique_ptr<FleetWatch>> FleetWatch::create(Loop& loop, const std::string& address,
                                                       const std::optional<control::KeyFile>& key,
                                                       std::chrono::milliseconds interval,
                                                       OnChange on_change) {
  auto watch = std::unique_ptr<FleetWatch>(new FleetWatch(loop, address, std::move(on_change)));
  FleetWatch* self = watch.get();
  control::DealerCallbacks callbacks;
  callbacks.on_connected = [self] {
    self->connected_ = true;
    self->ask();
  };
  callbacks.on_lost = [self](const Error& error) {
    self->connected_ = false;
    self->trouble(error.message());
  };
  callbacks.on_message = [self](const control::Envelope& envelope, control::Message message) {
    self->on_message(envelope, std::move(message));
  };
  callbacks.on_bad_message = [self](const Error& error) { self->trouble(error.message()); };
  callbacks.on_refused = [self](const Error& error) {
    self->nobody_.stop();
    self->trouble(error.message());
  };
  watch->port_ = WSYNC_TRY(control::connect_zmq(
      loop, {.address = address, .name = "watch", .times = {}, .key = key}, std::move(callbacks)));
  watch->again_.start_repeating(interval);
  watch->nobody_.start(control::why_nobody_listens(address) ? std::chrono::seconds(0)
                                                            : kFirstAnswer);
  return watch;
}

void FleetWatch::ask() {
  if (!connected_) return;
  control::Envelope envelope;
  envelope.request = ++request_;
  if (const auto sent = port_->send(envelope, control::Status{}); !sent)
    trouble(sent.error().message());
}

void FleetWatch::on_message(const control::Envelope& envelope, control::Message message) {
  if (const auto* error = std::get_if<control::ErrorReply>(&message)) {
    nobody_.stop();
    return trouble(error->message);
  }
  auto* reply = std::get_if<control::StatusReply>(&message);
  // A late reply to an earlier request still counts, but a reply older than the newest one received
  // is ignored.
  if (reply == nullptr || envelope.request <= answered_ || envelope.request > request_) return;
  answered_ = envelope.request;
  nobody_.stop();
  view_.status = std::move(*reply);
  view_.answered = now();
  view_.trouble.clear();
  on_change_(view_);
}

void FleetWatch::trouble(const std::string& why) {
  if (view_.trouble == why) return;
  view_.trouble = why;
  on_change_(view_);
}

}  // namespace wsync::cli
