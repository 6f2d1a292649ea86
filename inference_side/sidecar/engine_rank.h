// EngineRank: one connection of the sidecar's engine socket. It is a rank of a replica once its
// hello has been accepted.
//
// Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "inference_side/reload/weight_pipeline.h"
#include "shared/base/error.h"
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
  // GPUs: a second descriptor of its socket. It shows when the engine's process has closed its end,
  // also after `stream` is closed: the process has unmapped the IPC buffers by then.
  UniqueFd hangup;
  std::shared_ptr<const std::vector<control::EngineTensor>> tensors;
  Digest tensors_key;
  Digest layout_sent;
  // Versions that it was sent Prepare for, or that it cannot take, with the reason.
  std::map<Version, Result<>> prepared;

  // Sends a message; does nothing when the connection has ended. A message that cannot be sent is
  // only logged: the end of the connection is reported by the stream itself.
  void send(std::uint64_t request, const control::Message& message, std::vector<UniqueFd> fds = {});
};

}  // namespace wsync::agent
