#include "deploy/cli/terminal.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <utility>

#include "shared/base/unique_fd.h"

namespace wsync::cli {
namespace {

constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l\x1b[2J";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[0m\x1b[?25h\x1b[?1049l";
constexpr std::size_t kSequenceMax = 16;  // longest incomplete sequence to keep

// Pipe of the SIGWINCH handler. It is atomic because a signal handler reads it. -1: no Terminal
// exists.
std::atomic<int> g_resize_fd{-1};

void on_window_change(int /*signal*/) {
  // The handler can interrupt code that is about to read errno. write() is async-signal-safe.
  const int saved = errno;
  const char byte = 'w';
  [[maybe_unused]] const ssize_t written = ::write(g_resize_fd.load(), &byte, 1);
  errno = saved;
}

// Writes all of the text. Gives up if the terminal has closed.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string_view style_sequence(Style style) {
  switch (style) {
    case Style::kPlain:
      return "";
    case Style::kBold:
      return "\x1b[1m";
    case Style::kDim:
      return "\x1b[2m";
    case Style::kGood:
      return "\x1b[32m";
    case Style::kWarning:
      return "\x1b[33m";
    case Style::kBad:
      return "\x1b[1;31m";
    case Style::kReverse:
      return "\x1b[7m";
  }
  return "";
}

struct KeySequence {
  std::string_view bytes;
  Key key;
};
// Cursor keys have two forms because a terminal can be in normal or application mode.
constexpr std::array<KeySequence, 12> kSequences = {{{"\x1b[A", Key::kUp},
                                                     {"\x1bOA", Key::kUp},
                                                     {"\x1b[B", Key::kDown},
                                                     {"\x1bOB", Key::kDown},
                                                     {"\x1b[5~", Key::kPageUp},
                                                     {"\x1b[6~", Key::kPageDown},
                                                     {"\x1b[H", Key::kHome},
                                                     {"\x1bOH", Key::kHome},
                                                     {"\x1b[1~", Key::kHome},
                                                     {"\x1b[F", Key::kEnd},
                                                     {"\x1bOF", Key::kEnd},
                                                     {"\x1b[4~", Key::kEnd}}};

// Returns the length of the control sequence at the start of the text, or 0 if it is incomplete.
std::size_t sequence_length(std::string_view text) {
  if (text.size() < 2) return 0;
  if (text[1] != '[' && text[1] != 'O') return 1;
  for (std::size_t i = 2; i < text.size(); ++i)
    if (text[i] >= '@' && text[i] <= '~') return i + 1;
  return text.size() > kSequenceMax ? text.size() : 0;
}

}  // namespace

std::vector<Key> read_keys(std::string_view bytes, std::string& rest) {
  const std::string joined = std::exchange(rest, {}) + std::string(bytes);
  std::string_view text = joined;
  std::vector<Key> keys;
  while (!text.empty()) {
    std::size_t length = 1;
    if (text[0] == '\x1b') {
      length = sequence_length(text);
      if (length == 0) {
        rest = text;
        break;
      }
      const auto* found = std::find_if(
          kSequences.begin(), kSequences.end(),
          [&](const KeySequence& sequence) { return sequence.bytes == text.substr(0, length); });
      if (found != kSequences.end()) keys.push_back(found->key);
    } else if (text[0] == 'q' || text[0] == 'Q' || text[0] == '\x03' || text[0] == '\x04') {
      keys.push_back(Key::kQuit);
    } else if (text[0] == 'k') {
      keys.push_back(Key::kUp);
    } else if (text[0] == 'j') {
      keys.push_back(Key::kDown);
    } else if (text[0] == ' ') {
      keys.push_back(Key::kPageDown);
    }
    text.remove_prefix(length);
  }
  return keys;
}

bool is_terminal(int in_fd, int out_fd) noexcept {
  return ::isatty(in_fd) == 1 && ::isatty(out_fd) == 1;
}

bool wants_colour(int out_fd) {
  const char* none = std::getenv("NO_COLOR");
  const char* kind = std::getenv("TERM");
  return ::isatty(out_fd) == 1 && (none == nullptr || *none == '\0') &&
         (kind == nullptr || std::string_view(kind) != "dumb");
}

ScreenSize terminal_size(int fd) noexcept {
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {};
  return {.columns = size.ws_col, .rows = size.ws_row};
}

std::string line_text(const ScreenLine& line, bool colour) {
  if (!colour) return plain_text(line);
  std::string text;
  for (const ScreenSpan& span : line) {
    const std::string_view sequence = style_sequence(span.style);
    text += sequence;
    text += span.text;
    if (!sequence.empty()) text += "\x1b[0m";
  }
  return text;
}

struct Terminal::State {
  int in_fd = -1;
  int out_fd = -1;
  Callbacks callbacks;
  termios former{};
  struct sigaction former_action{};
  UniqueFd read_end;
  UniqueFd write_end;
  std::unique_ptr<FdWatcher> keys;
  std::unique_ptr<FdWatcher> resizes;
  std::string rest;  // incomplete key sequence
  bool taken = false;

  ~State() {
    keys.reset();
    resizes.reset();
    if (!taken) return;
    write_all(out_fd, kLeave);
    ::tcsetattr(in_fd, TCSAFLUSH, &former);
    ::sigaction(SIGWINCH, &former_action, nullptr);
    g_resize_fd = -1;
  }

  void take_keys() {
    std::array<char, 256> bytes{};
    const ssize_t n = ::read(in_fd, bytes.data(), bytes.size());
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) {
      keys->watch({});  // at end of file the descriptor stays readable and would fire without end
      callbacks.on_closed();
      return;
    }
    for (const Key key :
         read_keys(std::string_view(bytes.data(), static_cast<std::size_t>(n)), rest))
      callbacks.on_key(key);
  }
  void take_resizes() {
    std::array<char, 64> bytes{};
    while (::read(read_end.get(), bytes.data(), bytes.size()) > 0) {
    }
    callbacks.on_resize();
  }

  Result<> take() {
    if (::tcgetattr(in_fd, &former) != 0) return fail_errno("the terminal's settings", errno);
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return fail_errno("pipe", errno);
    read_end.reset(pipe[0]);
    write_end.reset(pipe[1]);
    int none = -1;
    if (!g_resize_fd.compare_exchange_strong(none, pipe[1]))
      return fail(ErrorCode::kBusy, "this process already draws on a terminal");
    taken = true;
    struct sigaction action{};
    action.sa_handler = on_window_change;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGWINCH, &action, &former_action);
    termios raw = former;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (::tcsetattr(in_fd, TCSAFLUSH, &raw) != 0)
      return fail_errno("the terminal's settings", errno);
    write_all(out_fd, kEnter);
    return {};
  }
};

Result<std::unique_ptr<Terminal>> Terminal::open(Loop& loop, int in_fd, int out_fd,
                                                 Callbacks callbacks) {
  if (!is_terminal(in_fd, out_fd))
    return fail(ErrorCode::kIo, "standard input and output must be a terminal");
  auto state = std::make_unique<State>();
  state->in_fd = in_fd;
  state->out_fd = out_fd;
  state->callbacks = std::move(callbacks);
  WSYNC_TRY(state->take());
  auto keys =
      WSYNC_TRY(FdWatcher::create(loop, in_fd, [s = state.get()](FdEvents) { s->take_keys(); }));
  state->keys = std::move(keys);
  auto resizes = WSYNC_TRY(FdWatcher::create(loop, state->read_end.get(),
                                             [s = state.get()](FdEvents) { s->take_resizes(); }));
  state->resizes = std::move(resizes);
  state->keys->watch({.readable = true});
  state->resizes->watch({.readable = true});
  return std::unique_ptr<Terminal>(new Terminal(std::move(state)));
}

Terminal::Terminal(std::unique_ptr<State> state) : state_(std::move(state)) {}
Terminal::~Terminal() = default;

// The last line has no line feed because it would scroll the screen.
void Terminal::draw(const std::vector<ScreenLine>& lines, bool colour) {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i)
    text += (i == 0 ? "" : "\r\n") + line_text(lines[i], colour) + "\x1b[K";
  text += "\x1b[J";
  write_all(state_->out_fd, text);
}

}  // namespace wsync::cli
