// `wsync forget`: removes a sidecar or a replica that will not return from what the fleet
// remembers.
#include <CLI/CLI.hpp>
#include <memory>

#include "deploy/cli/commands.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/command/ask.h"
#include "shared/command/outcome.h"

namespace wsync::cli {
namespace {

struct ForgetOptions : AskOptions {
  std::string name;
  bool force = false;
};

// The name of a sidecar contains no slash, so the first one ends it.
Result<control::Forget> question_of(const ForgetOptions& options) {
  const std::size_t slash = options.name.find('/');
  control::Forget question{.sidecar = options.name.substr(0, slash), .force = options.force};
  if (slash != std::string::npos) question.replica = options.name.substr(slash + 1);
  if (question.sidecar.empty() || (slash != std::string::npos && question.replica.empty()) ||
      question.sidecar.size() > limits::kPeerNameBytes ||
      question.replica.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("NAME: expected the name of a sidecar, or SIDECAR/REPLICA, as `wsync "
                            "status` shows them, found '{}'",
                            options.name));
  return question;
}

Result<Outcome> forget(const ForgetOptions& options) {
  const control::Forget question = WSYNC_TRY(question_of(options));
  const auto reply = WSYNC_TRY(ask<control::ForgetReply>(options, question));
  return Outcome{.result = {{"ok", reply.ok},
                            {"reason", reply.reason},
                            {"sidecar", question.sidecar},
                            {"replica", question.replica}},
                 .text = reply.ok
                             ? fmt::format("{} is forgotten; it joins as a new one if it returns\n",
                                           options.name)
                             : reply.reason + "\n",
                 .exit_code = reply.ok ? kExitOk : kExitFailed};
}

}  // namespace

void add_forget(CLI::App& app, Context& context) {
  auto options = std::make_shared<ForgetOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 10,
      {.name = "forget",
       .description = "Forget a sidecar that is gone, or a replica without engines, at once",
       .examples = {"wsync forget host3", "wsync forget host0/r1 --json",
                    "wsync forget host3 --force"}});
  command->add_option("NAME", options->name, "A sidecar, or SIDECAR/REPLICA")->required();
  command->add_flag("--force", options->force,
                    "Forget a sidecar even if it has not acknowledged that versions were withdrawn "
                    "(its engines may still serve one)");
  command->callback(
      [&context, options] { context.run("forget", [&] { return forget(*options); }); });
}

}  // namespace wsync::cli
