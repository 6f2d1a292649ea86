// MemfdSource: hands the arenas of offered versions to processes of the same host and user. It uses
// a pathname Unix socket, whose hang-up means that a peer is lost. A process that wants only what
// changes gets sealed memory (sealed_changes.h), if the version is held so.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "shared/base/unix_socket.h"
#include "shared/transport/limits.h"
#include "shared/transport/stream.h"

namespace wsync::transport::memfd {

struct MemfdSourceOptions {
  std::string path;  // of the socket; its directory belongs to this user alone
  Claim claim = Claim::kIfFree;
  std::string advice = {};  // SocketPath::claim()
  std::chrono::milliseconds offer_wait{limits::kStreamOfferWaitMs};
  // Called on the owner's thread when a process has connected, and when its connection has ended.
  std::function<void(int pid)> on_peer = [](int) {};
  std::function<void(int pid)> on_peer_lost = [](int) {};
};

// Thread: see BucketSource. A separate thread waits for the sockets.
class MemfdSource final : public BucketSource {
 public:
  // kBusy if another process serves the path; kIo if the socket cannot be created.
  [[nodiscard]] static Result<std::unique_ptr<MemfdSource>> listen(MemfdSourceOptions options,
                                                                   Post post);
  ~MemfdSource() override;

  [[nodiscard]] std::string address() const override;
  void offer(Offer offer) override;
  void bucket_ready(Version version, std::uint64_t bucket, const Digest& digest,
                    std::shared_ptr<const Bytes> changes = nullptr,
                    std::vector<WordSum> sums = {}) override;
  void withdraw(Version version, const std::string& reason) override;
  [[nodiscard]] SourceCounters counters() const override;

 private:
  class Server;
  explicit MemfdSource(std::unique_ptr<Server> server);
  std::unique_ptr<Server> server_;
};

}  // namespace wsync::transport::memfd
