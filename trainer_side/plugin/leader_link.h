// LeaderLink: the connection of a rank to rank 0. It connects again by itself whenever it has
// ended. Within a host it is a Unix socket that carries descriptors; between hosts it is the
// control port of rank 0, with keys.
//
// Thread: the loop's. Callbacks run on the loop, and may call stop() and restart().
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shared/base/error.h"
#include "shared/base/unique_fd.h"
#include "shared/config/trainer_config.h"
#include "shared/control/messages.h"
#include "shared/loop/loop.h"

namespace wsync::plugin {

struct LeaderLinkCallbacks {
  std::function<void()> on_connected;  // nothing was sent on this connection yet
  std::function<void(control::Message)> on_message;
  std::function<void(const Error&)> on_lost;            // the connection has ended
  std::function<void(const std::string&)> on_no_reply;  // there was none; why
};

class LeaderLink {
 public:
  virtual ~LeaderLink() = default;
  // Begins to connect. Errors: those of the configuration.
  [[nodiscard]] virtual Result<> start() = 0;
  [[nodiscard]] virtual bool is_connected() const noexcept = 0;
  // kPeerLost if there is no connection, or if it has just ended (on_lost follows); otherwise as
  // encode(). Descriptors travel within a host only.
  [[nodiscard]] virtual Result<> send(const control::Message& message,
                                      std::vector<UniqueFd> fds = {}) = 0;
  // Ends a connection to a process that is not rank 0 any more.
  virtual void leave_replaced() {}
  // Rank 0 has refused this rank: on_lost is called, and it connects again after a pause.
  virtual void restart(const Error& why) = 0;
  // Connects no more.
  virtual void stop() = 0;
  // Where rank 0 is, for sentences.
  [[nodiscard]] virtual const std::string& where() const noexcept = 0;
};

// To the socket at `path`.
[[nodiscard]] std::unique_ptr<LeaderLink> make_local_leader_link(Loop& loop, std::string path,
                                                                 LeaderLinkCallbacks callbacks);
// To `leader` of the configuration.
[[nodiscard]] std::unique_ptr<LeaderLink> make_remote_leader_link(
    Loop& loop, const config::TrainerConfig& config, LeaderLinkCallbacks callbacks);

}  // namespace wsync::plugin
