// The terminal of a command that draws: its size, its keys, and lines drawn in place. Uses only
// plain ANSI control sequences, which all common terminals support.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/cli/screen_text.h"
#include "shared/base/error.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/loop.h"

namespace wsync::cli {

enum class Key : std::uint8_t { kUp, kDown, kPageUp, kPageDown, kHome, kEnd, kQuit };

// Returns the keys in the bytes of a terminal, in order. Ignores other input. `rest` keeps an
// incomplete sequence for the next call.
[[nodiscard]] std::vector<Key> read_keys(std::string_view bytes, std::string& rest);

// Returns true if both descriptors are terminals.
[[nodiscard]] bool is_terminal(int in_fd, int out_fd) noexcept;
// Returns true if colours can be used: the output is a terminal, NO_COLOR is unset or empty, and
// TERM is not "dumb".
[[nodiscard]] bool wants_colour(int out_fd);
// Returns 80 x 24 if the size is unknown.
[[nodiscard]] ScreenSize terminal_size(int fd) noexcept;

// Controls a terminal: alternate screen, no echo, no line buffering, and Ctrl-C as a key. The
// destructor restores its former state. Only one may exist per process. Thread: the loop's;
// callbacks run on the loop.
class Terminal {
 public:
  struct Callbacks {
    std::function<void(Key)> on_key;
    std::function<void()> on_resize;
    std::function<void()> on_closed;  // the terminal has closed
  };
  // kIo if it is not a terminal; kBusy if another Terminal exists.
  [[nodiscard]] static Result<std::unique_ptr<Terminal>> open(Loop& loop, int in_fd, int out_fd,
                                                              Callbacks callbacks);
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  // Draws from the top left and replaces the previous contents. `lines` must not exceed the rows of
  // the screen.
  void draw(const std::vector<ScreenLine>& lines, bool colour);

 private:
  struct State;
  explicit Terminal(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns the line as it is written: with control sequences for colours, or as plain text.
[[nodiscard]] std::string line_text(const ScreenLine& line, bool colour);

}  // namespace wsync::cli
