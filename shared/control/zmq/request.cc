#include "shared/control/zmq/request.h"

#include <memory>
#include <optional>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "shared/base/format.h"
#include "shared/base/tcp_address.h"
#include "shared/control/zmq/listening.h"
#include "shared/control/zmq/ports.h"
#include "shared/loop/loop.h"
#include "shared/loop/signals.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

// What to do about a process at this address that takes a connection and says nothing.
std::string_view against_hang(const std::string& address) {
  switch (address_kind(address)) {
    case AddressKind::kSocket:
      return "if a trainer hangs there, start another one with --take-over (`take_over: true` in "
             "its settings), which takes the fleet from it";
    case AddressKind::kSidecar:
      return "if the sidecar hangs there, stop its process and start it again";
    case AddressKind::kPort:
      break;
  }
  return "if a trainer hangs there, stop its process and start it again";
}

Error nobody_at(const std::string& address, const std::string& why, std::string_view what_to_do) {
  const std::string elsewhere = where_sidecars_answer(address);
  return Error(ErrorCode::kPeerLost,
               fmt::format("no process answers at {}: {}; {}, or give the address of one that "
                           "runs{}{}",
                           address, why, what_to_do, elsewhere.empty() ? "" : "; ", elsewhere));
}

// The kernel knows that no process listens there.
Error nobody_listens(const std::string& address, const std::string& why) {
  return nobody_at(address, why,
                   address_kind(address) == AddressKind::kSidecar ? "start its sidecar"
                                                                  : "start `wsync trainer`");
}

// Why nobody listens at any of these addresses, or nothing if somebody may.
std::optional<std::string> why_nobody_listens_at(const std::string& addresses) {
  const std::vector<std::string_view> all = split_addresses(addresses);
  std::optional<std::string> why;
  for (const std::string_view each : all) {
    why = why_nobody_listens(std::string(each));
    if (!why) return std::nullopt;
  }
  return all.size() == 1 ? why : "no process listens at any of them";
}

// The wait for the connection is over.
Error not_accepted(const RequestOptions& options) {
  const std::string who = who_listens(options.address);
  const std::string why = fmt::format("nothing has accepted the connection within {} ms{}",
                                      options.connect_deadline.count(), who);
  // A process may listen at a port even if nothing is known of it.
  const bool may_hang = !who.empty() || address_kind(options.address) == AddressKind::kPort;
  return may_hang ? nobody_at(options.address, why, against_hang(options.address))
                  : nobody_listens(options.address, why);
}

// The wait for the reply is over. A process that does not hang says at once what its status is.
Error no_reply(const RequestOptions& options, MessageType type) {
  const bool hangs = type == MessageType::kStatus;
  return Error(ErrorCode::kDeadline,
               fmt::format("{}: no reply from {} within {} ms{}{}", message_name(type),
                           options.address, options.deadline.count(), hangs ? "; " : "",
                           hangs ? against_hang(options.address) : ""));
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
    if (!sent) return end(fail(not_accepted(options)));
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
      if (options.on_error) options.on_error(*error, unread);
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
    if (const auto why = why_nobody_listens_at(options.address))
      return fail(nobody_listens(options.address, *why));
  deadline.start(options.connect_deadline);
  loop->run();
  return std::move(*outcome);
}

}  // namespace wsync::control
