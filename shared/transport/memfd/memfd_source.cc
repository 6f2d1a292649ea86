#include "shared/transport/memfd/memfd_source.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <mutex>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <utility>

#include "shared/base/clock.h"
#include "shared/base/format.h"
#include "shared/base/limits.h"
#include "shared/base/log.h"
#include "shared/transport/limits.h"
#include "shared/transport/memfd/packet.h"
#include "shared/transport/memfd/sealed_changes.h"
#include "shared/transport/offered.h"

namespace wsync::transport::memfd {

namespace {

// Pause after a failed accept(). The listener stays readable, so an immediate retry would loop.
constexpr std::chrono::milliseconds kAcceptPause{100};

}  // namespace

class MemfdSource::Server {
 public:
  Server(MemfdSourceOptions options, Post post, Listener listener, UniqueFd wake)
      : options_(std::move(options)),
        post_(std::move(post)),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        alive_(std::make_shared<bool>(true)),
        thread_([this](const std::stop_token& stop) { run(stop); }) {}
  ~Server() {
    *alive_ = false;
    thread_.request_stop();
    wake();
  }

  [[nodiscard]] const std::string& path() const noexcept { return options_.path; }
  void offer(Offer offer) {
    const std::lock_guard lock(mutex_);
    const Version version = offer.key.version;
    offers_.insert_or_assign(
        version, Served{.number = ++offers_made_, .offered = Offered(std::move(offer))});
    wake();
  }
  void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                    std::shared_ptr<const Bytes> changes) {
    const std::lock_guard lock(mutex_);
    const auto found = offers_.find(version);
    if (found == offers_.end()) return;
    Offered& offered = found->second.offered;
    // Nothing to map: it waits for another offer.
    if (!offered.offer.share && !offered.has_changes_alone()) return;
    offered.set_ready(bucket, digest, std::move(changes));
    if (std::ranges::find(offered.ready, false) == offered.ready.end()) wake();
  }
  void withdraw(Version version, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (offers_.erase(version) == 0) return;
    for (Peer& peer : peers_)
      if (peer.asked && peer.asked->key.version == version)
        refuse(peer, Error(ErrorCode::kCancelled, reason));
  }
  [[nodiscard]] SourceCounters counters() const {
    const std::lock_guard lock(mutex_);
    return counters_;
  }

 private:
  struct Served {
    std::uint64_t number = 0;  // of its offer
    Offered offered;
    // Of one that is held as its changes alone, once they are asked for. Until then they would be
    // in memory twice.
    std::shared_ptr<const SealedMemory> sealed = nullptr;
    bool told_memory_wanted = false;
  };
  struct Peer {
    UniqueFd socket;
    int pid = 0;
    std::optional<Frame> asked;  // a request that is not answered yet
    TimePoint asked_at{};
    TimePoint notified_at{};  // time of the last waiting frame
    bool is_lost = false;
  };

  void run(const std::stop_token& stop);
  [[nodiscard]] bool is_accepting() const { return now() >= accept_at_; }
  void accept_peers();
  void read_peer(Peer& peer);
  void serve(Peer& peer, TimePoint at);
  void send_arena(Peer& peer, const Offered& offered);
  // Returns whether it has answered.
  bool serve_changes(Peer& peer, Served& served);
  void seal_wanted();
  void refuse(Peer& peer, const Error& error);
  void send(Peer& peer, const Frame& frame, std::string_view text,
            const Descriptors& descriptors = {});
  void drop_lost_peers();
  void wake() const { (void)eventfd_write(wake_.get(), 1); }
  void notify(const std::function<void(int)>& callback, int pid) {
    post_([alive = alive_, callback, pid] {
      if (*alive) callback(pid);
    });
  }

  const MemfdSourceOptions options_;
  const Post post_;
  const Listener listener_;
  const UniqueFd wake_;
  const std::shared_ptr<bool> alive_;  // owner's thread only
  TimePoint accept_at_{};              // server's thread only, as is the next member
  bool accept_failed_ = false;
  mutable std::mutex mutex_;
  // Under mutex_:
  std::map<Version, Served> offers_;
  std::uint64_t offers_made_ = 0;
  std::optional<Version> to_seal_;  // whose changes are wanted
  std::list<Peer> peers_;           // only the server's thread closes the sockets
  SourceCounters counters_;
  // Last, so that the thread ends before the members that it uses.
  std::jthread thread_;
};

void MemfdSource::Server::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<pollfd> waiting{
        {.fd = wake_.get(), .events = POLLIN, .revents = 0},
        {.fd = is_accepting() ? listener_.socket.get() : -1, .events = POLLIN, .revents = 0}};
    bool has_requests = false;
    {
      const std::lock_guard lock(mutex_);
      for (const Peer& peer : peers_) {
        waiting.push_back({.fd = peer.socket.get(), .events = POLLIN, .revents = 0});
        has_requests = has_requests || peer.asked.has_value();
      }
    }
    int timeout = has_requests ? static_cast<int>(limits::kStreamWaitingMs) : -1;
    if (waiting[1].fd < 0) timeout = static_cast<int>(kAcceptPause.count());
    if (::poll(waiting.data(), waiting.size(), timeout) < 0 && errno != EINTR) {
      log_error("host link: poll failed, errno {}", errno);
      return;
    }
    if (waiting[0].revents != 0) {
      eventfd_t value = 0;
      (void)eventfd_read(wake_.get(), &value);
    }
    seal_wanted();
    const std::lock_guard lock(mutex_);
    // Only this thread adds and removes peers, so the list still matches `waiting`.
    auto peer = peers_.begin();
    for (std::size_t i = 2; i < waiting.size(); ++i, ++peer)
      if (waiting[i].revents != 0) read_peer(*peer);
    if (waiting[1].revents != 0) accept_peers();
    const TimePoint at = now();
    for (Peer& each : peers_) serve(each, at);
    drop_lost_peers();
  }
}

void MemfdSource::Server::accept_peers() {
  for (;;) {
    UniqueFd socket = UniqueFd::made_by([&] {
      return ::accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (!socket.valid()) {
      // Without free descriptors the connection stays queued and the listener stays readable.
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      if (!std::exchange(accept_failed_, true))
        log_warning("{}; connections wait",
                    fail_errno("host link " + options_.path + ": accept", errno).value().message());
      accept_at_ = now() + kAcceptPause;
      return;
    }
    accept_failed_ = false;
    const auto peer = same_user(socket.get());
    if (!peer) {
      log_warning("host link {}: {}", options_.path, peer.error().message());
      continue;
    }
    if (peers_.size() >= limits::kSidecarCount) {
      log_warning("host link {}: more than {} processes, the newest is refused", options_.path,
                  limits::kSidecarCount);
      continue;
    }
    ++counters_.connections;
    notify(options_.on_peer, peer->pid);
    peers_.push_back({.socket = std::move(socket), .pid = peer->pid});
  }
}

void MemfdSource::Server::read_peer(Peer& peer) {
  while (!peer.is_lost) {
    auto packet = receive_packet(peer.socket.get());
    if (packet && !*packet) return;
    const bool is_garbage = packet ? (*packet)->frame.type != FrameType::kGet
                                   : packet.error().code() != ErrorCode::kPeerLost;
    if (is_garbage) {
      ++counters_.garbage_peers;
      log_warning("host link {}: process {} sent garbage and is closed", options_.path, peer.pid);
    }
    if (is_garbage || !packet) {
      peer.is_lost = true;
      return;
    }
    peer.asked = (*packet)->frame;  // a newer request replaces one that is still pending
    peer.asked_at = now();
  }
}

void MemfdSource::Server::serve(Peer& peer, TimePoint at) {
  if (!peer.asked || peer.is_lost) return;
  const auto found = offers_.find(peer.asked->key.version);
  if (found == offers_.end()) {
    if (at - peer.asked_at > options_.offer_wait)
      return refuse(peer, not_offered(peer.asked->key.version));
  } else {
    Offered& offered = found->second.offered;
    if (auto judged = offered.judge_key(peer.asked->key); !judged)
      return refuse(peer, judged.error());
    const bool is_ready = std::ranges::find(offered.ready, false) == offered.ready.end();
    if (is_ready && offered.offer.share) return send_arena(peer, offered);
    if (is_ready && offered.has_changes_alone() && serve_changes(peer, found->second)) return;
  }
  if (at - peer.notified_at < std::chrono::milliseconds(limits::kStreamWaitingMs)) return;
  peer.notified_at = at;
  Frame waiting = *peer.asked;
  waiting.type = FrameType::kWaiting;
  waiting.bytes = 0;
  waiting.base = {};
  waiting.changes_max = 0;
  send(peer, waiting, {});
}

void MemfdSource::Server::send_arena(Peer& peer, const Offered& offered) {
  auto arena = offered.offer.share();
  if (!arena) return refuse(peer, arena.error());
  Frame frame = *peer.asked;
  frame.type = FrameType::kArena;
  frame.bytes = offered.offer.data.size();
  frame.changes_max = 0;
  counters_.buckets += offered.offer.buckets.size();
  UniqueFd patch;
  if (!frame.base.none() && offered.offer.patch) {
    // Without it the whole arena is loaded.
    if (auto shared = offered.offer.patch->share(); shared)
      patch = std::move(*shared);
    else
      log_warning("host link {}: the patch to version {} is not sent: {}", options_.path,
                  frame.key.version.to_string(), shared.error().message());
  }
  peer.asked.reset();
  send(peer, frame, {}, {.memory = arena->get(), .patch = patch.get()});
}

bool MemfdSource::Server::serve_changes(Peer& peer, Served& served) {
  const Offer& offer = served.offered.offer;
  const bool is_wanted =
      peer.asked->base == offer.base && changes_bytes(served.offered) <= peer.asked->changes_max;
  if (!is_wanted) {
    if (!std::exchange(served.told_memory_wanted, true) && offer.on_memory_wanted)
      post_([alive = alive_, told = offer.on_memory_wanted] {
        if (*alive) told();
      });
    return false;
  }
  if (!served.sealed) {
    if (!to_seal_) wake();
    to_seal_ = offer.key.version;
    return false;
  }
  auto shared = served.sealed->share();
  if (!shared) {
    refuse(peer, shared.error());
    return true;
  }
  Frame frame = *peer.asked;
  frame.type = FrameType::kChanges;
  frame.bytes = 0;
  frame.changes_max = 0;
  counters_.buckets += offer.buckets.size();
  counters_.changes += offer.buckets.size();
  peer.asked.reset();
  send(peer, frame, {}, {.memory = shared->get()});
  return true;
}

// Without the lock while it copies, because the owner's loop takes it as well.
void MemfdSource::Server::seal_wanted() {
  std::optional<Served> wanted;
  {
    const std::lock_guard lock(mutex_);
    if (!to_seal_) return;
    if (const auto found = offers_.find(*std::exchange(to_seal_, std::nullopt));
        found != offers_.end() && found->second.offered.has_changes_alone())
      wanted = found->second;
  }
  if (!wanted) return;
  auto sealed = seal_changes(wanted->offered);
  const std::lock_guard lock(mutex_);
  const auto found = offers_.find(wanted->offered.offer.key.version);
  if (found == offers_.end() || found->second.number != wanted->number) return;
  if (sealed) {
    found->second.sealed = std::make_shared<const SealedMemory>(std::move(*sealed));
    return;
  }
  for (Peer& peer : peers_)
    if (peer.asked && peer.asked->key.version == found->first) refuse(peer, sealed.error());
}

void MemfdSource::Server::refuse(Peer& peer, const Error& error) {
  ++counters_.refused;
  const Frame frame = failure_frame(*peer.asked, error);
  peer.asked.reset();
  send(peer, frame, failure_text(error));
}

void MemfdSource::Server::send(Peer& peer, const Frame& frame, std::string_view text,
                               const Descriptors& descriptors) {
  if (send_packet(peer.socket.get(), frame, text, descriptors))
    counters_.wire_bytes += kFrameBytes + text.size();
  else
    peer.is_lost = true;
}

void MemfdSource::Server::drop_lost_peers() {
  peers_.remove_if([this](const Peer& peer) {
    if (peer.is_lost) notify(options_.on_peer_lost, peer.pid);
    return peer.is_lost;
  });
}

MemfdSource::MemfdSource(std::unique_ptr<Server> server) : server_(std::move(server)) {}
MemfdSource::~MemfdSource() = default;

Result<std::unique_ptr<MemfdSource>> MemfdSource::listen(MemfdSourceOptions options, Post post) {
  auto listener = WSYNC_TRY(listen_at(options.path, options.claim, options.advice));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return fail_errno("make an eventfd", errno);
  return std::unique_ptr<MemfdSource>(new MemfdSource(std::make_unique<Server>(
      std::move(options), std::move(post), std::move(listener), std::move(wake))));
}

std::string MemfdSource::address() const { return server_->path(); }
void MemfdSource::offer(Offer offer) { server_->offer(std::move(offer)); }
void MemfdSource::bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                               std::shared_ptr<const Bytes> changes, std::vector<WordSum>) {
  server_->bucket_ready(version, bucket, digest, std::move(changes));
}
void MemfdSource::withdraw(Version version, const std::string& reason) {
  server_->withdraw(version, reason);
}
SourceCounters MemfdSource::counters() const { return server_->counters(); }

}  // namespace wsync::transport::memfd
