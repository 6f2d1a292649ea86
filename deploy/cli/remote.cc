// Commands that send requests to a running fleet: push, cancel, verify, rollback, promote.
#include "deploy/cli/remote.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <optional>
#include <thread>

#include "deploy/cli/commands.h"
#include "deploy/cli/one_shot.h"
#include "deploy/cli/report.h"
#include "shared/base/format.h"
#include "shared/base/host.h"
#include "shared/base/tcp_address.h"
#include "shared/command/ask.h"
#include "shared/command/fleet_trace.h"
#include "shared/command/outcome.h"
#include "shared/config/address.h"
#include "shared/config/directories.h"
#include "shared/config/limits.h"
#include "shared/config/sidecar_config.h"
#include "shared/config/sources.h"
#include "shared/config/units.h"
#include "shared/control/progress_phase.h"
#include "shared/observe/trace/progress.h"
#include "trainer_side/coordinator/version_names.h"

namespace wsync::cli {
namespace {

// Interval of plain progress lines when standard error is not a terminal, so that a long push still
// reports its progress.
constexpr std::chrono::nanoseconds kPlainLinesEvery = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kNoPlainLines{0};
// For a coordinator that holds the places of the fleet, and does not listen yet.
constexpr std::chrono::seconds kStartingWait{2};
constexpr std::chrono::milliseconds kStartingLook{50};
// For the turn of a push to a coordinator without a trainer, beside others.
constexpr std::chrono::seconds kTurnWait{30};
constexpr double kLookS = 1;  // for the status of a fleet that a command waits for
constexpr double kTimeoutMaxS = config::kDurationMsMax / 1000.0;

struct RemoteOptions : AskOptions {
  std::string directory;
  std::uint64_t step = 0;
  std::string to;
  std::string version;
  bool json = false;
  bool one_shot = true;
  bool shared_path = false;
  bool force = false;
  std::string trace;  // empty: none
};

// Transformation for CLI11: replaces "500ms" by "0.5". Returns the error text, or an empty string.
std::string to_seconds(std::string& text) {
  double seconds = 0;
  if (const auto duration = config::parse_duration(text); duration)
    seconds = static_cast<double>(duration->count()) / 1000;
  else if (!CLI::detail::lexical_cast(text, seconds))
    seconds = 0;
  if (!(seconds > 0 && seconds <= kTimeoutMaxS))
    return fmt::format(
        "expected a time above 0 and at most 24h, such as 500ms, 10s or 15m (a number alone is in "
        "seconds), found '{}'",
        text);
  text = fmt::format("{}", seconds);
  return {};
}

void add_trace_option(CLI::App& command, RemoteOptions& options) {
  command
      .add_option("--trace", options.trace,
                  "Write a Chrome trace of the fleet during this command, both sides on one clock "
                  "(open it at ui.perfetto.dev)")
      ->type_name("FILE");
}

Outcome outcome_of(const control::PushReply& reply) {
  return {.result = to_json(reply),
          .text = to_text(reply),
          .exit_code = reply.ok ? kExitOk : kExitFailed};
}

Outcome outcome_of(const control::RollbackReply& reply) {
  return {.result = to_json(reply),
          .text = to_text(reply),
          .exit_code = reply.ok ? kExitOk : kExitFailed};
}

Outcome outcome_of(const control::PromoteReply& reply) {
  return {.result = to_json(reply),
          .text = to_text(reply),
          .exit_code = reply.ok ? kExitOk : kExitFailed};
}

Outcome outcome_of(const control::VerifyReply& reply) {
  return {.result = to_json(reply),
          .text = to_text(reply),
          .exit_code = all_match(reply)         ? kExitOk
                       : only_unreadable(reply) ? kExitNotVerified
                                                : kExitFailed};
}

// After a timeout the coordinator may still execute a request that it has received. Adds this to
// the error.
Error may_resume(const Error& error, bool asked) {
  if (!asked || error.code() != ErrorCode::kDeadline) return error;
  return Error(error.code(),
               error.message() +
                   " (--timeout); the coordinator received the request and may still execute it: "
                   "see `wsync status`",
               error.where());
}

// Writes the trace of the fleet to a file. The command itself has already completed, so a failure
// is reported but is not an error.
void add_trace_to(Outcome& outcome, const CommandTrace& trace,
                  const std::function<Result<std::string>()>& write) {
  if (!trace.wanted()) return;
  const Result<std::string> written = write();
  if (written) {
    outcome.result["trace"] = trace.path();
    outcome.text += (outcome.text.empty() || outcome.text.ends_with('\n') ? "" : "\n") + *written;
  } else {
    outcome.complaint = "no trace was written: " + written.error().message();
    outcome.result["trace_failure"] = written.error().message();
  }
}

// Collects the trace of a fleet without a coordinator. This process was its temporary coordinator
// and requests the trace itself.
void trace_once(OneShotOptions& once, std::optional<control::TraceAnswer>& answer,
                const CommandTrace& trace) {
  if (!trace.wanted()) return;
  once.trace_age = [&trace] { return trace.age(); };
  once.on_trace = [&answer](control::TraceAnswer given) { answer = std::move(given); };
}

template <class Reply>
Outcome traced_outcome(const Reply& reply, const CommandTrace& trace,
                       const RemoteOptions& options) {
  Outcome outcome = outcome_of(reply);
  add_trace_to(outcome, trace, [&]() -> Result<std::string> {
    return trace.write(options.address, WSYNC_TRY(command_key(options.key)));
  });
  return outcome;
}

Result<std::string> write_once(const CommandTrace& trace,
                               const std::optional<control::TraceAnswer>& answer) {
  if (!answer) return fail(ErrorCode::kInternal, "the fleet sent no trace");
  return trace.write(*answer);
}

// This command performs the operation itself. Errors: those of `act`.
template <class Reply>
Result<Outcome> act_itself(const RemoteOptions& options, const CommandTrace& trace, bool* is_taken,
                           const std::function<Result<Reply>(const OneShotOptions&)>& act) {
  OneShotOptions once{.address = options.address, .timeout_s = options.timeout_s};
  once.is_taken = is_taken;
  std::optional<control::TraceAnswer> answer;
  trace_once(once, answer, trace);
  const Reply done = WSYNC_TRY(act(once));
  Outcome outcome = outcome_of(done);
  add_trace_to(outcome, trace, [&] { return write_once(trace, answer); });
  return outcome;
}

// Requests an operation of the coordinator. Without one, this command acts as the coordinator. If
// one has started at that moment, it is asked after all.
template <class Reply>
Result<Outcome> ask_or_act(const RemoteOptions& options, const CommandTrace& trace,
                           const std::function<Result<Reply>(bool& asked)>& request,
                           const std::function<Result<Reply>(const OneShotOptions&)>& act) {
  for (const TimePoint end = now() + kStartingWait;; std::this_thread::sleep_for(kStartingLook)) {
    bool asked = false;
    const Result<Reply> reply = request(asked);
    if (reply) return traced_outcome(*reply, trace, options);
    // A command is no coordinator of several hosts.
    const bool is_list = split_addresses(options.address).size() > 1;
    if (!options.one_shot || is_list || !nobody_there(reply.error(), asked))
      return fail(may_resume(reply.error(), asked));
    // Sidecars with keys would not talk to a coordinator without the folder.
    if (!options.key.empty() && !config::process_environment().contains("WSYNC_KEYS"))
      return fail(Error(reply.error().code(),
                        reply.error().message() +
                            "; with a key this command does not act as the coordinator, unless "
                            "WSYNC_KEYS names the folder of keys"));
    bool is_taken = false;
    Result<Outcome> outcome = act_itself(options, trace, &is_taken, act);
    if (outcome || !is_taken || now() >= end) return outcome;
  }
}

// Says what a push waits for, if no sidecar has joined: then nothing else is seen of it until its
// deadline.
void explain_wait(const RemoteOptions& options) {
  control::RequestOptions request{.address = options.address};
  request.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(kLookS * 1000));
  const auto key = command_key(options.key);
  if (!key) return;
  request.key = *key;
  const auto reply = control::request(request, {}, control::Status{});
  if (!reply) return;
  const auto* status = std::get_if<control::StatusReply>(&reply->message);
  if (status == nullptr ||
      std::ranges::any_of(status->sidecars, &control::SidecarReport::connected))
    return;
  print_line(stderr, fmt::format("wsync push: no sidecar has joined {}: start one with `{}` on the "
                                 "host of the engines; this push waits for {} at most (--timeout), "
                                 "and no longer than deadlines.publish of the trainer",
                                 options.address, config::sidecar_command(options.address),
                                 config::format_duration(std::chrono::milliseconds(
                                     static_cast<std::int64_t>(options.timeout_s * 1000)))));
}

// `may_publish` is set to true if the coordinator has no trainer that would read the directory.
Result<control::PushReply> request_push(
    const RemoteOptions& options, const std::string& directory,
    const std::function<void(const control::Progress&)>& on_progress, bool& asked,
    bool& may_publish) {
  const auto send = [&](const control::Push& message, const AskMore& more) {
    return ask<control::PushReply>(
        options, message, on_progress, &asked, [&options] { explain_wait(options); }, more);
  };
  control::Push message{.directory = directory, .step = options.step};
  if (options.shared_path) return send(message, {});
  message.host = host_name();
  message.boot_id = boot_id();
  bool is_unread = false;
  Result<control::PushReply> reply =
      send(message, {.capabilities = bits(control::Capability::kPushOrigin),
                     .on_error = [&](const control::ErrorReply& error, bool unread) {
                       is_unread = unread && error.code == ErrorCode::kRefused;
                       may_publish = error.may_publish;
                     }});
  if (reply || !is_unread) return reply;
  print_line(stderr, fmt::format("wsync push: the coordinator is of an older release, so its "
                                 "trainer reads {} on the trainer's host",
                                 directory));
  return send({.directory = directory, .step = options.step}, {});
}

Result<Outcome> push(const RemoteOptions& options) {
  const auto trace = CommandTrace::begin(options.trace);
  if (!trace) return fail(trace.error());
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::canonical(options.directory, error);
  if (error)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {}", options.directory, error.message()));
  trace::ProgressLine line(STDERR_FILENO, {.every = options.json ? kNoPlainLines : kPlainLinesEvery,
                                           .prefix = "wsync push: "});
  const auto on_progress = [&line](const control::Progress& progress) {
    line.update(phase_text(progress.phase), progress.done_bytes, progress.total_bytes, now());
  };
  for (const TimePoint end = now() + kTurnWait;; std::this_thread::sleep_for(kStartingLook)) {
    bool may_publish = false;
    Result<Outcome> outcome = ask_or_act<control::PushReply>(
        options, *trace,
        [&](bool& asked) {
          return request_push(options, directory.string(), on_progress, asked, may_publish);
        },
        [&](const OneShotOptions& once) {
          return push_once(once, directory.string(), options.step, on_progress);
        });
    if (outcome || !may_publish) return outcome;
    bool is_taken = false;
    outcome =
        act_itself<control::PushReply>(options, *trace, &is_taken, [&](const OneShotOptions& once) {
          return push_as_trainer(once, options.key, directory.string(), options.step, on_progress);
        });
    // Another push or a trainer has come first. It is asked now.
    if (outcome || !is_taken || now() >= end) return outcome;
  }
}

Result<Outcome> roll_back(const RemoteOptions& options) {
  const auto trace = WSYNC_TRY(CommandTrace::begin(options.trace));
  control::Rollback message;
  if (!options.to.empty()) {
    const auto version = WSYNC_TRY(Version::parse(options.to));
    message.to = version;
  }
  return ask_or_act<control::RollbackReply>(
      options, trace,
      [&](bool& asked) { return ask<control::RollbackReply>(options, message, {}, &asked); },
      [&](const OneShotOptions& once) { return roll_back_once(once, message.to); });
}

Outcome outcome_of(const control::CancelReply& reply) {
  const std::string name = reply.version.none() ? "the update" : reply.version.to_string();
  return {
      .result = {{"ok", reply.ok},
                 {"reason", reply.reason},
                 {"version", reply.version.to_string()},
                 {"phase", control::phase_name(reply.phase)}},
      .text =
          reply.ok
              ? fmt::format(
                    "{} was cancelled while {}; every engine keeps the version that it serves\n",
                    name,
                    reply.phase == control::ProgressPhase::kSnapshot
                        ? "its snapshot was taken or was in the queue"
                        : phase_text(reply.phase))
              : reply.reason + "\n",
      .exit_code = reply.ok ? kExitOk : kExitFailed};
}

Result<Outcome> cancel(const RemoteOptions& options) {
  control::Cancel message;
  if (!options.version.empty()) {
    const auto version = WSYNC_TRY(Version::parse(options.version));
    message.version = version;
  }
  const auto reply = WSYNC_TRY(ask<control::CancelReply>(options, message));
  return outcome_of(reply);
}

Result<Outcome> promote(const RemoteOptions& options) {
  const auto trace = WSYNC_TRY(CommandTrace::begin(options.trace));
  bool asked = false;
  const auto reply =
      ask<control::PromoteReply>(options, control::Promote{.force = options.force}, {}, &asked);
  if (!reply) return fail(may_resume(reply.error(), asked));
  return traced_outcome(*reply, trace, options);
}

Result<Outcome> verify(const RemoteOptions& options) {
  const auto trace = WSYNC_TRY(CommandTrace::begin(options.trace));
  const auto reply = WSYNC_TRY(ask<control::VerifyReply>(options, control::Verify{}));
  return traced_outcome(reply, trace, options);
}

}  // namespace

CLI::App* add_asking_command(CLI::App& app, Context& context, AskOptions& options, double timeout_s,
                             const CommandText& text) {
  CLI::App* command = add_command(app, context, text);
  options.address = default_address();
  options.timeout_s = timeout_s;
  command
      ->add_option("--coordinator", options.address,
                   "Control address of the coordinator, or of one sidecar")
      ->capture_default_str()
      ->check(check_address);
  add_key_option(*command, options.key);
  add_timeout(*command, options.timeout_s);
  return command;
}

void add_timeout(CLI::App& command, double& seconds) {
  command.add_option("--timeout", seconds, "Time to wait for the connection and for the reply")
      ->type_name("TIME")
      ->default_str(config::format_duration(
          std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000))))
      ->transform(CLI::Validator(to_seconds, ""));
}

std::string default_address() {
  const auto environment = config::process_environment();
  const auto run_dir = environment.find("WSYNC_RUN_DIR");
  return fmt::format("ipc://{}/control", run_dir == environment.end() || run_dir->second == "auto"
                                             ? config::default_run_dir()
                                             : run_dir->second);
}

std::string check_address(const std::string& text) {
  const Result<> checked = config::check_coordinator_addresses(text);
  return checked ? std::string() : checked.error().message();
}

// If no coordinator answers, push and rollback act as a temporary coordinator. They must not do so
// if a coordinator received the request and was lost: it may come back and would find its address
// in use.
bool nobody_there(const Error& error, bool asked) {
  return error.code() == ErrorCode::kPeerLost && !asked;
}

void add_push(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 900,
      {.name = "push",
       .description = "Publish a checkpoint directory to every engine, with every byte verified",
       .examples = {"wsync push /models/qwen3-moe", "wsync push /models/step_200 --step 200 --json",
                    "wsync push DIR --coordinator ipc:///run/wsync/control",
                    "wsync push DIR --trace update.json"}});
  command
      ->add_option("DIR", options->directory,
                   "Hugging Face checkpoint directory on this host, which is read here: by the "
                   "trainer of the fleet, or by this command if the coordinator has none")
      ->required();
  command
      ->add_option(
          "--step", options->step,
          "Step number of the version (default: N of a directory step_N if it is free, otherwise "
          "the next number)")
      ->check(CLI::Range(std::uint64_t{1}, coordinator::kGivenStepMax));
  command->add_flag(
      "!--no-one-shot", options->one_shot,
      "Fail if no coordinator answers, instead of acting as the coordinator for this push");
  command->add_flag("--shared-path", options->shared_path,
                    "DIR is on a file system that the host of the trainer has under the same path; "
                    "the trainer reads it there");
  add_trace_option(*command, *options);
  command->callback([&context, options] {
    options->json = context.options.json;
    context.run("push", [&] { return push(*options); });
  });
}

void add_rollback(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 300,
      {.name = "rollback",
       .description = "Return every engine to an earlier version and withdraw the newer one",
       .examples = {"wsync rollback", "wsync rollback --to 3.41"}});
  command->add_option("--to", options->to, "Version to return to (default: the previous one)");
  command->add_flag(
      "!--no-one-shot", options->one_shot,
      "Fail if no coordinator answers, instead of acting as the coordinator for this rollback");
  add_trace_option(*command, *options);
  command->callback(
      [&context, options] { context.run("rollback", [&] { return roll_back(*options); }); });
}

void add_promote(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 300,
      {.name = "promote",
       .description = "Give every engine the version that only the canary serves",
       .examples = {"wsync promote", "wsync promote --json"}});
  command->add_flag("--force", options->force, "Even if the canary does not serve the version");
  add_trace_option(*command, *options);
  command->callback(
      [&context, options] { context.run("promote", [&] { return promote(*options); }); });
}

void add_cancel(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 10,
      {.name = "cancel",
       .description = "Cancel the current update, if its switch has not been decided",
       .examples = {"wsync cancel", "wsync cancel --version 3.42 --json"}});
  command->add_option("--version", options->version,
                      "Cancel only an update to this version (default: the current update)");
  command->callback(
      [&context, options] { context.run("cancel", [&] { return cancel(*options); }); });
}

void add_verify(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 130,
      {.name = "verify",
       .description = "Read back the weights of every engine and compare them, tensor by tensor. "
                      "Exit codes: 0 all are equal, 1 a tensor differs or a rank did not answer, "
                      "4 nothing differs, but an engine cannot be read back (it gives no "
                      "read_tensor, as vLLM), so it was not verified",
       .examples = {"wsync verify", "wsync verify --json"}});
  add_trace_option(*command, *options);
  command->callback(
      [&context, options] { context.run("verify", [&] { return verify(*options); }); });
}

}  // namespace wsync::cli
