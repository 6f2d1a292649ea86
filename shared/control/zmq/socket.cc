#include "shared/control/zmq/socket.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <utility>

#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/liveness.h"
#include "shared/control/codec.h"
#include "shared/control/zmq/zap.h"

namespace wsync::control {
namespace {

constexpr const char* kMonitorEndpoint = "inproc://connections";
constexpr const char* kRefusalsEndpoint = "inproc://refusals";
constexpr const char* kZapEndpoint = "inproc://zeromq.zap.01";  // libzmq connects to this name
// ZMQ_ZAP_ENFORCE_DOMAIN: the library has this option, but its header only in draft releases.
constexpr int kZapEnforceDomain = 93;
constexpr std::size_t kZapPartsMax = 16;

tl::unexpected<Error> fail_zmq(std::string_view what, int error) {
  return fail(ErrorCode::kIo, fmt::format("{}: {}", what, zmq_strerror(error)));
}

template <class T>
bool set(void* socket, int option, T value) {
  return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

int fd_of(void* socket) {
  int fd = -1;
  std::size_t size = sizeof fd;
  zmq_getsockopt(socket, ZMQ_FD, &fd, &size);
  return fd;
}

bool has_input(void* socket) {
  int events = 0;
  std::size_t size = sizeof events;
  return zmq_getsockopt(socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN) != 0;
}

bool set_text(void* socket, int option, std::string_view text) {
  return zmq_setsockopt(socket, option, text.data(), text.size()) == 0;
}

tl::unexpected<Error> fail_keys() {
  return fail(ErrorCode::kInternal,
              fmt::format("the ZeroMQ library of this host cannot use keys ({}): install one with "
                          "CURVE, as Debian's libzmq5 is",
                          zmq_strerror(zmq_errno())));
}

struct MonitorEvent {
  std::uint16_t kind = 0;
  std::uint32_t value = 0;
};

std::optional<MonitorEvent> next_event(void* monitor) {
  if (!has_input(monitor)) return std::nullopt;
  Part message;  // u16 event, u32 value
  Part address;
  if (zmq_msg_recv(message.raw(), monitor, ZMQ_DONTWAIT) < 0) return std::nullopt;
  zmq_msg_recv(address.raw(), monitor, ZMQ_DONTWAIT);
  MonitorEvent event;
  if (message.bytes().size() < sizeof event.kind + sizeof event.value) return event;
  std::memcpy(&event.kind, message.bytes().data(), sizeof event.kind);
  std::memcpy(&event.value, message.bytes().data() + sizeof event.kind, sizeof event.value);
  return event;
}

// A text of libzmq that is a key; anything longer is none. libzmq writes it in one of its threads
// and orders that before the message, by means that the thread sanitizer cannot see in the
// distribution's library.
__attribute__((no_sanitize("thread"))) std::string key_in(const char* text) {
  std::array<char, kKeyCharacters> key{};
  std::size_t size = 0;
  for (; text[size] != '\0'; ++size) {
    if (size == key.size()) return {};
    key[size] = text[size];
  }
  return {key.data(), size};
}

std::optional<ConnectionEvent> connection_event(const MonitorEvent& event) {
  switch (event.kind) {
    case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
      return ConnectionEvent::kUp;
    case ZMQ_EVENT_DISCONNECTED:
      return ConnectionEvent::kDown;
    case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
      return ConnectionEvent::kKeyRefused;
    case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
      if (event.value == ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC)
        return ConnectionEvent::kWrongServer;
      return event.value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH ? ConnectionEvent::kOtherKind
                                                                       : ConnectionEvent::kBroken;
    case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
      return ConnectionEvent::kBroken;
    case ZMQ_EVENT_CONNECT_RETRIED:
      return ConnectionEvent::kNotTaken;
    default:
      return std::nullopt;
  }
}

// Bytes of a message that libzmq frees in whichever of its threads has sent it last. libzmq orders
// this after the creation by a counter of its own. The flag orders it in C++ as well, where the
// thread sanitizer, which cannot see into the distribution's libzmq, finds it.
struct KeptBytes {
  Bytes bytes;
  std::atomic<bool> complete{false};
};

tl::unexpected<Error> send_failure(int error) {
  if (error == EHOSTUNREACH) return fail(ErrorCode::kPeerLost, "the peer is not connected");
  if (error == EAGAIN)
    return fail(ErrorCode::kBusy, "the peer does not read and its queue is full");
  return fail_zmq("send", error);
}

}  // namespace

std::string Part::user() const {
  const char* user = zmq_msg_gets(&message_, "User-Id");
  return user == nullptr ? std::string() : key_in(user);
}

int Part::connection_fd() const { return zmq_msg_get(&message_, ZMQ_SRCFD); }

SharedPart::SharedPart(Bytes bytes) {
  auto* kept = new KeptBytes{.bytes = std::move(bytes)};
  std::byte* const data = kept->bytes.data();
  const std::size_t size = kept->bytes.size();
  kept->complete.store(true, std::memory_order_release);  // nothing here touches it afterwards
  zmq_msg_init_data(
      &message_, data, size,
      [](void*, void* owner) {
        auto* last = static_cast<KeptBytes*>(owner);
        if (last->complete.load(std::memory_order_acquire)) delete last;
      },
      kept);
}

Result<std::unique_ptr<Socket>> Socket::create(int type, const std::string& identity) {
  auto socket = std::unique_ptr<Socket>(new Socket());
  socket->context_.reset(zmq_ctx_new());
  if (!socket->context_) return fail_zmq("create a ZeroMQ context", zmq_errno());
  socket->socket_.reset(zmq_socket(socket->context_.get(), type));
  if (!socket->socket_) return fail_zmq("create a ZeroMQ socket", zmq_errno());
  void* raw = socket->socket_.get();
  const int queue = static_cast<int>(limits::kPortQueueCount);
  bool ok = set(raw, ZMQ_LINGER, 0) && set(raw, ZMQ_SNDHWM, queue) && set(raw, ZMQ_RCVHWM, queue) &&
            set(raw, ZMQ_MAXMSGSIZE, static_cast<std::int64_t>(encoded_bytes_max())) &&
            set(raw, ZMQ_RECONNECT_IVL, static_cast<int>(limits::kReconnectMinMs)) &&
            set(raw, ZMQ_RECONNECT_IVL_MAX, static_cast<int>(limits::kReconnectMaxMs)) &&
            set(raw, ZMQ_HANDSHAKE_IVL, static_cast<int>(limits::kHelloDeadlineMs));
  if (type == ZMQ_ROUTER) {
    // If a peer reconnects before this side notices the loss, the new connection replaces the old
    // one.
    // All sidecars of a fleet connect at once when a coordinator starts.
    ok = ok && set(raw, ZMQ_ROUTER_MANDATORY, 1) && set(raw, ZMQ_ROUTER_HANDOVER, 1) &&
         set(raw, ZMQ_BACKLOG, static_cast<int>(limits::kPortPeerCount));
  } else {
    // Queue messages only for established connections, so that no stale message reaches a later
    // coordinator.
    ok = ok && set(raw, ZMQ_IMMEDIATE, 1) &&
         zmq_setsockopt(raw, ZMQ_ROUTING_ID, identity.data(), identity.size()) == 0;
  }
  if (!ok) return fail_zmq("configure a ZeroMQ socket", zmq_errno());
  return socket;
}

Socket::~Socket() {
  if (socket_ && monitor_) zmq_socket_monitor(socket_.get(), nullptr, 0);
  monitor_.reset();
  socket_.reset();
  key_questions_.reset();
  context_.reset();  // blocks until all of its sockets are closed
}

Result<> Socket::serve_keys(const std::string& secret_key) {
  void* raw = socket_.get();
  if (zmq_has("curve") != 1 || !set(raw, ZMQ_CURVE_SERVER, 1) ||
      !set_text(raw, ZMQ_CURVE_SECRETKEY, secret_key) ||
      !set_text(raw, ZMQ_ZAP_DOMAIN, kZapDomain) || !set(raw, kZapEnforceDomain, 1))
    return fail_keys();
  // In the same context as the router: from another one nobody can answer for it.
  key_questions_.reset(zmq_socket(context_.get(), ZMQ_REP));
  if (!key_questions_ || !set(key_questions_.get(), ZMQ_LINGER, 0) ||
      zmq_bind(key_questions_.get(), kZapEndpoint) != 0)
    return fail_zmq("listen for questions about keys", zmq_errno());
  return {};
}

Result<> Socket::use_key(const KeyFile& key) {
  void* raw = socket_.get();
  if (zmq_has("curve") == 1 && set_text(raw, ZMQ_CURVE_SERVERKEY, key.server_key) &&
      set_text(raw, ZMQ_CURVE_PUBLICKEY, key.pair.public_key) &&
      set_text(raw, ZMQ_CURVE_SECRETKEY, key.pair.secret_key))
    return {};
  return fail_keys();
}

int Socket::key_questions_fd() const { return fd_of(key_questions_.get()); }

bool Socket::has_key_question() const { return has_input(key_questions_.get()); }

bool Socket::answer_key_question(
    const std::function<bool(const std::string& key, const std::string& address)>& admits,
    const std::function<void(const Error&)>& on_broken) {
  void* raw = key_questions_.get();
  if (!has_key_question()) return false;
  std::vector<std::string> parts;
  for (bool more = true; more;) {
    Part part;
    if (zmq_msg_recv(part.raw(), raw, ZMQ_DONTWAIT) < 0) return false;
    more = zmq_msg_more(part.raw()) != 0;
    if (parts.size() < kZapPartsMax) parts.push_back(part.text());
  }
  const auto request = parse_zap_request(parts);
  const bool is_admitted = request && admits(request->public_key, request->address);
  const auto reply =
      request ? zap_reply(request->id, is_admitted ? ZapStatus::kAdmitted : ZapStatus::kRefused,
                          request->public_key)
              : zap_reply(parts.size() > 1 ? parts[1] : "", ZapStatus::kBroken, "");
  for (std::size_t i = 0; i < reply.size(); ++i)
    zmq_send(raw, reply[i].data(), reply[i].size(),
             ZMQ_DONTWAIT | (i + 1 < reply.size() ? ZMQ_SNDMORE : 0));
  if (!request) on_broken(request.error());
  return true;
}

Result<> Socket::bind(const PortAddress& address) {
  if (address.ipv6) set(socket_.get(), ZMQ_IPV6, 1);
  WSYNC_TRY(watch(ZMQ_EVENT_LISTENING, kMonitorEndpoint));
  const bool bound = [&] {
    const ForkGate gate;
    if (zmq_bind(socket_.get(), address.endpoint.c_str()) != 0) return false;
    // The event is available when bind returns. Its value is the descriptor of the listening
    // socket.
    if (const auto event = next_event(monitor_.get()); event && event->kind == ZMQ_EVENT_LISTENING)
      listening_ = UniqueFd(::fcntl(static_cast<int>(event->value), F_DUPFD_CLOEXEC, 0));
    return true;
  }();
  const int error = zmq_errno();
  zmq_socket_monitor(socket_.get(), nullptr, 0);
  monitor_.reset();
  if (bound && !listening_.valid())
    return fail(ErrorCode::kIo, fmt::format("listen on {}: the listening socket cannot be "
                                            "duplicated; raise the limit of open files (ulimit -n)",
                                            address.endpoint));
  if (bound && key_questions_) return watch(ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL, kRefusalsEndpoint);
  if (bound) return {};
  if (error == EADDRINUSE)
    return fail(ErrorCode::kBusy,
                fmt::format("listen on {}: the address is in use: stop the other coordinator, or "
                            "choose another address",
                            address.endpoint));
  return fail_zmq(fmt::format("listen on {}", address.endpoint), error);
}

Result<> Socket::connect(const PortAddress& address) {
  if (address.ipv6) set(socket_.get(), ZMQ_IPV6, 1);
  if (zmq_connect(socket_.get(), address.endpoint.c_str()) == 0) return {};
  return fail_zmq(fmt::format("connect to {}", address.endpoint), zmq_errno());
}

Result<> Socket::connect_again(const PortAddress& from, const PortAddress& to) {
  if (zmq_disconnect(socket_.get(), from.endpoint.c_str()) != 0 && zmq_errno() != ENOENT)
    return fail_zmq(fmt::format("disconnect from {}", from.endpoint), zmq_errno());
  return connect(to);
}

std::string Socket::last_endpoint() const {
  std::array<char, 512> text{};
  std::size_t size = text.size();
  if (zmq_getsockopt(socket_.get(), ZMQ_LAST_ENDPOINT, text.data(), &size) != 0) return {};
  return {text.data(), size - 1};  // without the terminating zero
}

Result<> Socket::watch_connections() {
  return watch(ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                   ZMQ_EVENT_HANDSHAKE_FAILED_AUTH | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                   ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL,
               kMonitorEndpoint);
}

Result<> Socket::watch(int events, const char* endpoint) {
  if (zmq_socket_monitor(socket_.get(), endpoint, events) != 0)
    return fail_zmq("watch a ZeroMQ socket", zmq_errno());
  monitor_.reset(zmq_socket(context_.get(), ZMQ_PAIR));
  if (!monitor_ || !set(monitor_.get(), ZMQ_LINGER, 0) ||
      zmq_connect(monitor_.get(), endpoint) != 0)
    return fail_zmq("watch a ZeroMQ socket", zmq_errno());
  return {};
}

int Socket::monitor_fd() const { return fd_of(monitor_.get()); }

std::optional<ConnectionEvent> Socket::next_connection_event() {
  while (const auto event = next_event(monitor_.get()))
    if (const auto known = connection_event(*event)) return known;
  return std::nullopt;
}

void Socket::wait_at_close(std::chrono::milliseconds time) {
  set(socket_.get(), ZMQ_LINGER, static_cast<int>(time.count()));
}

Result<> Socket::send(const std::string& route, std::span<const std::byte> bytes) {
  WSYNC_TRY(send_route(route));
  if (zmq_send(socket_.get(), bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0)
    return send_failure(zmq_errno());
  return {};
}

Result<> Socket::send(const std::string& route, SharedPart& part) {
  WSYNC_TRY(send_route(route));
  Part copy;  // of the reference, not of the bytes
  zmq_msg_copy(copy.raw(), part.raw());
  if (zmq_msg_send(copy.raw(), socket_.get(), ZMQ_DONTWAIT) < 0) return send_failure(zmq_errno());
  return {};
}

Result<> Socket::send_route(const std::string& route) {
  if (!route.empty() &&
      zmq_send(socket_.get(), route.data(), route.size(), ZMQ_DONTWAIT | ZMQ_SNDMORE) < 0)
    return send_failure(zmq_errno());
  return {};
}

std::size_t Socket::receive(std::span<Part> parts) {
  if (!has_input(socket_.get())) return 0;
  std::size_t count = 0;
  for (;;) {
    Part spare;
    Part& part = count < parts.size() ? parts[count] : spare;
    if (zmq_msg_recv(part.raw(), socket_.get(), ZMQ_DONTWAIT) < 0) return count;
    ++count;
    if (zmq_msg_more(part.raw()) == 0) return count;
  }
}

int Socket::fd() const { return fd_of(socket_.get()); }

}  // namespace wsync::control
