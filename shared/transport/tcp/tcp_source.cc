#include "shared/transport/tcp/tcp_source.h"

#include <cerrno>
#include <fcntl.h>
#include <set>
#include <utility>

#include "shared/base/check.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/unique_fd.h"
#include "shared/transport/limits.h"
#include "shared/transport/tcp/source_connection.h"

namespace wsync::transport::tcp {

// The state of a source. Only for the bulk thread, except for its construction.
class TcpSource::Server : public std::enable_shared_from_this<TcpSource::Server> {
 public:
  Server(UvThread& thread, const TcpSourceOptions& options)
      : thread_(thread), loop_(thread.loop()), shared_(std::make_shared<SourceShared>()) {
    shared_->stall_deadline = options.stall_deadline;
    shared_->offer_wait = options.offer_wait;
    shared_->offers = StreamOffers(options.link_hold);
    make_channel_ = options.make_channel;
    on_fence_ = options.on_fence;
  }

  // Binds and listens. Returns the port.
  Result<std::uint16_t> start(const TcpAddress& address);
  void stop();

  void raise_fence(const StreamFence& fence) {
    if (fence <= fence_) return;
    fence_ = fence;
    on_fence_(fence);
    for (const auto& connection : std::set(connections_)) connection->close_if_older_than(fence);
  }
  void offer(Offer offer) {
    raise_fence(offer.key.fence);
    shared_->offers.offer(std::move(offer));
    begin_merging();
    pump();
  }
  void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                    std::shared_ptr<const Bytes> changes, std::span<const WordSum> sums) {
    shared_->offers.bucket_ready(version, bucket, digest, std::move(changes), sums);
    pump();
  }
  void leaves_ready(Version version, const ArrivedLeaves& leaves) {
    const auto offered = shared_->offers.find(version);
    if (!offered) return;
    if (!leaves.unlike.none()) offered->offer.unlike = leaves.unlike;
    offered->add_leaves(leaves.bucket, leaves.first, leaves.sums);
    pump();
  }
  void withdraw(Version version, const std::string& reason) {
    if (!shared_->offers.withdraw(version, now())) return;
    begin_merging();
    for (const auto& connection : std::set(connections_)) connection->withdraw(version, reason);
  }
  [[nodiscard]] SourceCounters counters() const { return shared_->counters; }

 private:
  void on_connection(int status);
  void begin_merging() {
    if (!std::exchange(merges_, true)) merge_links();
  }
  // Bucket by bucket, so that connections are served meanwhile. What has time is done while nothing
  // is sent.
  void merge_links() {
    const bool is_idle = shared_->counters.wire_bytes == wire_bytes_;
    if (shared_->offers.merge_leaving(now()) || (is_idle && shared_->offers.merge_idle()))
      thread_.post([self = shared_from_this()] { self->merge_links(); });
    else
      merges_ = false;
  }
  void tick() {
    for (const auto& connection : std::set(connections_)) connection->tick(now());
    begin_merging();
    wire_bytes_ = shared_->counters.wire_bytes;
  }
  void pump() {
    for (const auto& connection : std::set(connections_)) connection->pump();
  }

  UvThread& thread_;
  uv_loop_t* loop_;
  std::shared_ptr<SourceShared> shared_;
  std::set<std::shared_ptr<SourceConnection>> connections_;
  std::function<std::shared_ptr<Channel>()> make_channel_;
  std::function<void(const StreamFence& fence)> on_fence_;
  std::uint64_t wire_bytes_ = 0;  // that had been sent at the last tick
  bool merges_ = false;           // merge_links() runs, or is posted
  StreamFence fence_;             // the highest one that it was told
  uv_tcp_t listener_{};
  UniqueFd listening_;  // duplicate by which a forked child finds libuv's (fork_guard.h)
  uv_timer_t timer_{};
  // Keep this object alive until the handles are closed.
  std::shared_ptr<Server> listener_holds_;
  std::shared_ptr<Server> timer_holds_;
};

Result<std::uint16_t> TcpSource::Server::start(const TcpAddress& address) {
  WSYNC_CHECK(uv_tcp_init(loop_, &listener_) == 0 && uv_timer_init(loop_, &timer_) == 0,
              "handles can be initialised");
  listener_.data = this;
  timer_.data = this;
  listener_holds_ = timer_holds_ = shared_from_this();

  sockaddr_storage where = address.numeric().value();
  auto* any = reinterpret_cast<sockaddr*>(&where);
  const bool is_ipv6 = where.ss_family == AF_INET6;
  int rc = 0;
  {
    // No fork() may happen before listening_ owns the duplicate (fork_guard.h).
    const ForkGate gate;
    rc = uv_tcp_bind(&listener_, any, 0);
    if (rc == 0)
      rc = uv_listen(reinterpret_cast<uv_stream_t*>(&listener_), 128,
                     [](uv_stream_t* listener, int status) {
                       static_cast<Server*>(listener->data)->on_connection(status);
                     });
    int fd = -1;
    if (rc == 0) rc = uv_fileno(reinterpret_cast<uv_handle_t*>(&listener_), &fd);
    if (rc == 0) listening_ = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (rc == 0 && !listening_.valid()) rc = uv_translate_sys_error(errno);
  }
  int length = sizeof where;
  if (rc == 0) rc = uv_tcp_getsockname(&listener_, any, &length);
  if (rc != 0) return fail(ErrorCode::kIo, uv_sentence("listen on " + address.to_string(), rc));
  uv_timer_start(
      &timer_, [](uv_timer_t* timer) { static_cast<Server*>(timer->data)->tick(); },
      limits::kStreamWaitingMs, limits::kStreamWaitingMs);
  return ntohs(is_ipv6 ? reinterpret_cast<sockaddr_in6*>(&where)->sin6_port
                       : reinterpret_cast<sockaddr_in*>(&where)->sin_port);
}

void TcpSource::Server::stop() {
  shared_->offers.clear();
  for (const auto& connection : std::set(connections_)) connection->close();
  listening_.reset();
  uv_close(reinterpret_cast<uv_handle_t*>(&listener_), [](uv_handle_t* handle) {
    const auto keep = std::move(static_cast<Server*>(handle->data)->listener_holds_);
  });
  uv_close(reinterpret_cast<uv_handle_t*>(&timer_), [](uv_handle_t* handle) {
    const auto keep = std::move(static_cast<Server*>(handle->data)->timer_holds_);
  });
}

void TcpSource::Server::on_connection(int status) {
  if (status != 0) {
    log_warning("{}", uv_sentence("a data connection was not accepted", status));
    return;
  }
  const auto connection = std::make_shared<SourceConnection>(shared_, make_channel_());
  const std::weak_ptr<SourceConnection> weak = connection;
  connection->on_closed(
      [self = shared_from_this(), weak] { self->connections_.erase(weak.lock()); });
  connections_.insert(connection);
  if (!connection->accept(loop_, reinterpret_cast<uv_stream_t*>(&listener_))) return;
  ++shared_->counters.connections;
  if (connections_.size() > limits::kStreamConnectionCount) {
    log_warning("more than {} data connections: the newest is closed",
                limits::kStreamConnectionCount);
    connection->close();
  }
}

Error beyond_loopback(const TcpAddress& address) {
  return Error(
      ErrorCode::kRefused,
      fmt::format("{} is not on loopback, and plain connections would carry weights beyond "
                  "this host: use keys (`wsync keys init`), with which they are encrypted, "
                  "or data_security: trusted_network",
                  address.to_string()));
}

TcpSource::TcpSource(UvThread& thread, TcpAddress address, std::shared_ptr<Server> server)
    : thread_(thread), address_(std::move(address)), server_(std::move(server)) {}

Result<std::unique_ptr<TcpSource>> TcpSource::listen(UvThread& thread,
                                                     const TcpSourceOptions& options) {
  auto address = WSYNC_TRY(parse_tcp_address(options.listen));
  if (!address.numeric())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("'{}' is a name: write the numeric address at which this process "
                            "listens, and the name as `advertise`",
                            options.listen));
  if (address.is_any() && options.advertise.empty())
    return fail(ErrorCode::kInvalidInput,
                fmt::format("'{}' means every address of this host: set `advertise` to the one by "
                            "which others reach it",
                            options.listen));
  if (!address.is_loopback() && !options.may_leave_host) return fail(beyond_loopback(address));
  auto server = std::make_shared<Server>(thread, options);
  Result<std::uint16_t> port = 0;
  thread.run([&] {
    port = server->start(address);
    if (!port) server->stop();
  });
  if (!port) return fail(std::move(port).error());
  address.port = *port;
  if (!options.advertise.empty()) address.host = options.advertise;
  return std::unique_ptr<TcpSource>(new TcpSource(thread, address, std::move(server)));
}

TcpSource::~TcpSource() {
  thread_.run([&] { server_->stop(); });
}

void TcpSource::offer(Offer offer) {
  thread_.post([server = server_, shared = std::make_shared<Offer>(std::move(offer))] {
    server->offer(std::move(*shared));
  });
}
void TcpSource::bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                             std::shared_ptr<const Bytes> changes, std::vector<WordSum> sums) {
  thread_.post([=, server = server_, sums = std::move(sums)] {
    server->bucket_ready(version, bucket, digest, changes, sums);
  });
}
void TcpSource::leaves_ready(Version version, ArrivedLeaves leaves) {
  thread_.post([server = server_, version, leaves = std::move(leaves)] {
    server->leaves_ready(version, leaves);
  });
}
void TcpSource::raise_fence(const StreamFence& fence) {
  thread_.post([=, server = server_] { server->raise_fence(fence); });
}
void TcpSource::withdraw(Version version, const std::string& reason) {
  thread_.post([=, server = server_] { server->withdraw(version, reason); });
}
SourceCounters TcpSource::counters() const {
  SourceCounters counters;
  thread_.run([&] { counters = server_->counters(); });
  return counters;
}

}  // namespace wsync::transport::tcp
