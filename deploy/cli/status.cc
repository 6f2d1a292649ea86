// `wsync status`: shows the status of a coordinator or a sidecar, once or repeatedly.
#include <CLI/CLI.hpp>
#include <ctime>
#include <filesystem>
#include <unistd.h>

#include "deploy/cli/commands.h"
#include "deploy/cli/fleet_watch.h"
#include "deploy/cli/report.h"
#include "deploy/cli/terminal.h"
#include "deploy/cli/watch_options.h"
#include "shared/base/unix_socket.h"
#include "shared/command/ask.h"
#include "shared/command/outcome.h"
#include "shared/control/zmq/address.h"
#include "shared/loop/signals.h"

namespace wsync::cli {
namespace {

struct StatusOptions : AskOptions {
  std::string interval = "1s";
  bool interval_given = false;
  bool watch = false;
  bool json = false;
};

// The addresses of a sidecar, if one of its name and process listens in the run_dir of `address`:
// "control ipc:///run/wsync/host0.control, engines attach at /run/wsync/host0.engines".
std::string places_of(const control::SidecarReport& sidecar, const std::string& address) {
  const auto asked = control::parse_port_address(address);
  if (!asked || asked->path.empty()) return {};
  const std::string place =
      (std::filesystem::path(asked->path).parent_path() / sidecar.name).string();
  const auto holder = lock_holder(place + ".control.lock");
  if (!holder || holder->process != std::to_string(sidecar.pid)) return {};
  return fmt::format("control ipc://{0}.control, engines attach at {0}.engines", place);
}

std::string clock_text() {
  const std::time_t seconds = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&seconds, &local);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}", local.tm_year + 1900, local.tm_mon + 1,
                     local.tm_mday, local.tm_hour, local.tm_min, local.tm_sec);
}

std::string block_text(const FleetView& view) {
  std::string text = fmt::format("{}  {}\n", clock_text(), view.address);
  if (!view.trouble.empty())
    text += fmt::format("NO ANSWER: {}{}\n", view.trouble,
                        view.status ? "; the status is requested again until a reply arrives" : "");
  else if (view.status)
    text += to_text(*view.status, [&view](const control::SidecarReport& sidecar) {
      return places_of(sidecar, view.address);
    });
  return text;
}

// On a terminal, each block replaces the previous one and is cut to the size of the screen.
class BlockPrinter {
 public:
  void print(const std::string& block) {
    if (!terminal_) return print_line(stdout, block + "\n");
    const ScreenSize size = terminal_size(STDOUT_FILENO);
    std::string text = drawn_ == 0 ? "" : fmt::format("\x1b[{}F", drawn_);
    text += "\x1b[J";
    drawn_ = 0;
    std::string_view rest = block;
    while (!rest.empty() && drawn_ + 1 < size.rows) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      text += clipped(rest.substr(0, end), size.columns) + "\n";
      rest.remove_prefix(std::min(end + 1, rest.size()));
      ++drawn_;
    }
    print_line(stdout, text);
  }

 private:
  const bool terminal_ = ::isatty(STDOUT_FILENO) == 1;
  unsigned drawn_ = 0;  // lines of the previous block
};

Result<Outcome> watch_status(const StatusOptions& options, std::chrono::milliseconds interval) {
  auto loop = WSYNC_TRY(Loop::create());
  const auto signals = WSYNC_TRY(Signals::create(*loop, [&](int) { loop->stop(); }));
  BlockPrinter printer;
  const auto key = WSYNC_TRY(command_key(options.key));
  auto watch =
      FleetWatch::create(*loop, options.address, key, interval, [&](const FleetView& view) {
        if (!options.json) return printer.print(block_text(view));
        if (view.trouble.empty())
          print_line(
              stdout,
              to_line({{"command", "status"}, {"ok", true}, {"result", to_json(*view.status)}}));
        else
          print_line(stdout,
                     to_line(error_json("status", Error(ErrorCode::kPeerLost, view.trouble))));
      });
  if (!watch) return fail(watch.error());
  loop->run();
  return Outcome{.result = {{"stopped", true}}};
}

Result<Outcome> status(const StatusOptions& options) {
  const auto interval = WSYNC_TRY(parse_watch_interval(options.interval));
  if (options.watch) return watch_status(options, interval);
  if (options.interval_given) return fail(ErrorCode::kInvalidInput, "--interval needs --watch");
  const auto reply = WSYNC_TRY(ask<control::StatusReply>(options, control::Status{}));
  const auto key = WSYNC_TRY(command_key(options.key));
  Outcome outcome{.result = to_json(reply),
                  .text = to_text(reply, [&options](const control::SidecarReport& sidecar) {
                    return places_of(sidecar, options.address);
                  })};
  // A port with keys answers only who has one, and a port without them only who has none.
  outcome.result["key"] = key ? key->owner.text() : std::string();
  if (key)
    outcome.text +=
        fmt::format("the control port has keys; asked with that of {}\n", key->owner.text());
  return outcome;
}

}  // namespace

void add_status(CLI::App& app, Context& context) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 5,
      {.name = "status",
       .description = "Show the version of each replica, the progress of an update, and the "
                      "version that a rollback would serve",
       .examples = {"wsync status", "wsync status --json", "wsync status --watch --interval 500ms",
                    "wsync status --coordinator ipc:///run/wsync/host0.control"}});
  command->add_flag("--watch", options->watch, "Print the status repeatedly until Ctrl-C");
  add_watch_interval(*command, options->interval);
  command->callback([&context, options, command] {
    options->json = context.options.json;
    options->interval_given = command->count("--interval") > 0;
    context.run("status", [&] { return status(*options); });
  });
}

}  // namespace wsync::cli
