#include "shared/control/zmq/request.h"

#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "shared/base/format.h"
#include "shared/control/zmq/listening.h"
#include "shared/control/zmq/ports.h"
#include "shared/loop/loop.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

constexpr std::string_view kTakeOver =
    "if a trainer hangs there, start another one with --take-over (`take_over: true` in its "
    "settings), which takes the fleet from it";

// `takes_over`: a process listens there, so it may be a trainer that hangs.
Error nobody_at(const std::string& address, const std::string& why, bool takes_over = false) {
  return Error(ErrorCode::kPeerLost,
               fmt::format("no process answers at {}: {}; {}, or give the address of one that "
                           "runs; {}",
                           address, why, takes_over ? kTakeOver : "start `wsync trainer`",
                           where_sidecars_answer(address)));
}

// The wait for the reply is over. A trainer that does not hang says at once what its status is.
Error no_reply(const RequestOptions& options, MessageType type) {
  return Error(
      ErrorCode::kDeadline,
      fmt::format("{}: no reply from {} within {} ms{}{}", message_name(type), options.address,
                  options.deadline.count(), type == MessageType::kStatus ? "; " : "",
                  type == MessageType::kStatus ? kTakeOver : ""));
}

}  // namespace

Result<Decoded> request(const RequestOptions& options, Envelope envelope, const Message& message,
                        std::function<void(const Progress&)> on_progress) {
  auto loop = WSYNC_TRY(Loop::create());
  if (envelope.request == 0) envelope.request = (std::uint64_t{std::random_device()()} << 1U) | 1U;
  std::optional<Result<Decoded>> outcome;
  std::unique_ptr<DealerPort> port;
  bool sent = false;
  std::optional<Error> broken;  // why the last connection was not made
  const auto end = [&](Result<Decoded> result) {
    if (!outcome) outcome = std::move(result);
    loop->stop();
  };
  Timer deadline(*loop, [&] {
    if (!sent && broken) return end(fail(*broken));
    if (!sent) {
      const std::string who = who_listens(options.address);
      return end(fail(nobody_at(options.address,
                                fmt::format("nothing has accepted the connection within {} ms{}",
                                            options.connect_deadline.count(), who),
                                !who.empty())));
    }
    end(fail(no_reply(options, type_of(message))));
  });
  Timer quiet(*loop, [&] { options.on_quiet(); });
  std::unique_ptr<Signals> signals;
  if (options.stop_on_signal) {
    auto made = Signals::create(*loop, [&](int) {
      end(fail(
          ErrorCode::kCancelled,
          sent ? fmt::format(
                     "interrupted; {} continues the requested operation (see `wsync status`{})",
                     options.address,
                     std::holds_alternative<Push>(message)
                         ? "; `wsync cancel` stops the publish until its version is decided"
                         : "")
               : fmt::format("interrupted before any process answered at {}", options.address)));
    });
    if (!made) return fail(std::move(made).error());
    signals = std::move(*made);
  }
  DealerCallbacks callbacks;
  callbacks.on_connected = [&] {
    if (std::exchange(sent, true)) return;
    if (auto result = port->send(envelope, message); !result) return end(fail(result.error()));
    deadline.start(options.deadline);
    if (options.on_sent) options.on_sent();
    if (options.on_quiet) quiet.start(options.quiet_after);
  };
  callbacks.on_lost = [&](const Error& error) { end(fail(error)); };
  callbacks.on_bad_message = [&](const Error& error) { end(fail(error)); };
  callbacks.on_refused = [&](const Error& error) {
    // A connection that broke may be made by the next attempt.
    if (error.code() != ErrorCode::kRefused)
      broken = error;
    else
      end(fail(error));
  };
  callbacks.on_message = [&](Envelope reply, Message body) {
    // A peer that cannot read a request cannot echo its number.
    const bool unread = reply.request == 0 && std::holds_alternative<ErrorReply>(body);
    if (outcome || (reply.request != envelope.request && !unread)) return;
    if (const auto* progress = std::get_if<Progress>(&body)) {
      quiet.stop();
      if (on_progress) on_progress(*progress);
    } else if (const auto* error = std::get_if<ErrorReply>(&body)) {
      end(fail(error->code, error->message));
    } else if (!std::holds_alternative<Heartbeat>(body)) {
      end(Decoded{.envelope = std::move(reply), .message = std::move(body)});
    }
  };
  port = WSYNC_TRY(connect_zmq(*loop,
                               {.address = options.address,
                                .name = options.name,
                                .times = options.times,
                                .key = options.key},
                               std::move(callbacks)));
  if (!options.peer_is_starting)
    if (const auto why = why_nobody_listens(options.address))
      return fail(nobody_at(options.address, *why));
  deadline.start(options.connect_deadline);
  loop->run();
  return std::move(*outcome);
}

}  // namespace wsync::control
