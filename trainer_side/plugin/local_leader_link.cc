#include <algorithm>
#include <chrono>
#include <optional>
#include <sys/stat.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/timer.h"
#include "trainer_side/plugin/leader_link.h"

namespace wsync::plugin {
namespace {

// The identity of the file at a path; std::nullopt if there is no file. It distinguishes a socket
// from its replacement at the same path.
using FileIdentity = std::pair<dev_t, ino_t>;
std::optional<FileIdentity> file_at(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity(status.st_dev, status.st_ino);
}

class LocalLeaderLink final : public LeaderLink {
 public:
  LocalLeaderLink(Loop& loop, std::string path, LeaderLinkCallbacks callbacks)
      : loop_(loop),
        path_(std::move(path)),
        callbacks_(std::move(callbacks)),
        reconnect_(loop, [this] { connect(); }),
        look_(loop, [this] { leave_replaced(); }) {}

  [[nodiscard]] Result<> start() override {
    look_.start_repeating(std::chrono::milliseconds(limits::kRankReconnectMaxMs));
    connect();
    return {};
  }
  [[nodiscard]] bool is_connected() const noexcept override { return stream_ != nullptr; }
  [[nodiscard]] const std::string& where() const noexcept override { return path_; }

  [[nodiscard]] Result<> send(const control::Message& message, std::vector<UniqueFd> fds) override {
    if (!stream_) return fail(ErrorCode::kPeerLost, "rank 0 is not connected");
    return stream_->send({}, message, std::move(fds));
  }

  // A rank 0 that hangs keeps its connections, so they do not show that it was replaced. The new
  // rank 0 has a new socket at the same path.
  void leave_replaced() override {
    if (!stream_) return;
    const auto there = file_at(path_);
    if (!there || there == leader_) return;
    close(Error(ErrorCode::kPeerLost,
                fmt::format("another process is rank 0 now: it has taken over {}", path_)));
  }

  // Rank 0 closes the connection itself when it has refused this rank.
  void restart(const Error& /*why*/) override {}

  void stop() override {
    is_stopped_ = true;
    look_.stop();
    reconnect_.stop();
  }

 private:
  void connect() {
    control::StreamCallbacks callbacks;
    callbacks.on_frame = [this](control::Frame frame) {
      pause_ = std::chrono::milliseconds(limits::kReconnectMinMs);
      callbacks_.on_message(std::move(frame.message));
    };
    callbacks.on_close = [this](const Error& error) { close(error); };
    leader_ = file_at(path_);
    auto stream = control::UnixStream::connect(loop_, path_, std::move(callbacks));
    if (stream && file_at(path_) != leader_)
      stream = fail(ErrorCode::kPeerLost, "rank 0 is being replaced");
    if (!stream) {
      callbacks_.on_no_reply(stream.error().message());
      return connect_later();
    }
    stream_ = std::move(*stream);
    callbacks_.on_connected();
  }

  void close(const Error& error) {
    stream_.reset();
    callbacks_.on_lost(error);
    if (!is_stopped_) connect_later();
  }

  void connect_later() {
    reconnect_.start(pause_);
    pause_ = std::min(2 * pause_, std::chrono::milliseconds(limits::kRankReconnectMaxMs));
  }

  Loop& loop_;
  const std::string path_;
  const LeaderLinkCallbacks callbacks_;
  std::unique_ptr<control::UnixStream> stream_;
  std::optional<FileIdentity> leader_;  // the socket that stream_ is connected to
  std::chrono::milliseconds pause_{limits::kReconnectMinMs};
  bool is_stopped_ = false;
  Timer reconnect_;
  Timer look_;
};

}  // namespace

std::unique_ptr<LeaderLink> make_local_leader_link(Loop& loop, std::string path,
                                                   LeaderLinkCallbacks callbacks) {
  return std::make_unique<LocalLeaderLink>(loop, std::move(path), std::move(callbacks));
}

}  // namespace wsync::plugin
