#include "shared/control/unix_stream.h"

#include <optional>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/log.h"
#include "shared/base/units.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

constexpr std::size_t kReceiveBytes = 64 * limits::kKiB;
constexpr int kReceivesPerTurn = 32;  // bounds one loop iteration
constexpr int kAcceptsPerTurn = 32;
constexpr std::chrono::milliseconds kRefusalDeadline{1000};
constexpr std::chrono::milliseconds kAcceptPause{100};  // when the process is out of descriptors

}  // namespace

// Shared with running callbacks, so that a callback may destroy the stream.
struct UnixStream::State : std::enable_shared_from_this<State> {
  State(Loop& l, UniqueFd s, StreamCallbacks c)
      : loop(l),
        socket(std::move(s)),
        callbacks(std::move(c)),
        buffer(kReceiveBytes),
        deadline(l, [this] {
          end(Error(ErrorCode::kDeadline,
                    "the peer did not read the remaining messages before the deadline"));
        }) {}

  void event(FdEvents events) {
    const auto self = shared_from_this();
    if (events.writable) flush();
    if (events.readable && open()) receive();
  }

  void receive() {
    for (int i = 0; i < kReceivesPerTurn && open(); ++i) {
      std::vector<UniqueFd> fds;
      const auto n = receive_some(socket.get(), buffer, fds);
      if (!n) return end(n.error());
      if (*n == 0) return;
      if (finishing) continue;  // read and dropped, to detect the peer's hang-up
      if (auto fed = reader.feed(std::span(buffer).first(*n), std::move(fds)); !fed)
        return end(std::move(fed).error());
      deliver();
    }
  }

  void deliver() {
    while (open() && !finishing) {
      auto frame = reader.next();
      if (!frame) return refuse(frame.error());
      if (!frame->has_value()) return;
      const CallbackTime time(loop, {.kind = "message",
                                     .what = message_name(type_of((*frame)->message)),
                                     .made = std::source_location::current()});
      callbacks.on_frame(std::move(**frame));
    }
  }

  // Ends the connection after unreadable input. If the version or type was unknown, an ErrorReply
  // is sent first, so that a peer of another release learns the reason.
  void refuse(const Error& error) {
    if (error.code() != ErrorCode::kRefused) return end(error);
    const Envelope echo = reader.refused().value_or(Envelope{});
    const ErrorReply reply{.code = error.code(), .message = error.message()};
    if (!writer.push(echo, reply)) return end(error);
    start_finish(error, kRefusalDeadline);
  }

  void start_finish(Error reason, std::chrono::milliseconds time) {
    if (!open() || finishing) return;
    finishing = std::move(reason);
    deadline.start(time);
    // Posted to the loop, so that on_close never runs inside finish().
    loop.post([self = shared_from_this()] { self->flush(); });
  }

  void flush() {
    if (!open()) return;
    const auto done = writer.flush(socket.get());
    if (!done) {
      // The peer may have sent a reason before it hung up, so read that first.
      if (!finishing) receive();
      return end(done.error());
    }
    if (*done && finishing) return end(*finishing);
    watcher->watch({.readable = true, .writable = !*done});
  }

  void end(Error error) {
    if (!open()) return;
    const auto self = shared_from_this();
    close();
    callbacks.on_close(std::move(error));
  }
  void close() {
    watcher.reset();
    socket.reset();
    deadline.stop();
  }
  [[nodiscard]] bool open() const noexcept { return watcher != nullptr; }

  Loop& loop;
  UniqueFd socket;
  StreamCallbacks callbacks;
  Bytes buffer;
  FrameReader reader;
  FrameWriter writer;
  Timer deadline;
  std::optional<Error> finishing;      // error to pass to on_close
  std::unique_ptr<FdWatcher> watcher;  // null = closed
};

Result<std::unique_ptr<UnixStream>> UnixStream::adopt(Loop& loop, UniqueFd socket,
                                                      StreamCallbacks callbacks) {
  auto state = std::make_shared<State>(loop, std::move(socket), std::move(callbacks));
  auto watcher = WSYNC_TRY(FdWatcher::create(
      loop, state->socket.get(), [s = state.get()](FdEvents events) { s->event(events); }));
  state->watcher = std::move(watcher);
  state->watcher->watch({.readable = true});
  return std::unique_ptr<UnixStream>(new UnixStream(std::move(state)));
}

Result<std::unique_ptr<UnixStream>> UnixStream::connect(Loop& loop, const std::string& path,
                                                        StreamCallbacks callbacks) {
  auto socket = WSYNC_TRY(connect_unix(path, now()));
  return adopt(loop, std::move(socket), std::move(callbacks));
}

UnixStream::UnixStream(std::shared_ptr<State> state) : state_(std::move(state)) {}

UnixStream::~UnixStream() {
  WSYNC_CHECK(state_->loop.in_loop(), "streams belong to the loop's thread");
  state_->close();
}

Result<> UnixStream::send(const Envelope& envelope, const Message& message,
                          std::vector<UniqueFd> fds) {
  WSYNC_CHECK(state_->loop.in_loop(), "streams belong to the loop's thread");
  if (!state_->open() || state_->finishing)
    return fail(ErrorCode::kPeerLost, "the connection has ended");
  const bool idle = state_->writer.empty();
  WSYNC_TRY(state_->writer.push(envelope, message, std::move(fds)));
  if (!idle) return {};  // the watcher continues when the socket is writable
  const auto done = state_->writer.flush(state_->socket.get());
  if (!done) {
    state_->loop.post([state = state_] { state->flush(); });  // reports through on_close
    return fail(done.error());
  }
  if (!*done) state_->watcher->watch({.readable = true, .writable = true});
  return {};
}

void UnixStream::finish(std::chrono::milliseconds deadline) {
  WSYNC_CHECK(state_->loop.in_loop(), "streams belong to the loop's thread");
  state_->start_finish(Error(ErrorCode::kCancelled, "the connection was closed on this side"),
                       deadline);
}

std::uint64_t UnixStream::queued_bytes() const noexcept { return state_->writer.queued_bytes(); }

struct UnixListener::State : std::enable_shared_from_this<State> {
  State(Loop& l, ListeningSocket s, OnConnection c)
      : loop(l),
        socket(std::move(s)),
        on_connection(std::move(c)),
        pause(l, [this] { watcher->watch({.readable = true}); }) {}

  void accept() {
    const auto self = shared_from_this();
    for (int i = 0; i < kAcceptsPerTurn && watcher != nullptr; ++i) {
      auto accepted = socket.accept();
      if (!accepted) {
        log_warning("{}", accepted.error().message());
        if (accepted.error().code() == ErrorCode::kRefused) continue;
        watcher->watch({});
        pause.start(kAcceptPause);
        return;
      }
      if (!accepted->has_value()) return;
      on_connection(std::move((*accepted)->socket), (*accepted)->peer);
    }
  }

  Loop& loop;
  ListeningSocket socket;
  OnConnection on_connection;
  Timer pause;
  std::unique_ptr<FdWatcher> watcher;
};

Result<std::unique_ptr<UnixListener>> UnixListener::create(Loop& loop, const std::string& path,
                                                           OnConnection on_connection, Claim how) {
  auto socket = WSYNC_TRY(ListeningSocket::bind(path, how));
  auto state = std::make_shared<State>(loop, std::move(socket), std::move(on_connection));
  auto watcher = WSYNC_TRY(
      FdWatcher::create(loop, state->socket.fd(), [s = state.get()](FdEvents) { s->accept(); }));
  state->watcher = std::move(watcher);
  state->watcher->watch({.readable = true});
  return std::unique_ptr<UnixListener>(new UnixListener(std::move(state)));
}

UnixListener::UnixListener(std::shared_ptr<State> state) : state_(std::move(state)) {}

UnixListener::~UnixListener() {
  WSYNC_CHECK(state_->loop.in_loop(), "listeners belong to the loop's thread");
  state_->watcher.reset();
  state_->pause.stop();
}

const std::string& UnixListener::path() const noexcept { return state_->socket.path(); }

}  // namespace wsync::control
