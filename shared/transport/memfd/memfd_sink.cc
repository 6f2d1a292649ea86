#include "shared/transport/memfd/memfd_sink.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <thread>
#include <utility>
#include <vector>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/log.h"
#include "shared/base/process_fd.h"
#include "shared/base/sealed_memory.h"
#include "shared/transport/limits.h"
#include "shared/transport/memfd/packet.h"
#include "shared/transport/memfd/sealed_changes.h"

namespace wsync::transport::memfd {
namespace {

// Only for the owner's thread. A posted callback checks it before it runs.
struct Session {
  SinkCallbacks callbacks;
  bool is_active = true;
};

struct Pending {
  FetchRequest wanted;
  std::shared_ptr<Session> session;
  TimePoint heard_at;
};

// What has come.
struct Answer {
  std::optional<ArenaView> view = std::nullopt;
  std::shared_ptr<const SealedMemory> patch = nullptr;
  std::vector<ArrivedBucket> changes = {};  // in place of both
};

// How often it is checked whether the writer has freed an arena whose mapping is kept. Freeing
// memory is not urgent.
constexpr std::chrono::seconds kRetiredCheck{2};

Result<ArenaView> open_arena(const Pending& pending, int fd, unsigned threads, KeptMappings& kept) {
  const FetchRequest& wanted = pending.wanted;
  const Version version = wanted.key.version;
  ArenaExpectation expected{.version = {{version.epoch, version.step}},
                            .layout = wanted.key.layout,
                            .data_bytes = wanted.data_bytes};
  if (wanted.content != Digest{}) expected.content = wanted.content;
  auto view = ArenaView::open(fd, expected, threads, &kept);
  if (!view) return view;
  const ArenaIdentity identity = view->identity();
  const StreamFence fence{.epoch = identity.fence_epoch, .run_id = identity.fence_run_id};
  if (fence > wanted.key.fence)
    return fail(ErrorCode::kFenced,
                fmt::format("the arena was written under fence epoch {}, newer than the round's {}",
                            fence.epoch, wanted.key.fence.epoch));
  return view;
}

// Whatever is wrong with the changes, the arena may be well.
Result<Answer> take_changes(const Pending& pending, UniqueFd fd, unsigned threads) {
  if (!pending.wanted.wants_changes_alone())
    return fail(ErrorCode::kInvalidInput, "the host link sent changes that were not asked for");
  // Frames and digests of all buckets come with them.
  const std::uint64_t most = changes_wanted(pending.wanted) +
                             pending.wanted.buckets.size() * (kFrameBytes + kTrailerBytes);
  const auto sealed = WSYNC_TRY(SealedMemory::adopt(std::move(fd), most));
  return Answer{.changes = WSYNC_TRY(read_changes(pending.wanted, sealed.bytes(), threads))};
}

}  // namespace

class MemfdSink::Link {
 public:
  Link(Post post, MemfdSinkOptions options, UniqueFd wake)
      : post_(std::move(post)),
        options_(std::move(options)),
        wake_(std::move(wake)),
        alive_(std::make_shared<bool>(true)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~Link() {
    cancel();
    *alive_ = false;
    thread_.request_stop();
    wake();
  }

  Result<> connect(const std::string& path);
  void disconnect();
  [[nodiscard]] bool is_connected() const {
    const std::lock_guard lock(mutex_);
    return socket_ != nullptr;
  }
  Result<> receive(FetchRequest wanted, SinkCallbacks callbacks);
  void cancel();

 private:
  struct Connection {
    UniqueFd socket;
    // The trainer's process; invalid if it cannot be watched. Its end is noticed even if a child
    // has the trainer's end of the connection.
    UniqueFd process;
  };
  using Socket = std::shared_ptr<const Connection>;  // shared with the thread while it polls

  void run(const std::stop_token& stop);
  void read(const Socket& socket);
  void take(Packet packet);
  void finish(Pending pending, Result<Answer> answer, bool needs_memory = false);
  void lose(const Socket& socket, const Error& error);
  void release(std::shared_ptr<Result<Answer>> answer);
  void give_up(std::vector<KeptMappings::Region> regions);
  void give_up_later(std::vector<KeptMappings::Region> regions);
  void wake() const { (void)eventfd_write(wake_.get(), 1); }

  const Post post_;
  const MemfdSinkOptions options_;
  const UniqueFd wake_;
  const std::shared_ptr<bool> alive_;  // owner's thread only
  std::shared_ptr<Session> session_;   // owner's thread only
  mutable std::mutex mutex_;
  // Under mutex_:
  std::string path_;
  Socket socket_;
  // Of this connection; its value belongs to the owner's thread. false: the owner has ended it.
  std::shared_ptr<bool> watched_ = std::make_shared<bool>(false);
  std::optional<Pending> pending_;
  std::vector<std::shared_ptr<Result<Answer>>> released_;  // of cancelled transfers
  std::vector<KeptMappings::Region> given_up_;             // of an earlier source
  std::uint64_t connection_ = 0;                           // counts connections and their ends
  // Last, so that the thread ends before the members that it uses.
  std::jthread thread_;
};

Result<> MemfdSink::Link::connect(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (socket_ && path_ == path) return {};
  auto socket = WSYNC_TRY(connect_to(path));
  const auto peer = same_user(socket.get());
  if (!peer) return fail(peer.error().with_context(path));
  auto process = open_process(peer->pid);
  if (!process && process.error().code() == ErrorCode::kPeerLost)
    return fail(process.error().with_context(path));
  path_ = path;
  ++connection_;
  *watched_ = false;
  watched_ = std::make_shared<bool>(true);
  socket_ = std::make_shared<const Connection>(Connection{
      .socket = std::move(socket), .process = process ? std::move(*process) : UniqueFd()});
  wake();
  return {};
}

void MemfdSink::Link::disconnect() {
  cancel();
  const std::lock_guard lock(mutex_);
  *watched_ = false;
  socket_.reset();
  ++connection_;
  give_up_later(options_.kept->take_all());
  wake();
}

Result<> MemfdSink::Link::receive(FetchRequest wanted, SinkCallbacks callbacks) {
  if (session_ && session_->is_active)
    return fail(ErrorCode::kBusy, "a transfer is under way; cancel it first");
  WSYNC_TRY(connect(wanted.source));
  Frame request{.type = FrameType::kGet, .key = wanted.key};
  if (wanted.base) request.base = wanted.base->version;
  if (wanted.wants_changes_alone()) request.changes_max = changes_wanted(wanted);
  session_ = std::make_shared<Session>(Session{.callbacks = std::move(callbacks)});
  const std::lock_guard lock(mutex_);
  // Set before the request is sent, because the answer may arrive at once.
  pending_ = Pending{.wanted = std::move(wanted), .session = session_, .heard_at = now()};
  if (auto sent = socket_ ? send_packet(socket_->socket.get(), request, {})
                          : fail(ErrorCode::kPeerLost, "the host link has just ended");
      !sent) {
    pending_.reset();
    session_->is_active = false;
    return sent;
  }
  wake();
  return {};
}

void MemfdSink::Link::cancel() {
  if (session_) session_->is_active = false;
  const std::lock_guard lock(mutex_);
  pending_.reset();
}

void MemfdSink::Link::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    Socket socket;
    bool is_waiting = false;
    // Destroyed on this thread, because unmapping takes long.
    std::vector<std::shared_ptr<Result<Answer>>> release;
    std::vector<KeptMappings::Region> given_up;
    {
      const std::lock_guard lock(mutex_);
      socket = socket_;
      is_waiting = pending_.has_value();
      release.swap(released_);
      given_up.swap(given_up_);
    }
    release.clear();
    if (given_up.empty()) given_up = options_.kept->take_retired();
    give_up(std::move(given_up));
    std::array<pollfd, 3> waiting{
        pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
        pollfd{.fd = socket ? socket->socket.get() : -1, .events = POLLIN, .revents = 0},
        pollfd{.fd = socket ? socket->process.get() : -1, .events = POLLIN, .revents = 0}};
    int timeout = options_.kept->empty()
                      ? -1
                      : static_cast<int>(std::chrono::milliseconds(kRetiredCheck).count());
    if (is_waiting) timeout = static_cast<int>(limits::kStreamWaitingMs);
    if (::poll(waiting.data(), waiting.size(), timeout) < 0 && errno != EINTR) {
      log_error("host link: poll failed, errno {}", errno);
      return;
    }
    if (waiting[0].revents != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_.get(), &value);
    }
    if (socket && waiting[1].revents != 0) read(socket);
    // After everything that it has sent.
    if (socket && waiting[2].revents != 0)
      lose(socket, Error(ErrorCode::kPeerLost, "the trainer's process has ended"));
    std::unique_lock lock(mutex_);
    if (pending_ && now() - pending_->heard_at > pending_->wanted.stall_deadline) {
      Pending late = std::move(*pending_);
      pending_.reset();
      lock.unlock();
      const auto deadline = late.wanted.stall_deadline.count();
      finish(std::move(late),
             fail(ErrorCode::kDeadline, fmt::format("the source was silent for {} ms", deadline)));
    }
  }
}

void MemfdSink::Link::read(const Socket& socket) {
  for (;;) {
    auto packet = receive_packet(socket->socket.get());
    if (!packet) return lose(socket, packet.error());
    if (!*packet) return;
    take(std::move(**packet));
  }
}

// Drops the answers to cancelled requests, together with their descriptors.
void MemfdSink::Link::take(Packet packet) {
  Pending pending;
  std::uint64_t connection = 0;
  {
    const std::lock_guard lock(mutex_);
    connection = connection_;
    if (!pending_ || pending_->wanted.key != packet.frame.key) return;
    pending_->heard_at = now();
    if (packet.frame.type == FrameType::kWaiting) return;
    pending = std::move(*pending_);
    pending_.reset();
  }
  if (packet.frame.type == FrameType::kFailure)
    return finish(std::move(pending), fail(packet.frame.code, std::move(packet.text)));
  if (packet.frame.type == FrameType::kChanges) {
    auto answer = take_changes(pending, std::move(packet.fd), options_.threads);
    const bool needs_memory = !answer.has_value();
    return finish(std::move(pending), std::move(answer), needs_memory);
  }
  if (packet.frame.type != FrameType::kArena)
    return finish(std::move(pending),
                  fail(ErrorCode::kInvalidInput, "the host link answered with a wrong frame"));
  auto view = open_arena(pending, packet.fd.get(), options_.threads, *options_.kept);
  std::shared_ptr<const SealedMemory> patch;
  if (packet.patch.valid()) {
    auto mapped = SealedMemory::adopt(std::move(packet.patch), pending.wanted.data_bytes);
    if (mapped)
      patch = std::make_shared<const SealedMemory>(std::move(*mapped));
    else
      log_warning("the patch that came with version {} is not used: {}",
                  pending.wanted.key.version.to_string(), mapped.error().message());
  }
  {
    // Mapping takes long. If the source was given up meanwhile, nobody would say that it frees this
    // arena.
    const std::lock_guard lock(mutex_);
    if (connection != connection_) give_up_later(options_.kept->take_all());
  }
  if (!view) return finish(std::move(pending), fail(view.error()));
  finish(std::move(pending), Answer{.view = std::move(*view), .patch = std::move(patch)});
}

void MemfdSink::Link::finish(Pending pending, Result<Answer> answer, bool needs_memory) {
  auto shared = std::make_shared<Result<Answer>>(std::move(answer));
  const std::string context =
      fmt::format("take over version {} from {}", pending.wanted.key.version.to_string(),
                  pending.wanted.source);
  pending.wanted.base.reset();  // its owner may change it from now on
  post_([this, alive = alive_, session = pending.session, shared, context, needs_memory,
         buckets = pending.wanted.buckets.size()]() mutable {
    if (!session->is_active) {
      if (*alive) release(std::move(shared));
      return;
    }
    if (!*shared) {
      session->is_active = false;
      return session->callbacks.on_failure(
          {.error = shared->error().with_context(context), .needs_memory = needs_memory});
    }
    Answer& arrived = **shared;
    // A callback may cancel the transfer, so is_active is checked before each one.
    for (std::uint64_t bucket = 0; bucket < buckets && session->is_active; ++bucket)
      session->callbacks.on_bucket(arrived.view ? ArrivedBucket{.bucket = bucket}
                                                : arrived.changes[bucket]);
    if (session->is_active && arrived.patch && session->callbacks.on_patch)
      session->callbacks.on_patch(std::move(arrived.patch));
    if (std::exchange(session->is_active, false))
      session->callbacks.on_done(std::move(arrived.view));
  });
}

// Releases the arena of a transfer that was cancelled while the arena was mapped. The link's thread
// unmaps it.
void MemfdSink::Link::release(std::shared_ptr<Result<Answer>> answer) {
  const std::lock_guard lock(mutex_);
  released_.push_back(std::move(answer));
  wake();
}

// Under mutex_. The link's thread unmaps them.
void MemfdSink::Link::give_up_later(std::vector<KeptMappings::Region> regions) {
  std::ranges::move(regions, std::back_inserter(given_up_));
}

// Unmaps what nothing else uses, on the link's thread.
void MemfdSink::Link::give_up(std::vector<KeptMappings::Region> regions) {
  if (regions.empty()) return;
  regions.clear();
  post_([alive = alive_, on_retired = options_.on_arenas_retired] {
    if (*alive) on_retired();
  });
}

void MemfdSink::Link::lose(const Socket& socket, const Error& error) {
  std::optional<Pending> pending;
  std::shared_ptr<bool> watched;
  {
    const std::lock_guard lock(mutex_);
    if (socket_ != socket) return;  // replaced or closed by the owner
    watched = watched_;
    socket_.reset();
    ++connection_;
    pending = std::exchange(pending_, std::nullopt);
  }
  if (pending) finish(std::move(*pending), fail(error));
  if (error.code() != ErrorCode::kPeerLost) {
    log_warning("{}; the connection is closed", error.message());
    give_up(options_.kept->take_all());
    return;
  }
  // The owner may end the connection before this runs.
  post_([alive = alive_, watched, on_lost = options_.on_lost, error] {
    if (*alive && *watched) on_lost(error);
  });
  // Last, because it takes long, and longer while a load is running on GPUs.
  give_up(options_.kept->take_all());
}

MemfdSink::MemfdSink(std::unique_ptr<Link> link) : link_(std::move(link)) {}
MemfdSink::~MemfdSink() = default;

Result<std::unique_ptr<MemfdSink>> MemfdSink::create(Post post, MemfdSinkOptions options) {
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return fail_errno("make an eventfd", errno);
  return std::unique_ptr<MemfdSink>(
      new MemfdSink(std::make_unique<Link>(std::move(post), std::move(options), std::move(wake))));
}

Result<> MemfdSink::watch(const std::string& source) { return link_->connect(source); }
void MemfdSink::unwatch() { link_->disconnect(); }
bool MemfdSink::is_connected() const { return link_->is_connected(); }
Result<> MemfdSink::receive(FetchRequest wanted, SinkCallbacks callbacks) {
  return link_->receive(std::move(wanted), std::move(callbacks));
}
void MemfdSink::cancel() { link_->cancel(); }

}  // namespace wsync::transport::memfd
