// `wsync top`: a live view of a fleet.
#include <CLI/CLI.hpp>
#include <unistd.h>

#include "deploy/cli/commands.h"
#include "deploy/cli/report.h"
#include "deploy/cli/terminal.h"
#include "deploy/cli/top_frame.h"
#include "deploy/cli/watch_options.h"
#include "shared/command/ask.h"
#include "shared/command/outcome.h"
#include "shared/loop/signals.h"

namespace wsync::cli {
namespace {

constexpr std::chrono::seconds kRedrawAges{1};
constexpr ScreenSize kOneFrame{.columns = 120, .rows = 1000};  // size without a terminal

struct TopOptions : AskOptions {
  std::string interval = "1s";
  bool once = false;
  bool json = false;
};

// Prints one frame without colours and control sequences.
Result<Outcome> top_once(const TopOptions& options) {
  const auto status = WSYNC_TRY(ask<control::StatusReply>(options, control::Status{}));
  const FleetView view{
      .address = options.address, .status = status, .answered = now(), .trouble = {}};
  const ScreenSize size = ::isatty(STDOUT_FILENO) == 1
                              ? ScreenSize{terminal_size(STDOUT_FILENO).columns, kOneFrame.rows}
                              : kOneFrame;
  Outcome outcome{.result = to_json(status), .text = {}};
  for (const ScreenLine& line : top_frame(view, size, 0, now(), false).lines)
    outcome.text += plain_text(line) + "\n";
  return outcome;
}

// The live view: its contents and its reaction to keys.
class TopScreen {
 public:
  explicit TopScreen(Loop& loop) : loop_(loop), ages_(loop, [this] { draw(); }) {}

  Result<> open(const TopOptions& options, std::chrono::milliseconds interval) {
    auto terminal = WSYNC_TRY(Terminal::open(loop_, STDIN_FILENO, STDOUT_FILENO,
                                             {.on_key = [this](Key key) { on_key(key); },
                                              .on_resize = [this] { draw(); },
                                              .on_closed = [this] { loop_.stop(); }}));
    const auto key = WSYNC_TRY(command_key(options.key));
    auto watch = WSYNC_TRY(FleetWatch::create(loop_, options.address, key, interval,
                                              [this](const FleetView&) { draw(); }));
    terminal_ = std::move(terminal);
    watch_ = std::move(watch);
    ages_.start_repeating(kRedrawAges);
    draw();
    return {};
  }

 private:
  void draw() {
    const ScreenSize size = terminal_size(STDOUT_FILENO);
    const TopFrame frame = top_frame(watch_->view(), size, scroll_, now(), true);
    scroll_ = frame.first_row;
    page_ = std::max<std::size_t>(1, frame.rows_shown);
    terminal_->draw(frame.lines, colour_);
  }
  void on_key(Key key) {
    switch (key) {
      case Key::kQuit:
        loop_.stop();
        return;
      case Key::kUp:
        scroll_ -= std::min<std::size_t>(scroll_, 1);
        break;
      case Key::kDown:
        ++scroll_;
        break;
      case Key::kPageUp:
        scroll_ -= std::min(scroll_, page_);
        break;
      case Key::kPageDown:
        scroll_ += page_;
        break;
      case Key::kHome:
        scroll_ = 0;
        break;
      case Key::kEnd:
        scroll_ = SIZE_MAX / 2;
        break;
    }
    draw();
  }

  Loop& loop_;
  const bool colour_ = wants_colour(STDOUT_FILENO);
  std::unique_ptr<FleetWatch> watch_;
  std::unique_ptr<Terminal> terminal_;
  std::size_t scroll_ = 0;
  std::size_t page_ = 1;
  Timer ages_;
};

Result<Outcome> top(const TopOptions& options) {
  const auto interval = WSYNC_TRY(parse_watch_interval(options.interval));
  if (options.once || options.json || !is_terminal(STDIN_FILENO, STDOUT_FILENO))
    return top_once(options);
  auto loop = WSYNC_TRY(Loop::create());
  const auto signals = WSYNC_TRY(Signals::create(*loop, [&](int) { loop->stop(); }));
  TopScreen screen(*loop);
  WSYNC_TRY(screen.open(options, interval));
  loop->run();
  return Outcome{};
}

}  // namespace

void add_top(CLI::App& app, Context& context) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command = add_asking_command(
      app, context, *options, 5,
      {.name = "top",
       .description = "Watch the fleet: every replica, the current update, and recent problems",
       .examples = {"wsync top", "wsync top --interval 200ms",
                    "wsync top --once --coordinator ipc:///run/wsync/control"}});
  add_watch_interval(*command, options->interval);
  command->add_flag(
      "--once", options->once,
      "Print one frame without colours and exit; this is also done without a terminal");
  command->callback([&context, options] {
    options->json = context.options.json;
    context.run("top", [&] { return top(*options); });
  });
}

}  // namespace wsync::cli
