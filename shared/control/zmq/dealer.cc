#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <random>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/tcp_address.h"
#include "shared/control/codec.h"
#include "shared/control/heartbeat_pace.h"
#include "shared/control/zmq/ports.h"
#include "shared/control/zmq/socket.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

// How long the first of several addresses is tried, before the next one is. If its host says that
// nobody listens there, the next one is tried earlier.
constexpr std::chrono::milliseconds kTryFirst{500};
constexpr std::chrono::milliseconds kTryAfterRefusal{100};

// Shared with running callbacks, so that a callback may destroy the port.
struct DealerState : std::enable_shared_from_this<DealerState> {
  DealerState(Loop& l, DealerOptions o, DealerCallbacks c)
      : loop(l),
        options(std::move(o)),
        callbacks(std::move(c)),
        beat(l, [this] { tick(); }),
        next(l, [this] { try_next(); }),
        pace(options.times) {}

  void connection_events() {
    const auto self = shared_from_this();
    while (!closed) {
      const auto event = socket->next_connection_event();
      if (!event) return;
      if (*event == ConnectionEvent::kUp) {
        connected = true;
        next.stop();
        failed = 0;
        hear();
      } else if (*event == ConnectionEvent::kNotTaken) {
        if (addresses.size() > 1 && !connected) next.start(kTryAfterRefusal);
      } else if (*event != ConnectionEvent::kDown) {
        const bool may_be_of_the_key = *event != ConnectionEvent::kBroken || options.key;
        if (may_be_of_the_key && callbacks.on_refused) callbacks.on_refused(refusal(*event));
      } else {
        drain_all();  // messages sent before the hang-up
        if (closed) return;
        connected = false;
        await_connection();
        lose(Error(ErrorCode::kPeerLost, fmt::format("{} closed the connection", address())));
      }
    }
  }

  // Why the connection was not made.
  [[nodiscard]] Error refusal(ConnectionEvent event) const {
    const std::string& router = address();
    if (event == ConnectionEvent::kBroken)
      return Error(ErrorCode::kPeerLost,
                   fmt::format("{} ended the connection before it asked for the key: it has no "
                               "keys, is not the coordinator that the key of {} was made for, or "
                               "has just ended",
                               router, options.key->owner.text()));
    if (!options.key)
      return Error(ErrorCode::kRefused,
                   fmt::format("{} admits only who has a key: give the file that `wsync keys add` "
                               "has made",
                               router));
    return Error(
        ErrorCode::kRefused,
        event == ConnectionEvent::kKeyRefused
            ? fmt::format("{} does not admit the key of {}: list it there with `wsync keys add`, "
                          "and send the coordinator SIGHUP",
                          router, options.key->owner.text())
            : fmt::format("{} has no keys, but this process has that of {}: start the coordinator "
                          "with its folder of keys, or leave out the key",
                          router, options.key->owner.text()));
  }

  // Records a sign of life from the router.
  void hear() {
    heard = now();
    if (std::exchange(alive, true)) return;
    callbacks.on_connected();
  }
  void lose(const Error& error) {
    pace.reset();
    if (!std::exchange(alive, false)) return;
    callbacks.on_lost(error);
  }

  void drain() {
    const auto self = shared_from_this();
    draining = false;
    for (int i = 0; i < kMessagesPerTurn; ++i)
      if (!take_one()) return;
    drain_later();
  }
  void drain_all() {
    for (std::uint64_t i = 0; i < limits::kPortQueueCount && take_one(); ++i) {
    }
  }
  void drain_later() {
    if (std::exchange(draining, true)) return;
    loop.post([self = shared_from_this()] {
      if (!self->closed) self->drain();
    });
  }

  // Receives one message. Returns false if nothing is left or if the port was closed.
  bool take_one() {
    if (closed) return false;
    std::array<Part, 1> parts;
    const std::size_t count = socket->receive(parts);
    if (count == 0) return false;
    if (count != 1) {
      bad(Error(ErrorCode::kInvalidInput, fmt::format("message: {} parts, expected 1", count)));
      return !closed;
    }
    auto decoded = decode(parts[0].bytes());
    if (!decoded) {
      bad(decoded.error());
      return !closed;
    }
    ++counters.received;
    if (std::holds_alternative<Heartbeat>(decoded->message)) pace.follow(now());
    hear();
    if (closed) return false;
    const CallbackTime time(loop, {.kind = "message",
                                   .what = message_name(type_of(decoded->message)),
                                   .made = std::source_location::current()});
    callbacks.on_message(std::move(decoded->envelope), std::move(decoded->message));
    return !closed;
  }
  void bad(const Error& error) {
    ++counters.bad;
    if (callbacks.on_bad_message) callbacks.on_bad_message(error);
  }

  Result<> send(const Envelope& envelope, const Message& message) {
    WSYNC_CHECK(loop.in_loop(), "ports belong to the loop's thread");
    const auto name = message_name(type_of(message));
    if (!connected)
      return fail(ErrorCode::kPeerLost, fmt::format("{}: not connected to {}", name, address()));
    const auto bytes = WSYNC_TRY(encode(envelope, message));
    auto sent = socket->send("", bytes);
    drain_later();  // sending may have consumed the edge-triggered wake-up for received messages
    if (!sent) return fail(sent.error().with_context(fmt::format("{} to {}", name, address())));
    ++counters.sent;
    return {};
  }

  void tick() {
    const auto self = shared_from_this();
    if (connected && pace.is_due(beaten, now())) {
      beaten = now();
      const auto [envelope, heartbeat] =
          callbacks.heartbeat ? callbacks.heartbeat() : std::pair<Envelope, Heartbeat>{};
      std::ignore = send(envelope, heartbeat);  // a full queue shows later as silence
    }
    const auto silent = [this] { return now() - heard > options.times.silence_deadline; };
    // A late tick has two possible causes. If only this loop was blocked, messages may be waiting
    // in the queue, so they are read before the peer counts as silent. If the whole process was
    // suspended, ZeroMQ has received nothing either, so the silence is measured from now on.
    if (now() - std::exchange(ticked, now()) > late_tick(options.times)) heard = now();
    if (!silent()) return;
    drain_all();
    if (closed || !silent()) return;
    lose(Error(ErrorCode::kDeadline, fmt::format("{} has been silent for {} ms", address(),
                                                 options.times.silence_deadline.count())));
    if (!closed && now() - begun > options.times.silence_deadline) connect_again();
  }
  // The process at the other end may be suspended while another process serves its address. A new
  // connection reaches the current one.
  void connect_again() {
    const PortAddress& before = addresses[at];
    at = (at + 1) % addresses.size();
    begun = now();
    connected = false;
    if (const auto again = socket->connect_again(before, addresses[at]); !again) bad(again.error());
    await_connection();
  }

  // Of several addresses the next one is tried if nobody has taken the connection for some time,
  // which grows after each turn: a far host with keys needs several round trips.
  void await_connection() {
    if (addresses.size() == 1 || closed) return;
    const auto turns = static_cast<unsigned>(std::min<std::size_t>(failed / addresses.size(), 8));
    next.start(std::min(kTryFirst * (1U << turns), options.times.silence_deadline));
  }
  void try_next() {
    const auto self = shared_from_this();
    connection_events();  // it may have been taken a moment ago
    if (closed || connected) return;
    ++failed;
    connect_again();
  }
  // The one that is used or tried now.
  [[nodiscard]] const std::string& address() const {
    return addresses.size() == 1 ? options.address : addresses[at].endpoint;
  }

  void close() {
    closed = true;
    beat.stop();
    next.stop();
    watcher.reset();
    monitor.reset();
    // The last message may be a Leave that the peer acts on, so the socket lingers to send it.
    if (socket && connected) socket->wait_at_close(kLastMessage);
    socket.reset();
  }

  Loop& loop;
  DealerOptions options;
  std::vector<PortAddress> addresses;
  std::size_t at = 0;      // the one that is used or tried now
  std::size_t failed = 0;  // attempts since the last connection
  DealerCallbacks callbacks;
  Timer beat;
  Timer next;
  HeartbeatPace pace;
  PortCounters counters;
  std::string identity;
  TimePoint heard{};
  TimePoint beaten{};  // when the last heartbeat was sent
  TimePoint ticked = now();
  TimePoint begun = now();  // time of the latest connection attempt
  std::unique_ptr<Socket> socket;
  std::unique_ptr<FdWatcher> watcher;
  std::unique_ptr<FdWatcher> monitor;
  bool connected = false;  // as reported by ZeroMQ
  bool alive = false;      // as last reported to the callbacks
  bool draining = false;
  bool closed = false;
};

class ZmqDealer final : public DealerPort {
 public:
  explicit ZmqDealer(std::shared_ptr<DealerState> state) : state_(std::move(state)) {}
  ~ZmqDealer() override {
    WSYNC_CHECK(state_->loop.in_loop(), "ports belong to the loop's thread");
    state_->close();
  }
  Result<> send(const Envelope& envelope, const Message& message) override {
    return state_->send(envelope, message);
  }
  const std::string& identity() const noexcept override { return state_->identity; }
  const std::string& address() const noexcept override { return state_->address(); }
  PortCounters counters() const noexcept override { return state_->counters; }

 private:
  std::shared_ptr<DealerState> state_;
};

// Refuses a path in another user's directory, because it may lead to that user's process.
Result<> check_owner(const PortAddress& address) {
  if (address.path.empty()) return {};
  const std::string directory = address.path.substr(0, address.path.find_last_of('/'));
  struct stat status{};
  if (::lstat(directory.empty() ? "/" : directory.c_str(), &status) != 0)
    return {};  // does not exist yet
  if (status.st_uid == ::geteuid()) return {};
  return fail(ErrorCode::kRefused,
              fmt::format("address {}: its directory belongs to user {}, this process runs as user "
                          "{}",
                          address.endpoint, status.st_uid, ::geteuid()));
}

std::string make_identity(const std::string& name) {
  std::random_device random;
  const std::uint64_t bits = (std::uint64_t{random()} << 32U) | random();
  return fmt::format("{}-{:016x}", name, bits);
}

}  // namespace

Result<std::unique_ptr<DealerPort>> connect_zmq(Loop& loop, const DealerOptions& options,
                                                DealerCallbacks callbacks) {
  std::vector<PortAddress> addresses;
  for (const std::string_view each : split_addresses(options.address)) {
    addresses.push_back(WSYNC_TRY(parse_port_address(std::string(each), options.key.has_value())));
    WSYNC_TRY(check_owner(addresses.back()));
  }
  if (options.name.empty() || options.name.size() > limits::kReplicaNameBytes)
    return fail(ErrorCode::kInvalidInput,
                fmt::format("port name '{}' has {} bytes, expected 1 to {}", options.name,
                            options.name.size(), limits::kReplicaNameBytes));
  auto state = std::make_shared<DealerState>(loop, options, std::move(callbacks));
  state->addresses = std::move(addresses);
  state->identity = make_identity(options.name);
  auto socket = WSYNC_TRY(Socket::create(ZMQ_DEALER, state->identity));
  state->socket = std::move(socket);
  if (options.key) WSYNC_TRY(state->socket->use_key(*options.key));
  WSYNC_TRY(state->socket->watch_connections());
  WSYNC_TRY(state->socket->connect(state->addresses.front()));
  state->await_connection();
  auto watcher = WSYNC_TRY(
      FdWatcher::create(loop, state->socket->fd(), [s = state.get()](FdEvents) { s->drain(); }));
  auto monitor = WSYNC_TRY(FdWatcher::create(
      loop, state->socket->monitor_fd(), [s = state.get()](FdEvents) { s->connection_events(); }));
  state->watcher = std::move(watcher);
  state->monitor = std::move(monitor);
  state->watcher->watch({.readable = true});
  state->monitor->watch({.readable = true});
  state->beat.start_repeating(options.times.heartbeat_interval);
  loop.post([state] {
    if (!state->closed) state->connection_events();  // events from before the watcher
  });
  return std::unique_ptr<DealerPort>(std::make_unique<ZmqDealer>(std::move(state)));
}

}  // namespace wsync::control
