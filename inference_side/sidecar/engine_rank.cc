#include "inference_side/sidecar/engine_rank.h"

#include <utility>

#include "shared/base/format.h"
#include "shared/base/log.h"

namespace wsync::agent {

std::string EngineRank::process_text() const {
  return pid == 0 ? "its process" : fmt::format("process {}", pid);
}

std::string EngineRank::remedy_text() const {
  return pid == 0 ? "continue its process (kill -CONT), or end it"
                  : fmt::format("continue it (kill -CONT {}), or end it", pid);
}

void EngineRank::send(std::uint64_t request, const control::Message& message,
                      std::vector<UniqueFd> fds) {
  if (!stream) return;
  control::Envelope envelope;
  envelope.fence = *fence;
  envelope.replica = replica;
  envelope.rank = rank;
  envelope.request = request;
  envelope.capabilities = capabilities;
  if (const auto sent = stream->send(envelope, message, std::move(fds)); !sent)
    log_debug("to engine {} rank {}: {}", replica, rank, sent.error().message());
}

}  // namespace wsync::agent
