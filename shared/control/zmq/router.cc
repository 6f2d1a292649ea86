#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <poll.h>
#include <set>
#include <utility>
#include <vector>

#include "shared/base/check.h"
#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/planted.h"
#include "shared/base/unix_socket.h"
#include "shared/control/codec.h"
#include "shared/control/heartbeat_pace.h"
#include "shared/control/zmq/key_connection.h"
#include "shared/control/zmq/ports.h"
#include "shared/control/zmq/socket.h"
#include "shared/loop/fd_watcher.h"
#include "shared/loop/timer.h"

namespace wsync::control {
namespace {

struct Peer {
  TimePoint heard{};
  TimePoint told{};  // when the last message was sent to it
  KeyConnection by;  // with keys: its key and its connection
};

// An Announce that was encoded, for peers that get an equal one.
struct EncodedLayout {
  EncodedLayout(Envelope e, Announce a, Bytes bytes)
      : envelope(std::move(e)), announce(std::move(a)), part(std::move(bytes)) {}
  [[nodiscard]] bool is_of(const Envelope& e, const Announce& a) const {
    return e.fence == envelope.fence && e.round == envelope.round &&
           e.request == envelope.request && e.replica == envelope.replica &&
           e.rank == envelope.rank && e.capabilities == envelope.capabilities &&
           a.version == announce.version && a.layout_digest == announce.layout_digest &&
           a.layout.is_same(announce.layout) && a.content_digest == announce.content_digest &&
           a.bucket_bytes == announce.bucket_bytes && a.arena_bytes == announce.arena_bytes &&
           a.parts.is_same(announce.parts);
  }
  Envelope envelope;
  Announce announce;
  SharedPart part;
};

// Shared with running callbacks, so that a callback may destroy the port.
struct RouterState : std::enable_shared_from_this<RouterState> {
  RouterState(Loop& l, RouterOptions o, RouterCallbacks c)
      : loop(l),
        options(std::move(o)),
        callbacks(std::move(c)),
        beat(l, [this] { tick(); }),
        pace(options.times) {}

  void drain() {
    const auto self = shared_from_this();
    draining = false;
    for (int i = 0; i < kMessagesPerTurn; ++i)
      if (!take_one()) return;
    drain_later();
  }
  void drain_all() {
    const std::uint64_t max = limits::kPortQueueCount * (peers.size() + 1);
    for (std::uint64_t i = 0; i < max && take_one(); ++i) {
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
    std::array<Part, 2> parts;
    const std::size_t count = socket->receive(parts);
    if (count == 0) return false;
    const std::string peer = parts[0].text();
    KeyConnection by;
    if (options.keys) {
      by = KeyConnection::of(parts[1], options.keys->admitted);
      if (!is_admitted(peer, by)) return !closed;
    }
    take(peer, count, parts[1].bytes(), by);
    return !closed;
  }

  // Whether a message may be read. If its sender has no key that is listed, or is not the one that
  // the identity belongs to, its connection ends, and so does the one that had the identity before.
  bool is_admitted(const std::string& peer, const KeyConnection& by) {
    const auto known = peers.find(peer);
    const bool is_other = known != peers.end() && !known->second.by.is_same_key(by) &&
                          !planted("identity_instead_of_key");
    if (by.is_listed() && !is_other) return true;
    by.end();
    refused(by.who(), is_other ? fmt::format("its connection has taken the identity {} of {}", peer,
                                             known->second.by.who())
                               : "its key is not listed any more");
    lose(peer,
         is_other ? "another connection has taken its identity" : "its key is not listed any more");
    return false;
  }
  void refused(const std::string& who, const std::string& why) {
    ++counters.refused;
    if (callbacks.on_refused) callbacks.on_refused(who, Error(ErrorCode::kRefused, why));
  }
  // Ends the connection of a peer, and reports the loss.
  void lose(const std::string& peer, const std::string& why) {
    if (closed) return;
    const auto known = peers.extract(peer);
    if (known.empty()) return;
    known.mapped().by.end();
    if (callbacks.on_lost) callbacks.on_lost(peer, Error(ErrorCode::kPeerLost, why));
  }

  // A callback may destroy the port, so refusals are reported after the library has its answer.
  void answer_key_questions() {
    const auto self = shared_from_this();
    bool had_question = true;
    while (!closed && had_question) {
      std::optional<std::pair<std::string, std::string>> refusal;  // who, why
      const auto admits = [&](const std::string& key, const std::string& from) {
        if (options.keys->admitted.find(key) != nullptr) return true;
        refusal.emplace(fmt::format("a connection from {}", from),
                        fmt::format("its key {} is not listed", key));
        return planted("unlisted_key_admitted");
      };
      const auto broken = [&](const Error& error) {
        refusal.emplace("a connection", error.message());
      };
      had_question = socket->answer_key_question(admits, broken);
      if (refusal) refused(refusal->first, refusal->second);
    }
  }
  Result<> watch_keys() {
    questions = WSYNC_TRY(FdWatcher::create(loop, socket->key_questions_fd(),
                                            [this](FdEvents) { answer_key_questions(); }));
    refusals = WSYNC_TRY(
        FdWatcher::create(loop, socket->monitor_fd(), [this](FdEvents) { refused_connections(); }));
    questions->watch({.readable = true});
    refusals->watch({.readable = true});
    loop.post([self = shared_from_this()] {  // what has come before the watchers
      self->answer_key_questions();
      self->refused_connections();
    });
    return {};
  }
  // Connections that fail before the question about their key.
  void refused_connections() {
    const auto self = shared_from_this();
    while (!closed) {
      const auto event = socket->next_connection_event();
      if (!event) return;
      refused("a connection",
              *event == ConnectionEvent::kWrongServer
                  ? "it expects a coordinator with another key: its key file is that of another "
                    "fleet, or older than this folder of keys"
              : *event == ConnectionEvent::kOtherKind ? "it has no key"
                                                      : "it speaks another protocol");
    }
  }
  void admit(AuthorizedKeys keys) {
    WSYNC_CHECK(loop.in_loop() && options.keys, "only a port with keys admits others");
    options.keys->admitted = std::move(keys);
    std::vector<std::string> gone;
    for (const auto& [peer, state] : peers)
      if (!state.by.is_still_listed(options.keys->admitted)) {
        state.by.end();
        gone.push_back(peer);
      }
    loop.post([self = shared_from_this(), gone] {
      for (const std::string& peer : gone) self->lose(peer, "its key is not listed any more");
    });
  }

  void take(const std::string& peer, std::size_t parts, std::span<const std::byte> bytes,
            const KeyConnection& by) {
    if (parts != 2)
      return bad(peer, Error(ErrorCode::kInvalidInput,
                             fmt::format("message: {} parts, expected 1", parts - 1)));
    auto decoded = decode(bytes);
    if (!decoded) {
      // A well-formed message of another release gets an answer; malformed data does not.
      if (decoded.error().code() == ErrorCode::kRefused)
        answer(peer, decode_envelope(bytes).value_or(Envelope{}), decoded.error());
      return bad(peer, decoded.error());
    }
    if (!peers.contains(peer) && peers.size() >= limits::kPortPeerCount) {
      const Error full(ErrorCode::kResourceExhausted,
                       fmt::format("{} peers are connected already", peers.size()));
      answer(peer, decoded->envelope, full);
      return bad(peer, full);
    }
    Peer& sender = peers[peer];
    sender.heard = now();
    sender.by = by;
    ++counters.received;
    if (options.keys && callbacks.why_refused) {
      const auto why = callbacks.why_refused(by.owner(), decoded->message);
      if (closed) return;
      if (why) {
        answer(peer, decoded->envelope, Error(ErrorCode::kRefused, *why));
        return refused(by.who(), *why);
      }
    }
    const CallbackTime time(loop, {.kind = "message",
                                   .what = message_name(type_of(decoded->message)),
                                   .made = std::source_location::current()});
    callbacks.on_message(peer, std::move(decoded->envelope), std::move(decoded->message));
  }
  void bad(const std::string& peer, const Error& error) {
    ++counters.bad;
    if (callbacks.on_bad_message) callbacks.on_bad_message(peer, error);
  }
  void answer(const std::string& peer, Envelope echo, const Error& error) {
    echo.fence = {};
    // Best effort: the error cannot be reported to a peer whose queue is full.
    std::ignore = send(peer, echo, ErrorReply{.code = error.code(), .message = error.message()});
  }

  Result<> send(const std::string& peer, const Envelope& envelope, const Message& message) {
    WSYNC_CHECK(loop.in_loop(), "ports belong to the loop's thread");
    if (peer.empty()) return fail(ErrorCode::kPeerLost, "a peer without a name is not connected");
    const auto* announce = std::get_if<Announce>(&message);
    return sent(peer, type_of(message),
                announce != nullptr && (!announce->layout.empty() || !announce->parts.empty())
                    ? send_layout(peer, envelope, *announce)
                    : send_encoded(peer, envelope, message));
  }
  Result<> sent(const std::string& peer, MessageType type, const Result<>& outcome) {
    drain_later();  // sending may have consumed the edge-triggered wake-up for received messages
    if (!outcome)
      return fail(outcome.error().with_context(fmt::format("{} to {}", message_name(type), peer)));
    ++counters.sent;
    if (const auto known = peers.find(peer); known != peers.end()) known->second.told = now();
    return {};
  }

  Result<> send_encoded(const std::string& peer, const Envelope& envelope, const Message& message) {
    const auto bytes = WSYNC_TRY(encode(envelope, message));
    return socket->send(peer, bytes);
  }

  // A layout has megabytes, and the same Announce goes to all sidecars of a round one after the
  // other: it is encoded once.
  Result<> send_layout(const std::string& peer, const Envelope& envelope,
                       const Announce& announce) {
    if (!layout || !layout->is_of(envelope, announce)) {
      auto bytes = WSYNC_TRY(encode(envelope, announce));
      layout.emplace(envelope, announce, std::move(bytes));
    } else {
      ++counters.shared;
    }
    return socket->send(peer, layout->part);
  }

  Result<> send_heartbeat(const std::string& peer, std::optional<Result<Bytes>>& encoded) {
    if (!encoded) {
      const auto [envelope, heartbeat] =
          callbacks.heartbeat ? callbacks.heartbeat() : std::pair<Envelope, Heartbeat>{};
      encoded = encode(envelope, heartbeat);
    }
    if (!*encoded) return fail(encoded->error());
    return sent(peer, MessageType::kHeartbeat, socket->send(peer, **encoded));
  }

  void tick() {
    const auto self = shared_from_this();
    layout.reset();  // the announcements of a round are sent at once
    if (const auto by = path && !taken ? path->taken_by() : std::nullopt) {
      taken = true;
      if (callbacks.on_address_taken) callbacks.on_address_taken(*by);
      if (closed) return;
    }
    const auto silent = [this](const auto& entry) {
      return ticked - entry.second.heard > options.times.silence_deadline;
    };
    // A late tick has two possible causes. If only this loop was blocked, messages may be waiting
    // in the queue, so they are read before any peer counts as silent. If the whole process was
    // suspended, ZeroMQ has received nothing either, so all silences are measured from now on.
    if (now() - std::exchange(ticked, now()) > late_tick(options.times))
      for (auto& entry : peers) entry.second.heard = now();
    if (ticked > first_silence && std::ranges::any_of(peers, silent)) drain_all();
    if (closed) return;
    std::vector<std::pair<std::string, Error>> lost;
    pace.set_peers(peers.size());
    std::optional<Result<Bytes>> heartbeat;  // all peers get the same bytes
    first_silence = ticked + options.times.silence_deadline;
    for (const auto& entry : peers) {
      const std::string& name = entry.first;
      first_silence = std::min(first_silence, entry.second.heard + options.times.silence_deadline);
      if (silent(entry)) {
        lost.emplace_back(
            name, Error(ErrorCode::kDeadline, fmt::format("{} has been silent for {} ms", name,
                                                          options.times.silence_deadline.count())));
      } else if (!pace.is_due(entry.second.told, ticked)) {
        continue;
      } else if (const auto told = send_heartbeat(name, heartbeat);
                 !told && told.error().code() == ErrorCode::kPeerLost) {
        lost.emplace_back(
            name, Error(ErrorCode::kPeerLost, fmt::format("{} closed the connection", name)));
      }
    }
    for (const auto& [name, error] : lost) {
      if (closed) return;
      // A peer that an earlier callback has removed with forget() is not reported.
      if (peers.erase(name) != 0 && callbacks.on_lost) callbacks.on_lost(name, error);
    }
  }

  void say_last(const std::vector<std::string>& last_peers, const Envelope& envelope,
                const Message& message, std::chrono::milliseconds limit) {
    std::set<std::string> silent;
    for (const std::string& peer : last_peers)
      if (send(peer, envelope, message)) silent.insert(peer);
    const TimePoint end = now() + limit;
    pollfd readable{.fd = socket->fd(), .events = POLLIN, .revents = 0};
    while (true) {
      // The descriptor reports changes only, so everything is read before the wait.
      std::array<Part, 2> parts;
      while (const std::size_t count = socket->receive(parts)) {
        if (count != parts.size()) continue;
        const auto answer = decode_envelope(parts[1].bytes());
        if (answer && answer->request == envelope.request) silent.erase(parts[0].text());
      }
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - now()).count();
      if (silent.empty() || left <= 0) return;
      ::poll(&readable, 1, static_cast<int>(left));
    }
  }

  void close() {
    closed = true;
    beat.stop();
    watcher.reset();
    questions.reset();
    refusals.reset();
    // The last message may be a Leave, so the socket lingers to send it.
    if (socket) socket->wait_at_close(kLastMessage);
    socket.reset();
    path.reset();
  }

  Loop& loop;
  RouterOptions options;
  RouterCallbacks callbacks;
  Timer beat;
  HeartbeatPace pace;
  PortCounters counters;
  std::string address;
  std::map<std::string, Peer> peers;
  TimePoint ticked = now();
  TimePoint first_silence{};       // no peer counts as silent before, so that few ticks look twice
  std::optional<SocketPath> path;  // released after the socket
  std::unique_ptr<Socket> socket;
  std::unique_ptr<FdWatcher> watcher;
  std::unique_ptr<FdWatcher> questions;  // about keys
  std::unique_ptr<FdWatcher> refusals;   // of connections
  std::optional<EncodedLayout> layout;   // the last one that was sent
  bool draining = false;
  bool taken = false;  // another process holds the address
  bool closed = false;
};

class ZmqRouter final : public RouterPort {
 public:
  explicit ZmqRouter(std::shared_ptr<RouterState> state) : state_(std::move(state)) {}
  ~ZmqRouter() override {
    WSYNC_CHECK(state_->loop.in_loop(), "ports belong to the loop's thread");
    state_->close();
  }
  Result<> send(const std::string& peer, const Envelope& envelope,
                const Message& message) override {
    return state_->send(peer, envelope, message);
  }
  void say_last(const std::vector<std::string>& last_peers, const Envelope& envelope,
                const Message& message, std::chrono::milliseconds limit) override {
    state_->say_last(last_peers, envelope, message, limit);
  }
  void forget(const std::string& peer) override { state_->peers.erase(peer); }
  void admit(AuthorizedKeys keys) override { state_->admit(std::move(keys)); }
  const std::string& address() const noexcept override { return state_->address; }
  PortCounters counters() const noexcept override { return state_->counters; }

 private:
  std::shared_ptr<RouterState> state_;
};

}  // namespace

Result<std::unique_ptr<RouterPort>> listen_zmq(Loop& loop, const RouterOptions& options,
                                               RouterCallbacks callbacks) {
  const auto address = WSYNC_TRY(parse_port_address(options.address, options.keys.has_value()));
  auto state = std::make_shared<RouterState>(loop, options, std::move(callbacks));
  if (!address.path.empty()) {
    auto claimed = WSYNC_TRY(SocketPath::claim(
        address.path, options.take_over ? Claim::kTakeOver : Claim::kIfFree, options.advice));
    state->path.emplace(std::move(claimed));
  }
  auto socket = WSYNC_TRY(Socket::create(ZMQ_ROUTER, ""));
  state->socket = std::move(socket);
  if (options.keys) WSYNC_TRY(state->socket->serve_keys(options.keys->secret_key));
  WSYNC_TRY(state->socket->bind(address));
  state->address = state->socket->last_endpoint();
  auto watcher = WSYNC_TRY(
      FdWatcher::create(loop, state->socket->fd(), [s = state.get()](FdEvents) { s->drain(); }));
  state->watcher = std::move(watcher);
  state->watcher->watch({.readable = true});
  if (options.keys) WSYNC_TRY(state->watch_keys());
  state->beat.start_repeating(options.times.heartbeat_interval);
  state->drain_later();
  return std::unique_ptr<RouterPort>(std::make_unique<ZmqRouter>(std::move(state)));
}

}  // namespace wsync::control
