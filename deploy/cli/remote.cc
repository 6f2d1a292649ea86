// Commands that ask a running fleet: push, status, verify, rollback.
#include "deploy/cli/remote.h"

#include <filesystem>

#include "deploy/cli/commands.h"
#include "deploy/cli/one_shot.h"
#include "deploy/cli/report.h"
#include "shared/base/format.h"
#include "shared/config/address.h"
#include "shared/config/config.h"
#include "shared/control/zmq/request.h"
#include "shared/trace/progress.h"

namespace wsync::cli {
namespace {

constexpr double kTimeoutMostS = limits::kConfigDurationMs / 1000.0;

struct RemoteOptions {
  std::string address;
  double timeout_s = 0;
  std::string directory;
  std::uint64_t step = 0;
  std::string to;
  bool one_shot = true;
};

template <class Reply>
Result<Reply> ask(const RemoteOptions& options, const control::Message& message,
                  const std::function<void(const control::Progress&)>& on_progress = {},
                  bool* asked = nullptr) {
  control::RequestOptions request{.address = options.address, .stop_on_signal = true};
  if (asked != nullptr) request.on_sent = [asked] { *asked = true; };
  request.deadline = std::chrono::milliseconds(static_cast<std::int64_t>(options.timeout_s * 1000));
  Result<control::Decoded> decoded = control::request(request, {}, message, on_progress);
  if (!decoded) return fail(decoded.error());
  if (auto* reply = std::get_if<Reply>(&decoded->message)) return std::move(*reply);
  return fail(ErrorCode::kInternal,
              fmt::format("{} answered with {}", options.address,
                          control::message_name(control::type_of(decoded->message))));
}

std::string_view phase_label(control::ProgressPhase phase) {
  switch (phase) {
    case control::ProgressPhase::kSnapshot:
      return "snapshot";
    case control::ProgressPhase::kAnnounce:
      return "announce";
    case control::ProgressPhase::kStage:
      return "staging";
    case control::ProgressPhase::kSwitch:
      return "switching";
  }
  return "";
}

// CLI11's check: the complaint, or nothing.
std::string check_seconds(const std::string& text) {
  double seconds = 0;
  if (CLI::detail::lexical_cast(text, seconds) && seconds > 0 && seconds <= kTimeoutMostS)
    return {};
  return fmt::format("expected seconds above 0, {} at most, found '{}'", kTimeoutMostS, text);
}

CLI::App* add_remote(CLI::App& app, Context& context, RemoteOptions& options, double timeout_s,
                     const CommandText& text) {
  CLI::App* command = add_command(app, context, text);
  options.address = default_address();
  options.timeout_s = timeout_s;
  command
      ->add_option("--coordinator", options.address,
                   "Control address of the coordinator, or of one sidecar")
      ->capture_default_str()
      ->check(check_address);
  command->add_option("--timeout", options.timeout_s, "Seconds to wait for the reply")
      ->capture_default_str()
      ->check(check_seconds);
  return command;
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

// What has been asked of a coordinator is not taken back when nobody waits for the answer any more.
Error may_go_on(const Error& error, bool asked) {
  if (!asked || error.code() != ErrorCode::kDeadline) return error;
  return Error(
      error.code(),
      error.message() +
          " (--timeout); the coordinator was asked and may still do it: see `wsync status`",
      error.where());
}

Result<Outcome> push(const RemoteOptions& options) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::canonical(options.directory, error);
  if (error)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("{}: {}", options.directory, error.message()));
  trace::ProgressLine line;
  const auto on_progress = [&line](const control::Progress& progress) {
    line.update(phase_label(progress.phase), progress.done_bytes, progress.total_bytes, now());
  };
  const control::Push message{.directory = directory.string(), .step = options.step};
  bool asked = false;
  const Result<control::PushReply> reply =
      ask<control::PushReply>(options, message, on_progress, &asked);
  if (reply) return outcome_of(*reply);
  if (!options.one_shot || !nobody_there(reply.error(), asked))
    return fail(may_go_on(reply.error(), asked));
  const OneShotOptions once{.address = options.address, .timeout_s = options.timeout_s};
  const Result<control::PushReply> pushed =
      push_once(once, directory.string(), options.step, on_progress);
  if (!pushed) return fail(pushed.error());
  return outcome_of(*pushed);
}

Result<Outcome> roll_back(const RemoteOptions& options) {
  control::Rollback message;
  if (!options.to.empty()) {
    const Result<Version> version = Version::parse(options.to);
    if (!version) return fail(version.error());
    message.to = *version;
  }
  bool asked = false;
  const Result<control::RollbackReply> reply =
      ask<control::RollbackReply>(options, message, {}, &asked);
  if (reply) return outcome_of(*reply);
  if (!options.one_shot || !nobody_there(reply.error(), asked))
    return fail(may_go_on(reply.error(), asked));
  const OneShotOptions once{.address = options.address, .timeout_s = options.timeout_s};
  const Result<control::RollbackReply> done = roll_back_once(once, message.to);
  if (!done) return fail(done.error());
  return outcome_of(*done);
}

Result<Outcome> status(const RemoteOptions& options) {
  const auto reply = ask<control::StatusReply>(options, control::Status{});
  if (!reply) return fail(reply.error());
  return Outcome{.result = to_json(*reply), .text = to_text(*reply)};
}

Result<Outcome> verify(const RemoteOptions& options) {
  const auto reply = ask<control::VerifyReply>(options, control::Verify{});
  if (!reply) return fail(reply.error());
  return Outcome{.result = to_json(*reply),
                 .text = to_text(*reply),
                 .exit_code = all_match(*reply) ? kExitOk : kExitFailed};
}

}  // namespace

std::string default_address() {
  const auto environment = config::process_environment();
  const auto run_dir = environment.find("WSYNC_RUN_DIR");
  return fmt::format("ipc://{}/control", run_dir == environment.end() || run_dir->second == "auto"
                                             ? config::default_run_dir()
                                             : run_dir->second);
}

std::string check_address(const std::string& text) {
  const Result<> checked = config::check_control_address(text);
  return checked ? std::string() : checked.error().message();
}

// Without a coordinator that answers, a push or a rollback may be one, for once. Not when one was
// lost that took the request: it may come back, and finds its address taken.
bool nobody_there(const Error& error, bool asked) {
  return error.code() == ErrorCode::kPeerLost && !asked;
}

void add_push(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_remote(
      app, context, *options, 900,
      {.name = "push",
       .description = "Bring a checkpoint directory to every engine, verified and at once",
       .examples = {"wsync push /models/qwen3-moe", "wsync push /models/step_200 --step 200 --json",
                    "wsync push DIR --coordinator ipc:///run/wsync/control"}});
  command->add_option("DIR", options->directory, "Hugging Face checkpoint directory")->required();
  command->add_option("--step", options->step, "Step to name the version by (default: the next)")
      ->check(CLI::Range(std::uint64_t{1}, limits::kStepMax));
  command->add_flag("!--no-one-shot", options->one_shot,
                    "Fail when no coordinator answers, instead of being one for this push");
  command->callback([&context, options] { context.run("push", [&] { return push(*options); }); });
}

void add_rollback(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_remote(
      app, context, *options, 300,
      {.name = "rollback",
       .description = "Put every engine back to an earlier version and withdraw the newer one",
       .examples = {"wsync rollback", "wsync rollback --to 3.41"}});
  command->add_option("--to", options->to, "Version to go back to (default: the previous one)");
  command->add_flag("!--no-one-shot", options->one_shot,
                    "Fail when no coordinator answers, instead of being one for this rollback");
  command->callback(
      [&context, options] { context.run("rollback", [&] { return roll_back(*options); }); });
}

void add_status(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command =
      add_remote(app, context, *options, 5,
                 {.name = "status",
                  .description = "Which version runs where, and what could be rolled back",
                  .examples = {"wsync status", "wsync status --json",
                               "wsync status --coordinator ipc:///run/wsync/host0.control"}});
  command->callback(
      [&context, options] { context.run("status", [&] { return status(*options); }); });
}

void add_verify(CLI::App& app, Context& context) {
  auto options = std::make_shared<RemoteOptions>();
  CLI::App* command = add_remote(
      app, context, *options, 130,
      {.name = "verify",
       .description = "Read back what every engine holds and compare it, tensor by tensor",
       .examples = {"wsync verify", "wsync verify --json"}});
  command->callback(
      [&context, options] { context.run("verify", [&] { return verify(*options); }); });
}

}  // namespace wsync::cli
