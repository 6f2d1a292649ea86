// EngineRank: one connection of the sidecar's engine socket; a rank of a replica from its hello on.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "inference_side/reload/pipeline_runner.h"
#include "shared/control/unix_stream.h"
#include "shared/loop/timer.h"

namespace wsync::agent {

struct EngineRank {
  reload::EngineId id{};
  const control::Fence* fence = nullptr;  // the hub's, in every envelope
  std::unique_ptr<control::UnixStream> stream;
  std::unique_ptr<Timer> hello_deadline;  // until it is attached
  bool attached = false;
  std::string replica;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t device = 0;
  // GPUs: whether it may have IPC buffers mapped. A second descriptor of its socket tells when its
  // end is closed, also after this one's is: the buffers are unmapped by then.
  bool mapped = false;
  UniqueFd hangup;
  std::optional<std::uint64_t> load_due;  // request of the Load that brought it buffers
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
  Digest tensors_key;
  Digest layout_sent;
  // Versions it has been told of; the failure it answered, empty while all is well.
  std::map<Version, std::string> prepared;
  std::uint64_t bytes = 0;  // of its last load plan

  // Sends to it; nothing when the connection has ended. What cannot be sent is logged: the end of
  // the connection tells the rest.
  void send(std::uint64_t request, const control::Message& message, std::vector<UniqueFd> fds = {});
};

}  // namespace wsync::agent
