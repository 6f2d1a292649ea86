// Sends one request of a command to a coordinator or a sidecar, and defines the options of such
// commands.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "shared/base/format.h"
#include "shared/command/command_key.h"
#include "shared/command/context.h"
#include "shared/control/codec.h"
#include "shared/control/zmq/request.h"

namespace wsync::cli {

struct AskOptions {
  std::string address;
  std::string key;       // file with the key of this command; empty: the coordinator has no keys
  double timeout_s = 0;  // seconds to wait for the connection, and then for the reply
};

// Adds a command with --coordinator, --key and --timeout, whose values are written to `options`.
// `options` must outlive the app.
CLI::App* add_asking_command(CLI::App& app, Context& context, AskOptions& options, double timeout_s,
                             const CommandText& text);

// Sends the request and waits for the reply. Ctrl-C ends the wait with kCancelled. `on_progress`
// may be empty. `asked`, if given, is set to true once the peer is connected and the request was
// sent. `on_quiet`, if given, is called once if nothing has come 2 s after that. `more` has what
// only some commands use: `capabilities` of the message, and on_error as in
// control::RequestOptions. Errors: kInternal for a reply of another type; otherwise those of
// control::request().
struct AskMore {
  control::Capabilities capabilities = 0;
  std::function<void(const control::ErrorReply& reply, bool unread)> on_error = {};
};
template <class Reply>
Result<Reply> ask(const AskOptions& options, const control::Message& message,
                  const std::function<void(const control::Progress&)>& on_progress = {},
                  bool* asked = nullptr, std::function<void()> on_quiet = {},
                  const AskMore& more = {}) {
  control::RequestOptions request{.address = options.address, .stop_on_signal = true};
  request.key = WSYNC_TRY(command_key(options.key));
  if (asked != nullptr) request.on_sent = [asked] { *asked = true; };
  request.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  request.on_quiet = std::move(on_quiet);
  request.quiet_after = std::chrono::seconds(2);
  request.on_error = more.on_error;
  request.connect_deadline = std::min(request.connect_deadline, request.deadline);
  auto decoded = WSYNC_TRY(
      control::request(request, {.capabilities = more.capabilities}, message, on_progress));
  if (auto* reply = std::get_if<Reply>(&decoded.message)) return std::move(*reply);
  return fail(ErrorCode::kInternal,
              fmt::format("{} answered with {}", options.address,
                          control::message_name(control::type_of(decoded.message))));
}

}  // namespace wsync::cli
