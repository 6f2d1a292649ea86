// The terminal of a command that draws: its size, its keys, and lines drawn in place. Plain ANSI
// control sequences, which every terminal of the last decades reads.
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

// Of a terminal's bytes: the keys among them, in order; anything else is passed over. `rest` keeps
// a sequence that is not complete for the next call.
[[nodiscard]] std::vector<Key> read_keys(std::string_view bytes, std::string& rest);

// Whether both ends of a conversation are a terminal.
[[nodiscard]] bool is_terminal(int in_fd, int out_fd) noexcept;
// Colours are welcome: a terminal, and NO_COLOR is not set (or empty), and TERM is not "dumb".
[[nodiscard]] bool wants_colour(int out_fd);
// 80 x 24 where nobody says.
[[nodiscard]] ScreenSize terminal_size(int fd) noexcept;

// Takes a terminal over: its alternate screen, no echo, no line buffering, Ctrl-C as a key. The
// destructor gives everything back as it was. One at a time in a process.
// Thread: the loop's; callbacks come on the loop.
class Terminal {
 public:
  struct Callbacks {
    std::function<void(Key)> on_key;
    std::function<void()> on_resize;
    std::function<void()> on_closed;  // it hung up
  };
  // kIo when it is no terminal; kBusy when another one lives.
  [[nodiscard]] static Result<std::unique_ptr<Terminal>> open(Loop& loop, int in_fd, int out_fd,
                                                              Callbacks callbacks);
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal();

  // From the top left; what was there before is replaced. At most as many lines as there are rows.
  void draw(const std::vector<ScreenLine>& lines, bool colour);

 private:
  struct State;
  explicit Terminal(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The lines as they are written: with colours as control sequences, or bare.
[[nodiscard]] std::string line_text(const ScreenLine& line, bool colour);

}  // namespace wsync::cli
