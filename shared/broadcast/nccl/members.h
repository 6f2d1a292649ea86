// Who takes part in a group, and what keeps them from meeting. NCCL finds out about duplicate GPUs
// only in the middle of its rendezvous; these refusals come before, and name host and rank. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "shared/base/error.h"
#include "shared/broadcast/communicator.h"

namespace wsync::collective::nccl {

// One rank, or the process before any rank of it has joined.
struct Member {
  std::string host;
  std::optional<Rank> rank;
  std::string gpu;                // UUID; empty without a rank
  std::uint32_t driver_cuda = 0;  // newest CUDA version that the driver can do: 13000 is 13.0
  std::uint32_t build_cuda = 0;   // CUDA version that this wsync was built with

  friend bool operator==(const Member&, const Member&) = default;
};

// "rank 3 on host A", or "a process on host A".
[[nodiscard]] std::string who(const Member& member);

// kRefused when one of them cannot take part in a group at all (a driver older than the build), or
// two of them not in the same one (one GPU twice).
[[nodiscard]] Result<> check_members(std::span<const Member> members);

}  // namespace wsync::collective::nccl
